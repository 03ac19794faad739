"""A session's requests as integer arrays, and latencies computed from them."""

import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import msgspec
import numpy as np

from inferwatch.metrics.load.request_latencies import (
    Answered,
    AnsweredRow,
    e2el_ns,
    tpot_ns,
    ttft_ns,
)
from inferwatch.metrics.series.quantiles import Ints

UNKNOWN = -(1 << 62)
"""Stands for NULL; no time and no count is this small."""
STRETCH = 50_000


def stretches(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    session: int,
    where: str = "",
) -> Iterator[Ints]:
    """Rows in batches, one array column per column of the table."""
    selected = ", ".join(f"coalesce({column}, {UNKNOWN})" for column in columns)
    query = f"SELECT {selected} FROM {table} WHERE session = ? {where}"  # noqa: S608  our own names
    with closing(connection.execute(query, (session,))) as cursor:
        while rows := cursor.fetchmany(STRETCH):
            yield np.array(rows, np.int64)


def whole(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    session: int,
    where: str = "",
) -> dict[str, Ints]:
    parts = list(stretches(connection, table, columns, session, where))
    empty = np.zeros((0, len(columns)), np.int64)
    rows = np.concatenate(parts) if parts else empty
    return {column: rows[:, place] for place, column in enumerate(columns)}


def between(begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """End times and durations, for rows where both times are known."""
    known = (begin_ns != UNKNOWN) & (end_ns != UNKNOWN)
    return end_ns[known], end_ns[known] - begin_ns[known]


# Latencies of a session's requests, each with its request's arrival time.
#
# The arrival rather than the end: slow requests end late, and a span that counted
# requests by their end would leave out the slowest ones under overload.
#
# Defined as on the screens: TTFT and E2EL by the front end, queue by
# the engine, the client's by :mod:`inferwatch.metrics.load.request_latencies`.

PROPER = "coalesce(reason, '') NOT IN ('abort', 'error')"
"""True for requests that ended normally: stop, length or repetition."""
ENGINE_PROPER = "coalesce(engine_reason, '') NOT IN ('abort', 'error')"
STARTED = "AND phase != 'warmup'"
REQUEST_COLUMNS = (
    "source",
    "ordinal",
    "member",
    "arrived_ns",
    "first_token_ns",
    "finished_ns",
    "added_ns",
    "scheduled_ns",
    "engine_finished_ns",
    "prompt_tokens",
    "output_tokens",
    "engine_output_tokens",
    PROPER,
    ENGINE_PROPER,
)
CLIENT_COLUMNS = (
    "source",
    "intended_ns",
    "sent_ns",
    "first_token_ns",
    "last_token_ns",
    "end_ns",
    "prompt_tokens",
    "output_tokens",
    "failure IS NULL",
    "ordinal",
    *("coalesce(failure IN ('aborted', 'hung_up'), 0)", "first_chunk_tokens"),
    "number",
)
CLIENT_DONE, CLIENT_ABORTED = CLIENT_COLUMNS[8], CLIENT_COLUMNS[10]
CLIENT_LATENCIES: dict[str, Callable[[Answered], int | None]] = {
    "ttft_s": ttft_ns,
    "e2el_s": e2el_ns,
    "tpot_s": tpot_ns,
}
"""The client's latencies."""


@dataclass(frozen=True, slots=True)
class TimedValues:
    """Durations, each with the time at which its request arrived."""

    at_ns: Ints
    values_ns: Ints
    rows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Each value's row in its table; empty if values are not one per request."""


class ServerRequests:
    """A session's requests as front end and engine reported them."""

    def __init__(self, connection: sqlite3.Connection, session: int) -> None:
        self.columns = whole(connection, "requests", REQUEST_COLUMNS, session)

    def __len__(self) -> int:
        return len(self.columns["ordinal"])

    @property
    def came_ns(self) -> Ints:
        """Arrival times: at the front end, else in the engine, else UNKNOWN."""
        arrived, added = self.columns["arrived_ns"], self.columns["added_ns"]
        return np.where(arrived != UNKNOWN, arrived, added)

    @property
    def ended_ns(self) -> Ints:
        """End times, normal or not: at the front end, else in the engine."""
        front, engine = self.columns["finished_ns"], self.columns["engine_finished_ns"]
        return np.where(front != UNKNOWN, front, engine)

    def ttft(self) -> TimedValues:
        first_ns = self.columns["first_token_ns"]
        return self._between(self.columns["arrived_ns"], first_ns)

    def e2el(self) -> TimedValues:
        """End-to-end latency at the front end, of requests that ended normally."""
        ended_ns = np.where(
            self.columns[PROPER] == 1, self.columns["finished_ns"], UNKNOWN
        )
        return self._between(self.columns["arrived_ns"], ended_ns)

    def queue(self) -> TimedValues:
        return self._between(self.columns["added_ns"], self.columns["scheduled_ns"])

    def _between(self, begin_ns: Ints, end_ns: Ints) -> TimedValues:
        known = (begin_ns != UNKNOWN) & (end_ns != UNKNOWN)
        values_ns = end_ns[known] - begin_ns[known]
        return TimedValues(self.came_ns[known], values_ns, np.flatnonzero(known))


class ClientRequests:
    """A load generator's records of its requests, without warm-up."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        session: int,
        only: Ints | None = None,
    ) -> None:
        """Limit latencies to the request numbers in ``only``; None means all."""
        self.columns = whole(
            connection, "client_requests", CLIENT_COLUMNS, session, STARTED
        )
        self._only = only

    def __len__(self) -> int:
        return len(self.columns["ordinal"])

    @property
    def came_ns(self) -> Ints:
        """When each request was due."""
        return self.columns["intended_ns"]

    @property
    def ended_ns(self) -> Ints:
        return self.columns["end_ns"]

    @property
    def last_ns(self) -> Ints:
        """When the last token came; UNKNOWN for requests that failed."""
        done = self.columns[CLIENT_DONE] == 1
        return np.where(done, self.columns["last_token_ns"], UNKNOWN)

    def timed(self, latency: str) -> TimedValues:
        values_ns = self.latency_ns(latency)
        known = values_ns != UNKNOWN
        if self._only is not None:
            known &= np.isin(self.columns["number"], self._only)
        rows = np.flatnonzero(known)
        return TimedValues(self.came_ns[known], values_ns[known], rows)

    def latency_ns(self, latency: str) -> Ints:
        """A latency in ns of each request, in the order of the columns."""
        found = map(CLIENT_LATENCIES[latency], self.answered())
        return np.fromiter((UNKNOWN if v is None else v for v in found), np.int64)

    def answered(self) -> Iterator[Answered]:
        """The requests as rows for latency functions, in the order of the columns."""
        columns = self.columns
        numbers = (_known(columns[name]) for name in AnsweredRow._fields[:-1])
        failures = (None if done else "failed" for done in columns[CLIENT_DONE])
        return map(AnsweredRow, *numbers, failures)


def per_token(
    first_ns: Ints, last_ns: Ints, tokens: Ints, came_ns: Ints
) -> TimedValues:
    """Time per output token after the first; needs at least two tokens."""
    known = (first_ns != UNKNOWN) & (last_ns != UNKNOWN) & (tokens > 1)
    spans = (last_ns[known] - first_ns[known]) / (tokens[known] - 1)
    values_ns = spans.round().astype(np.int64)
    return TimedValues(came_ns[known], values_ns, np.flatnonzero(known))


def _known(column: Ints) -> Iterator[int | None]:
    return (None if value == UNKNOWN else value for value in column.tolist())


def client_gaps(
    connection: sqlite3.Connection, session: int, only: Ints | None = None
) -> Iterator[TimedValues]:
    """Gaps between a request's chunks, one request at a time, without warm-up."""
    query = (
        "SELECT number, came_ns, gaps_ns FROM token_times JOIN (SELECT external_id "
        "AS id, min(intended_ns) AS came_ns, min(number) AS number "
        "FROM client_requests WHERE session = ?1 "
        "AND phase != 'warmup' AND failure IS NULL GROUP BY external_id) "
        "ON id = external_id WHERE session = ?1"
    )
    wanted = None if only is None else set(only.tolist())
    for number, came_ns, blob in connection.execute(query, (session,)):
        if wanted is not None and number not in wanted:
            continue
        gaps_ns = np.array(msgspec.json.decode(zlib.decompress(blob)), np.int64)
        yield TimedValues(np.full(len(gaps_ns), came_ns), gaps_ns)
