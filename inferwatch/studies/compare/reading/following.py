"""What follows from each step and event of a session, read in one pass.

How a request's time was spent, and what each step moved and computed, depends on what
came before. So readings are followed in order of receipt: from those of the first
request that was under way when the span began, until those of the last that came in
it.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from operator import itemgetter

import numpy as np

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    Note,
    RequestEvent,
    Step,
    Tick,
    Totals,
)
from inferwatch.metrics.breakdown.tracker import SILENT_NS
from inferwatch.record.file.sqlite import Cursor
from inferwatch.record.lookup.recorded_readings import chosen_readings
from inferwatch.record.tables.codec import SELECT_SOURCES
from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.table import SourceNames, readable
from inferwatch.studies.compare.reading.efficiency import ABOUT, Batches
from inferwatch.studies.compare.reading.phases import PhaseTracker
from inferwatch.studies.compare.reading.requests import UNKNOWN, ServerRequests
from inferwatch.studies.compare.reading.session_numbers import RatioSums
from inferwatch.studies.compare.reading.span import ComparedSpan

MOST_STEPS = 200_000
"""About half a minute; what follows from more steps is left out, which is said."""
LEAD_STEPS = 2_000
"""Followed before the first request, so that it is known what a step without prompts
takes: by the latest 32 of a rank (``metrics/causes/decode.py``)."""
FOLLOWED = (EngineInfo, Note, RequestEvent, Step, Tick, Totals)
TO_THE_END = (1 << 63) - 1
PHASES_LEFT_OUT, BATCHES_LEFT_OUT = "the time in each phase", "MBU and MFU"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedNumbers:
    """What was found, and what was not as there are too many steps."""

    sums: dict[str, RatioSums] = field(default_factory=dict)
    """By the keys of metrics; empty where nothing is known."""
    left_out: str | None = None
    """What was left out and of how many steps, in words."""


def followed_numbers(
    connection: sqlite3.Connection,
    session: int,
    requests: ServerRequests,
    span: ComparedSpan,
) -> FollowedNumbers:
    """The time by phase, MBU and MFU, each where it is known at all."""
    batches = Batches(span)
    for reading in chosen_readings(connection, session, ABOUT):
        batches.about(reading)
    phases = PhaseTracker() if _has_phases(requests) else None
    if phases is None and not batches.known:
        return FollowedNumbers()
    part = FollowedPart.of(connection, session, requests, span)
    stop = part.batches_stop if phases is None else part.stop
    steps = part.steps(connection, session, stop)
    if steps > MOST_STEPS:
        names = [PHASES_LEFT_OUT] if phases is not None else []
        names += [BATCHES_LEFT_OUT] if batches.known else []
        return FollowedNumbers(left_out=f"{', '.join(names)} of {steps:,} steps")
    for ordinal, reading in _in_order(connection, session, part.begin, stop):
        if phases is not None:
            phases.take(reading)
        if batches.known and ordinal <= part.batches_stop:
            batches.take(reading)
    found = {} if phases is None else phases.phases().sums(span)
    return FollowedNumbers(sums={**found, **batches.sums()})


def _has_phases(requests: ServerRequests) -> bool:
    """Whether both a front end and an engine told of requests that ended."""
    columns = requests.columns
    ended = (columns["arrived_ns"] != UNKNOWN) & (columns["finished_ns"] != UNKNOWN)
    return bool((columns["added_ns"][ended] != UNKNOWN).any())


# Which readings are followed.

LAST_EVENTS = """
SELECT max(max(coalesce(finished_ns, 0), coalesce(engine_finished_ns, 0))),
       max(max(coalesce(finished_ordinal, 0), coalesce(engine_finished_ordinal, 0)))
FROM requests WHERE session = ?
  AND coalesce(arrived_ns, added_ns) >= ? AND coalesce(arrived_ns, added_ns) < ?
"""
LAST_STEP = "SELECT max(ordinal) FROM steps WHERE session = ? AND end_ns <= ?"
NEXT_TICK = "SELECT min(ordinal) FROM ticks WHERE session = ? AND t_ns > ?"
LEAD = (
    "SELECT ordinal FROM steps WHERE session = ? AND ordinal < ? "
    "ORDER BY ordinal DESC LIMIT 1 OFFSET ?"
)
HOW_MANY = "SELECT count(*) FROM steps WHERE session = ? AND ordinal BETWEEN ? AND ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedPart:
    """The part of a session's readings that a span's numbers follow from."""

    begin: int
    """The first ordinal."""
    stop: int
    """The last one: all is told of the requests that came in the span."""
    batches_stop: int
    """That of the last step of the span."""

    @classmethod
    def of(
        cls,
        connection: sqlite3.Connection,
        session: int,
        requests: ServerRequests,
        span: ComparedSpan,
    ) -> "FollowedPart":
        came_ns, ended_ns = requests.came_ns, requests.ended_ns
        meets = (came_ns != UNKNOWN) & (came_ns < span.end_ns)
        meets &= (ended_ns == UNKNOWN) | (ended_ns >= span.start_ns)
        first = int(np.min(requests.columns["ordinal"][meets], initial=TO_THE_END))
        lead = connection.execute(LEAD, (session, first, LEAD_STEPS)).fetchone()
        row = (session, span.start_ns, span.end_ns)
        last_ns, last = connection.execute(LAST_EVENTS, row).fetchone()
        ends_ns = max(last_ns or 0, span.start_ns)

        def ordinal(query: str, t_ns: int) -> int | None:
            (found,) = connection.execute(query, (session, t_ns)).fetchone()
            return None if found is None else int(found)

        tick = ordinal(NEXT_TICK, ends_ns + SILENT_NS)
        return cls(
            begin=0 if lead is None else lead[0],
            stop=TO_THE_END
            if tick is None
            else max(tick, last or 0, ordinal(LAST_STEP, ends_ns) or 0),
            batches_stop=ordinal(LAST_STEP, span.end_ns - 1) or 0,
        )

    def steps(self, connection: sqlite3.Connection, session: int, stop: int) -> int:
        """How many steps there are from the first on."""
        row = (session, self.begin, stop)
        (found,) = connection.execute(HOW_MANY, row).fetchone()
        return int(found)


def _in_order(
    connection: sqlite3.Connection, session: int, begin: int, stop: int
) -> Iterator[tuple[int, AnyReading]]:
    """The readings between these ordinals, in order of receipt.

    Of requests that came before, nothing.
    """
    sources = SourceNames(connection.execute(SELECT_SOURCES, (session,)).fetchall())
    after = Cursor(ordinal=begin - 1)
    rows: Iterable[tuple[int, AnyReading]] = merge(
        *(
            readable(table.read(connection, session, sources, after))
            for table in every_table()
            if table.kind is None or table.kind in FOLLOWED
        ),
        key=itemgetter(0),
    )
    for ordinal, reading in rows:
        if ordinal > stop:
            return
        if isinstance(reading, FOLLOWED):
            yield ordinal, reading
