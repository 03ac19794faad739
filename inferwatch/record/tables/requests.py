"""Requests: front-end and engine events of a request, merged into one row.

Each event leaves its time, its ordinal and a bit mask of the optional fields it had, so
that replay can take the row apart again. What does not fit (a second finish, two
contradicting events) goes to ``other_readings`` as a whole; if it only contradicts, the
row still gets its time and fields that were unknown before.
"""

import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec

from collectors.contract.readings import AnyReading, EventKind, RequestEvent, Vantage
from inferwatch.record.file.sqlite import START, Cursor
from inferwatch.record.tables.table import (
    KEY,
    Key,
    Numbered,
    ReadingTable,
    RowBatch,
    SessionPart,
    insert_sql,
    select_sql,
)

LIVE_LIMIT = 10_000
"""Requests remembered for merging; an evicted one starts a second row."""

ALWAYS = {"source", "t_ns", "kind", "vantage", "request_id"}
BOTH_SAY = {"output_tokens", "reason"}
"""Front end and engine may differ here, on aborts and stop strings."""

Fields = dict[str, Any]


class EventColumns:
    """The columns of a request's row that hold events of one kind and vantage."""

    def __init__(self, name: str, kind: EventKind, vantage: Vantage) -> None:
        self.kind = kind
        self.vantage = vantage
        self.t_ns = f"{name}_ns"
        self.ordinal = f"{name}_ordinal"
        self.carried = f"{name}_carried"
        optional = [
            field
            for field in msgspec.structs.fields(RequestEvent)
            if field.name not in ALWAYS
        ]
        self.fields = [
            (1 << place, field.name, field.default, _column(field.name, vantage))
            for place, field in enumerate(optional)
        ]


def _column(field: str, vantage: Vantage) -> str:
    if field == "ordinal":
        return "member"
    apart = field in BOTH_SAY and vantage is Vantage.ENGINE
    return f"engine_{field}" if apart else field


EVENTS = {
    (event.kind, event.vantage): event
    for event in (
        EventColumns("arrived", EventKind.ARRIVED, Vantage.FRONTEND),
        EventColumns("first_token", EventKind.FIRST_TOKEN, Vantage.FRONTEND),
        EventColumns("finished", EventKind.FINISHED, Vantage.FRONTEND),
        EventColumns("added", EventKind.ADDED, Vantage.ENGINE),
        EventColumns("scheduled", EventKind.SCHEDULED, Vantage.ENGINE),
        EventColumns("engine_finished", EventKind.FINISHED, Vantage.ENGINE),
    )
}
SHARED = dict.fromkeys(each[-1] for event in EVENTS.values() for each in event.fields)
MARKS = [
    mark
    for event in EVENTS.values()
    for mark in (event.t_ns, event.ordinal, event.carried)
]
NAMES = (*KEY, "request_id", *SHARED, *MARKS)
HELD = " + ".join(f"({event.ordinal} IS NOT NULL)" for event in EVENTS.values())
"""Number of events in a row."""

UPSERT = insert_sql("requests", NAMES, "INSERT OR REPLACE")
SELECT = select_sql("requests", NAMES[2:])
SELECT_ONE = (
    f"SELECT ordinal, {', '.join(NAMES[2:])} FROM requests "  # noqa: S608  our own names
    "WHERE session = ? AND ordinal = ?"
)


class RequestReadingTable(ReadingTable[RequestEvent]):
    """Merges events of running requests; writes each changed row once per batch."""

    name = "requests"
    kind = RequestEvent
    part = SessionPart.REQUESTS
    moment = "coalesce(arrived_ns, added_ns)"
    readings = f"coalesce(sum({HELD}), 0)"

    def __init__(
        self, other: ReadingTable[AnyReading], live_limit: int = LIVE_LIMIT
    ) -> None:
        self._other = other
        self._live_limit = live_limit
        self._live: OrderedDict[tuple[int, str], Fields] = OrderedDict()
        self._changed: dict[tuple[int, str], Fields] = {}
        self.unread = UnreadEvents()
        """State of ``read``."""

    def open_requests(self) -> tuple[int, ...]:
        """Ordinals of rows that may get more events."""
        return tuple(row["ordinal"] for row in self._live.values())

    def add(self, batch: RowBatch, key: Key, reading: RequestEvent) -> None:
        """Merge an event into its request's row; store it apart if it does not fit."""
        event = EVENTS.get((reading.kind, reading.vantage))
        identity = (key[2], reading.request_id)
        row = self._live.get(identity)
        if event is None or (row is not None and event.t_ns in row):
            self._other.add(batch, key, reading)
            return
        if row is None:
            batch.requests += 1
            row = dict(
                zip((*KEY, "request_id"), (*key, reading.request_id), strict=True)
            )
            self._live[identity] = row
        self._changed[identity] = row
        if not _merge(row, event, key[1], reading):
            self._other.add(batch, key, reading)

    def complete(self, batch: RowBatch) -> None:
        """Write changed rows; forget finished requests, and the oldest if too many."""
        for identity, row in self._changed.items():
            batch.add(UPSERT, tuple(map(row.get, NAMES)))
            if "finished_ns" in row and "engine_finished_ns" in row:
                self._live.pop(identity, None)
        self._changed = {}
        while len(self._live) > self._live_limit:
            self._live.popitem(last=False)

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        after: Cursor = START,
    ) -> Iterator[Numbered]:
        """Events of rows in order of receipt; later events of a row are held back."""
        unread = self.unread
        for begun in after.open_requests:
            for values in connection.execute(SELECT_ONE, (session, begun)):
                unread.take(values, sources, after.ordinal)
        for values in connection.execute(SELECT, (session, after.ordinal)):
            yield from unread.before(values[0])
            unread.take(values, sources, after.ordinal)
        yield from unread.before(None)


class UnreadEvents:
    """Events of rows already read, held back until it is their turn."""

    def __init__(self) -> None:
        self._events: list[tuple[int, int, AnyReading]] = []
        self._rows: dict[int, tuple[int, bool]] = {}

    def take(
        self, values: Sequence[Any], sources: Mapping[int, str], after: int
    ) -> None:
        """Keep the events of a row that come after an ordinal."""
        row = dict(zip(NAMES[1:], values, strict=True))
        begun = last = row["ordinal"]
        for ordinal, event in _events(row, sources[row["source"]]):
            last = max(last, ordinal)
            if ordinal > after:
                heappush(self._events, (ordinal, begun, event))
        ended = row["finished_ns"] is not None and row["engine_finished_ns"] is not None
        self._rows[begun] = last, ended

    def before(self, ordinal: int | None) -> Iterator[Numbered]:
        """Yield the events before an ordinal, or all if there are no more rows."""
        events = self._events
        while events and (ordinal is None or events[0][0] < ordinal):
            turn, begun, event = heappop(events)
            yield turn, event
            # The consumer asks for the next event, so this one was taken.
            if self._rows[begun] == (turn, True):
                del self._rows[begun]

    def open_after(self, ordinal: int, *, growing: bool) -> tuple[int, ...]:
        """Ordinals of rows with later events, or, if ``growing``, with more to come."""
        return tuple(
            begun
            for begun, (last, ended) in self._rows.items()
            if begun <= ordinal and (last > ordinal or (growing and not ended))
        )


def events_of(
    values: Sequence[Any], sources: Mapping[int, str]
) -> Iterator[tuple[int, RequestEvent]]:
    """The events that were merged into a row, as queried by SELECT_ONE."""
    row = dict(zip(NAMES[1:], values, strict=True))
    yield from _events(row, sources[row["source"]])


def _merge(
    row: Fields, event: EventColumns, ordinal: int, reading: RequestEvent
) -> bool:
    """Merge an event; returns whether it can be restored from the row."""
    carried, agrees = 0, True
    for bit, field, default, column in event.fields:
        value = getattr(reading, field)
        if value != default:
            carried |= bit
            if row.setdefault(column, value) != value:
                agrees = False
    row[event.t_ns] = reading.t_ns
    if agrees:
        row[event.ordinal] = ordinal
        row[event.carried] = carried
    return agrees


def _events(row: Fields, source: str) -> Iterator[tuple[int, RequestEvent]]:
    """The events that were merged into a row, each with its ordinal."""
    for event in EVENTS.values():
        if row[event.ordinal] is not None:
            carried = row[event.carried]
            fields = {
                field: row[column]
                for bit, field, _, column in event.fields
                if carried & bit
            }
            reading = RequestEvent(
                source=source,
                t_ns=row[event.t_ns],
                kind=event.kind,
                vantage=event.vantage,
                request_id=row["request_id"],
                **fields,
            )
            yield row[event.ordinal], reading
