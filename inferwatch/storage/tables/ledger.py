"""All tables together: readings into rows, rows into readings again."""

import sqlite3
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import Any

import msgspec

from collectors.readings import (
    AnyReading,
    ClientSample,
    ClockAnchor,
    Endpoint,
    EngineInfo,
    GpuInfo,
    HostSample,
    LoadEvent,
    Note,
    RequestEvent,
    RequestRecord,
    Step,
    Tick,
    TokenTimes,
    Totals,
)
from inferwatch.metrics.load.plan import plan_of
from inferwatch.storage.checkpoints.checkpoints import Checkpoint
from inferwatch.storage.place import START, Place
from inferwatch.storage.recording.inbox import Put
from inferwatch.storage.tables.batch import Batch
from inferwatch.storage.tables.host_samples import HostSampleTable
from inferwatch.storage.tables.other_readings import OtherTable
from inferwatch.storage.tables.requests import RequestTable
from inferwatch.storage.tables.steps import StepTable
from inferwatch.storage.tables.table import (
    Numbered,
    PlainTable,
    SourceNames,
    Table,
    readable,
)
from inferwatch.storage.tables.token_times import TokenTimesTable

UNWRITABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError)
"""What turning a reading into a row may end in, when it holds what no row can."""
INSERT_SOURCE = "INSERT INTO sources (session, source, name) VALUES (?, ?, ?)"
SELECT_SOURCES = "SELECT source, name FROM sources WHERE session = ?"


def tables(other: OtherTable) -> dict[type[AnyReading], Table[Any]]:
    """Where each kind of reading is kept."""
    return {
        Step: StepTable(),
        RequestEvent: RequestTable(other),
        RequestRecord: PlainTable(
            "client_requests", RequestRecord, {"index": "number"}
        ),
        TokenTimes: TokenTimesTable(),
        LoadEvent: PlainTable("load_events", LoadEvent),
        ClientSample: PlainTable("client_samples", ClientSample),
        EngineInfo: PlainTable("engines", EngineInfo),
        Endpoint: PlainTable("endpoints", Endpoint),
        Totals: PlainTable("totals", Totals),
        HostSample: HostSampleTable(),
        GpuInfo: PlainTable("gpus", GpuInfo),
        ClockAnchor: PlainTable("clock_anchors", ClockAnchor),
        Note: PlainTable("notes", Note),
        Tick: PlainTable("ticks", Tick),
    }


class Ledger:
    """Turns the readings of one session into rows; remembers what spans batches."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._sources: dict[str, int] = {}
        self._other = OtherTable()
        self._tables = tables(self._other)
        self._requests: RequestTable = self._tables[RequestEvent]  # type: ignore[assignment]  # see tables()

    def batch(self, readings: Iterable[Put]) -> Batch:
        """The rows of these readings."""
        batch = Batch()
        for ordinal, reading in readings:
            if isinstance(reading, Checkpoint):
                batch.checkpoints.append((reading, self._requests.open_requests()))
                continue
            key = (self._session, ordinal, self._source(batch, reading.source))
            table = self._tables.get(type(reading), self._other)
            try:
                table.add(batch, key, reading)
            except UNWRITABLE:
                batch.lost += 1
                continue
            batch.readings += 1
            if isinstance(reading, EngineInfo | Endpoint):
                batch.model = reading.model
            elif isinstance(reading, Note) and (plan := plan_of(reading)):
                batch.model = plan[0].model or batch.model
        for table in self._tables.values():
            table.complete(batch)
        return batch

    def _source(self, batch: Batch, name: str) -> int:
        number = self._sources.get(name)
        if number is None:
            number = self._sources[name] = len(self._sources)
            batch.add(INSERT_SOURCE, (self._session, number, name))
        return number


class Reader:
    """The readings of a session after a place, in order of receipt, in bounded memory.

    The caller holds a transaction open, so that all tables show the same moment. At a
    row that makes no sense, reading on raises StorageError.
    """

    def __init__(
        self, connection: sqlite3.Connection, session: int, place: Place = START
    ) -> None:
        sources = SourceNames(connection.execute(SELECT_SOURCES, (session,)).fetchall())
        other = OtherTable()
        every = tables(other)
        self._requests: RequestTable = every[RequestEvent]  # type: ignore[assignment]  # see tables()
        self._readings = merge(
            *(
                readable(table.read(connection, session, sources, place))
                for table in (*every.values(), other)
            ),
            key=itemgetter(0),
        )

    def __iter__(self) -> Iterator[Numbered]:
        """They can be had once."""
        return self._readings

    def place(self, ordinal: int, *, growing: bool = False) -> Place:
        """After the last reading that was taken; the session may be growing."""
        unread = self._requests.unread
        return Place(ordinal, unread.open_after(ordinal, growing=growing))


def recorded(
    connection: sqlite3.Connection, session: int, place: Place = START
) -> Iterator[Numbered]:
    """The readings of a session, as :class:`Reader` gives them."""
    return iter(Reader(connection, session, place))
