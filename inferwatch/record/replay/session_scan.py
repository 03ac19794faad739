"""Finds the marks and the timeline of a recorded session in the background."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from inferwatch.errors import StorageError
from inferwatch.feed import Mark
from inferwatch.metrics.series.history import MOST_COLUMNS, SESSION_FINEST_NS
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.record.connections import open_for_reading
from inferwatch.record.file.sqlite import explain
from inferwatch.record.replay.marks import ordered_marks, quick_marks, slow_marks
from inferwatch.record.replay.replay_state import UNREADABLE, until_done
from inferwatch.record.sessions.sessions import SessionRow, find
from inferwatch.record.tables.session_state import SessionState

SAMPLES = """
SELECT source, rank, t_ns, output_tokens, ttft_sum_s, ttft_count
FROM engine_samples WHERE session = ? ORDER BY source, rank, t_ns
"""
FOLLOWED_NS = 10 * NS_PER_S
"""Samples further apart than this, or than ``USUAL`` times the median, leave a gap."""
USUAL = 5
LEAST = 1e-6
"""The least first tokens, or fraction of one, for which a column has a mean TTFT."""
Floats = npt.NDArray[np.float64]
Columns = dict[str, tuple[float | None, ...]]


def has_samples(connection: sqlite3.Connection, session: int) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM engine_samples WHERE session = ?)"
    (exists,) = connection.execute(query, (session,)).fetchone()
    return bool(exists)


def scraped_columns(
    connection: sqlite3.Connection, session: int, bin_ns: int, count: int
) -> Columns:
    """Return output tokens and mean TTFT by column, interpolated between scrapes."""
    edges = np.linspace(0.0, count * bin_ns, count + 1)
    gained, watched_ns = np.zeros((3, count)), np.zeros(count)
    rows = connection.execute(SAMPLES, (session,))
    for _, rank in groupby(rows, itemgetter(0, 1)):
        table: Floats = np.array([row[2:] for row in rank], np.float64)
        if len(table) > 1:
            more, rank_ns = _gained(table, edges)
            gained += more
            watched_ns += rank_ns
    tokens, spent_s, first_tokens = gained
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(first_tokens >= LEAST, spent_s / first_tokens, np.nan)
    whole = np.diff(np.round(np.cumsum(tokens)), prepend=0.0)
    known_tokens = np.where(watched_ns > 0, whole, np.nan)
    return {
        "output_tokens": tuple(None if np.isnan(n) else round(n) for n in known_tokens),
        "ttft_mean_s": tuple(None if np.isnan(s) else float(s) for s in means),
    }


def _gained(table: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """Return what a rank's counters gained by column, and how long it was sampled."""
    times = table[:, 0]
    took = np.diff(times)
    rises = np.nan_to_num(np.diff(table[:, 1:], axis=0)).T
    far = took > max(FOLLOWED_NS, USUAL * float(np.median(took)))
    anew = (rises < 0).any(axis=0)
    rises[:, far | anew] = 0
    upto = np.concatenate([np.zeros((3, 1)), rises.cumsum(axis=1)], axis=1)
    more = np.array([np.diff(np.interp(edges, times, each)) for each in upto])
    time = np.concatenate([[0.0], np.where(far | anew, 0, took).cumsum()])
    return more, np.diff(np.interp(edges, times, time))


AGAIN_S = 10.0
"""How often a session that is being recorded is scanned again, at most."""
REST = 20
"""The pause is at least this many times the duration of the scan."""
INSTRUCTIONS = 50_000
"""SQLite instructions between two checks whether the scan is still wanted."""
STEPS = """
SELECT end_ns / :bin, count(*), sum(output_tokens), sum(prefill_tokens),
       avg(duration_ns) / 1e9, max(duration_ns) / 1e9,
       1.0 * sum(prefill_requests) / count(*), 1.0 * sum(decode_requests) / count(*),
       max(prefill_requests + decode_requests), max(waiting), sum(preemptions)
FROM steps WHERE session = :session AND end_ns >= 0 AND NOT memberless GROUP BY 1
"""
STEP_COLUMNS = (
    "steps",
    "output_tokens",
    "prefill_tokens",
    "step_mean_s",
    "step_max_s",
    "batch_prefill",
    "batch_decode",
    "batch_max",
    "waiting_max",
    "preemptions",
)
TTFTS = """
SELECT first_token_ns / :bin, avg(ttft_s), max(ttft_s)
FROM requests WHERE session = :session AND ttft_s IS NOT NULL AND first_token_ns >= 0
GROUP BY 1
"""
TTFT_COLUMNS = ("ttft_mean_s", "ttft_max_s")
ANSWERS = """
SELECT last_token_ns / :bin,
       CASE WHEN max(failure IS NULL AND output_tokens IS NULL) = 0
       THEN sum(output_tokens) END
FROM client_requests
WHERE session = :session AND last_token_ns >= 0 AND phase <> 'warmup' GROUP BY 1
"""
FIRST_TOKENS = """
SELECT first_token_ns / :bin, avg(ttft_s), max(ttft_s) FROM client_requests
WHERE session = :session AND first_token_ns >= 0 AND phase <> 'warmup' GROUP BY 1
"""
ENGINE = ((STEPS, STEP_COLUMNS), (TTFTS, TTFT_COLUMNS))
CLIENT = ((ANSWERS, ("output_tokens",)), (FIRST_TOKENS, TTFT_COLUMNS))
"""Columns without an engine: from responses the load generator received."""
MOMENTS = {"start_ns", "bin_ns", "lost_ns", "restarts_ns"}
"""The fields of a timeline that are not columns."""
DRAWN = [each.name for each in fields(Timeline) if each.name not in MOMENTS]


class SessionScan:
    """Scans a recorded session in the background for its marks and its timeline.

    The results are complete some time after opening; while a session is being recorded,
    they lag behind.
    """

    def __init__(self, path: Path, session: SessionRow) -> None:
        self.shape: Timeline | None = None
        """The whole session in a few columns; None until known."""
        self.marks: tuple[Mark, ...] = ()
        self.damage: str | None = None
        """Why the results are incomplete; None when they are not."""
        self._path = path
        self._session = session
        self._quick: list[Mark] = []
        self._slow: list[Mark] = []
        self._given_up = False

    def add(self, mark: Mark) -> None:
        self._quick = [*self._quick, mark]
        self._arrange()

    async def run(self) -> None:
        """Scan until cancelled, repeatedly while the session is being recorded."""
        while True:
            began_s = monotonic()
            await until_done(self.look, self._give_up)
            if self._session.state is not SessionState.RECORDING:
                return
            await asyncio.sleep(max(AGAIN_S, REST * (monotonic() - began_s)))

    def _give_up(self) -> None:
        self._given_up = True

    def look(self) -> None:
        """Scan once; an error in a damaged file is kept in ``damage``."""
        try:
            self._session = find(self._path, self._session.id)
            with closing(open_for_reading(self._path)) as connection:
                connection.set_progress_handler(lambda: self._given_up, INSTRUCTIONS)
                self._ask(connection)
        except (*UNREADABLE, StorageError) as error:
            if not self._given_up:  # a cancelled query fails, too
                self.damage = explain(error, Path(self._path.name))

    def _ask(self, connection: sqlite3.Connection) -> None:
        number = self._session.session
        self._quick = quick_marks(connection, number)
        self._arrange()
        self.shape = shape(connection, number, self._session.duration_ns)
        self._slow = slow_marks(connection, number)
        self._arrange()

    def _arrange(self) -> None:
        self.marks = ordered_marks([*self._quick, *self._slow])


def shape(connection: sqlite3.Connection, session: int, end_ns: int) -> Timeline:
    """Return a timeline of at most 240 columns; what was not measured is a gap."""
    bin_ns = SESSION_FINEST_NS
    while end_ns // bin_ns >= MOST_COLUMNS:
        bin_ns *= 2
    count = end_ns // bin_ns + 1
    parameters = {"bin": bin_ns, "session": session}
    columns: dict[str, Any] = dict.fromkeys(DRAWN, (None,) * count)
    stepped = _has_steps(connection, session)
    if not stepped and has_samples(connection, session):
        columns |= scraped_columns(connection, session, bin_ns, count)
        return Timeline(
            start_ns=0, bin_ns=bin_ns, **(columns | {"steps": (0,) * count})
        )
    for query, names in ENGINE if stepped else CLIENT:
        rows = {row[0]: row[1:] for row in connection.execute(query, parameters)}
        columns |= {
            name: tuple(rows[at][place] if at in rows else None for at in range(count))
            for place, name in enumerate(names)
        }
    columns["steps"] = tuple(steps or 0 for steps in columns["steps"])
    return Timeline(start_ns=0, bin_ns=bin_ns, **columns)


def _has_steps(connection: sqlite3.Connection, session: int) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM steps WHERE session = ? AND NOT memberless)"
    (exists,) = connection.execute(query, (session,)).fetchone()
    return bool(exists)
