"""The list of tables by kind of reading, and the simpler tables themselves.

A new kind of reading needs a migration (``schema_N.sql``) and a line in the list; one
that does not fit a row of plain columns also needs its own class.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from itertools import accumulate, zip_longest
from operator import sub
from typing import Any, get_args

import msgspec

from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    CanaryRequest,
    ClientSample,
    ClockAnchor,
    Contact,
    Endpoint,
    EngineInfo,
    EngineSettings,
    GpuInfo,
    GpuProcesses,
    GpuSample,
    HostInfo,
    HostSample,
    KvCacheEvents,
    LiveLimits,
    LoadEvent,
    MeasuredPeak,
    MetricsPage,
    ModelConfig,
    Prices,
    ProcessUsage,
    Profile,
    PromptBlocks,
    RequestRecord,
    RequestSpan,
    ServerInfo,
    Stacks,
    StartupStage,
    Tick,
    TokenTimes,
    Totals,
    WatchedSlo,
    WorkerMemory,
)
from inferwatch.record.file.sqlite import START, Cursor
from inferwatch.record.tables.engine_samples import EngineSampleTable
from inferwatch.record.tables.load_plans import NoteTable
from inferwatch.record.tables.requests import RequestReadingTable
from inferwatch.record.tables.steps import StepTable
from inferwatch.record.tables.table import (
    KEY,
    BlobColumn,
    ExportedRows,
    Key,
    Numbered,
    PlainTable,
    ReadingTable,
    Row,
    RowBatch,
    SessionPart,
    StructColumns,
    insert_sql,
    select_sql,
)

LIMIT_ROWS = PlainTable("live_limits", LiveLimits, renamed={"by": "changed_by"})


def every_table() -> list[ReadingTable[Any]]:
    """A table for each kind of reading; the last takes what does not fit the others."""
    other = OtherReadingsTable()
    return [
        StepTable(),
        RequestReadingTable(other),
        PlainTable(
            "client_requests",
            RequestRecord,
            part=SessionPart.CLIENT,
            moment="intended_ns",
            renamed={"index": "number"},
        ),
        TokenTimesTable(),
        PlainTable("load_events", LoadEvent, part=SessionPart.CLIENT),
        PlainTable("client_samples", ClientSample, part=SessionPart.CLIENT),
        PlainTable(
            "canary_requests",
            CanaryRequest,
            part=SessionPart.CLIENT,
            moment="sent_ns",
        ),
        PlainTable("engines", EngineInfo),
        PlainTable("endpoints", Endpoint),
        PlainTable("totals", Totals),
        PlainTable("servers", ServerInfo),
        PlainTable("contacts", Contact),
        EngineSampleTable(),
        metrics_pages_table(),
        PlainTable(
            "request_spans",
            RequestSpan,
            part=SessionPart.REQUESTS,
            moment="arrived_ns",
        ),
        PackedTable(
            "kv_cache_events",
            KvCacheEvents,
            lists=("stored", "parents", "removed"),
            column="hashes",
            counts={"stored_blocks": "stored", "removed_blocks": "removed"},
            unpacked=ExportedRows(
                name="kv_cache_blocks",
                columns=("t_ns", "rank", "change", "block", "parent"),
                rows=_cached_blocks,
                moment="t_ns",
            ),
        ),
        PackedTable(
            "block_maps",
            BlockMap,
            lists=(
                "holders",
                "groups",
                "kept",
                "blocks",
                "gone",
                "cached",
                "uncached",
            ),
            gaps=("blocks", "cached", "uncached"),
            column="changes",
            unpacked=ExportedRows(
                name="block_changes",
                columns=(
                    "t_ns",
                    "rank",
                    "sequence",
                    "change",
                    "block",
                    "member",
                    "kv_group",
                    "place",
                ),
                rows=_map_changes,
                moment="t_ns",
            ),
        ),
        PackedTable(
            "prompt_blocks",
            PromptBlocks,
            lists=("hashes", "places", "plain"),
            column="hashes",
            renamed={"ordinal": "member"},
            unpacked=ExportedRows(
                name="prompt_content",
                columns=("t_ns", "rank", "member", "place", "content"),
                rows=_content,
                moment="t_ns",
            ),
        ),
        PlainTable("watched_slos", WatchedSlo),
        PlainTable("hosts", HostInfo, part=SessionPart.GPU),
        HostSampleTable(),
        PlainTable("gpus", GpuInfo, part=SessionPart.GPU, renamed={"index": "number"}),
        PlainTable("gpu_samples", GpuSample, part=SessionPart.GPU),
        PlainTable("gpu_processes", GpuProcesses, part=SessionPart.GPU),
        PlainTable("model_configs", ModelConfig),
        PlainTable("engine_settings", EngineSettings),
        LIMIT_ROWS,
        PlainTable("worker_memory", WorkerMemory),
        PlainTable("stacks", Stacks),
        PlainTable("profiles", Profile, renamed={"by": "asked_by"}),
        PlainTable("startup_stages", StartupStage),
        PlainTable("measured_peaks", MeasuredPeak, part=SessionPart.GPU),
        PlainTable("prices", Prices),
        PlainTable("clock_anchors", ClockAnchor),
        NoteTable(),
        PlainTable("ticks", Tick),
        other,
    ]


class HostSampleTable(ReadingTable[HostSample]):
    """Host samples: one row each, and one per process in it."""

    name = "host_samples"
    kind = HostSample
    part = SessionPart.GPU
    with_it = ("host_processes",)

    SAMPLE = StructColumns(HostSample, without=("processes",))
    PROCESS = StructColumns(ProcessUsage)
    INSERT = insert_sql(name, (*KEY, *SAMPLE.names))
    SELECT = select_sql(name, ("source", *SAMPLE.names))
    INSERT_PROCESS = insert_sql(
        "host_processes", ("session", "ordinal", "place", *PROCESS.names)
    )
    SELECT_PROCESSES = (
        f"SELECT {', '.join(PROCESS.names)} FROM host_processes "  # noqa: S608  our names
        "WHERE session = ? AND ordinal = ? ORDER BY place"
    )

    def add(self, batch: RowBatch, key: Key, reading: HostSample) -> None:
        """Add the sample's row and those of its processes."""
        batch.add(self.INSERT, key + self.SAMPLE.values(reading))
        for place, usage in enumerate(reading.processes):
            row = (*key[:2], place, *self.PROCESS.values(usage))
            batch.add(self.INSERT_PROCESS, row)

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        after: Cursor = START,
    ) -> Iterator[Numbered]:
        """Samples, each with its processes by a query of its own, as they are rare."""
        samples = connection.execute(self.SELECT, (session, after.ordinal))
        for ordinal, source, *values in samples:
            rows = connection.execute(self.SELECT_PROCESSES, (session, ordinal))
            processes = [ProcessUsage(**self.PROCESS.restore(row)) for row in rows]
            fields = self.SAMPLE.restore(values)
            yield (
                ordinal,
                HostSample(source=sources[source], processes=processes, **fields),
            )


def _gaps(blob: bytes) -> list[int]:
    return msgspec.json.decode(zlib.decompress(blob), type=list[int])


def _chunks(times: TokenTimes) -> Iterator[Row]:
    """Export rows: the arrival time of each chunk of a client request."""
    t_ns = times.first_ns
    for chunk, gap_ns in enumerate((0, *times.gaps_ns)):
        t_ns += gap_ns
        yield times.external_id, chunk, t_ns, times.by_kernel


class TokenTimesTable(ReadingTable[TokenTimes]):
    """One row per client request, with the gaps between chunks as compressed JSON."""

    name = "token_times"
    kind = TokenTimes
    part = SessionPart.CLIENT
    blobs = (
        BlobColumn(table=name, column="gaps_ns", reader=_gaps, quick=zlib.decompress),
    )
    unpacked = ExportedRows(
        name=name,
        columns=("external_id", "chunk", "t_ns", "by_kernel"),
        rows=_chunks,
        moment="first_ns",
    )

    COLUMNS = StructColumns(TokenTimes, without=("gaps_ns",))
    INSERT = insert_sql(name, (*KEY, *COLUMNS.names, "gaps", "gaps_ns"))
    SELECT = select_sql(name, ("source", "gaps_ns", *COLUMNS.names))

    def add(self, batch: RowBatch, key: Key, reading: TokenTimes) -> None:
        blob = zlib.compress(msgspec.json.encode(reading.gaps_ns))
        values = self.COLUMNS.values(reading)
        batch.add(self.INSERT, (*key, *values, len(reading.gaps_ns), blob))

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        after: Cursor = START,
    ) -> Iterator[Numbered]:
        rows = connection.execute(self.SELECT, (session, after.ordinal))
        for ordinal, source, blob, *values in rows:
            gaps_ns = msgspec.json.decode(zlib.decompress(blob))
            fields = self.COLUMNS.restore(values)
            yield (
                ordinal,
                TokenTimes(source=sources[source], gaps_ns=gaps_ns, **fields),
            )


class PackedTable(ReadingTable[Any]):
    """One row per reading, with its lists as one compressed JSON object."""

    def __init__(  # noqa: PLR0913 - a declaration
        self,
        name: str,
        kind: type[AnyReading],
        *,
        lists: tuple[str, ...],
        column: str,
        unpacked: ExportedRows,
        gaps: tuple[str, ...] = (),
        counts: Mapping[str, str] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Declare the columns, and how lists are packed.

        ``gaps``: lists, or lists of lists, stored as differences between neighbours,
        which compress well. ``counts``: columns with the length of a list, for SQL
        queries.
        """
        self.name, self.kind, self.unpacked = name, kind, unpacked
        self._lists = msgspec.json.Decoder(_struct_of(kind, lists))
        self.blobs = (
            BlobColumn(
                table=name, column=column, reader=self._unpacked, quick=zlib.decompress
            ),
        )
        self._make, self._names, self._counts = kind, lists, dict(counts or {})
        self._gaps = gaps
        self._columns = StructColumns(kind, without=lists, renamed=renamed or {})
        self.enums = self._columns.enums
        self._insert = insert_sql(
            name, (*KEY, *self._columns.names, *self._counts, column)
        )
        self._select = select_sql(name, ("source", column, *self._columns.names))

    def add(self, batch: RowBatch, key: Key, reading: AnyReading) -> None:
        lists = {
            name: content for name in self._names if (content := getattr(reading, name))
        }
        counts = [len(lists.get(name, ())) for name in self._counts.values()]
        lists |= {name: _gaps_of(lists[name]) for name in self._gaps if name in lists}
        blob = zlib.compress(msgspec.json.encode(lists))
        values = self._columns.values(reading)
        batch.add(self._insert, (*key, *values, *counts, blob))

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        after: Cursor = START,
    ) -> Iterator[Numbered]:
        rows = connection.execute(self._select, (session, after.ordinal))
        for ordinal, source, blob, *values in rows:
            fields = self._columns.restore(values) | self._unpacked(blob)
            yield ordinal, self._make(source=sources[source], **fields)

    def _unpacked(self, blob: bytes) -> dict[str, Any]:
        lists = msgspec.structs.asdict(self._lists.decode(zlib.decompress(blob)))
        return lists | {name: _summed(lists[name]) for name in self._gaps}


def _page_lines(page: MetricsPage) -> Iterator[Row]:
    """Export rows: the lines of a whole page, or the values that changed since."""
    about = (page.t_ns, page.whole)
    for place, text in enumerate(page.lines):
        yield *about, place, text
    for place, text in zip(page.places, page.values, strict=False):
        yield *about, place, text


def metrics_pages_table() -> PackedTable:
    return PackedTable(
        "metrics_pages",
        MetricsPage,
        lists=("lines", "places", "values"),
        gaps=("places",),
        column="content",
        unpacked=ExportedRows(
            name="metrics_page_lines",
            columns=("t_ns", "whole", "place", "text"),
            rows=_page_lines,
            moment="t_ns",
        ),
    )


def _gaps_of(numbers: list[Any]) -> list[Any]:
    """Differences of each number to the one before, the first to 0."""
    if numbers and isinstance(numbers[0], list):
        return [_gaps_of(each) for each in numbers]
    return [*map(sub, numbers, (0, *numbers))]


def _summed(gaps: list[Any]) -> list[Any]:
    if gaps and isinstance(gaps[0], list):
        return [_summed(each) for each in gaps]
    return [*accumulate(gaps)]


def _struct_of(kind: type[AnyReading], lists: tuple[str, ...]) -> type[msgspec.Struct]:
    """A Struct of a reading's list fields, to validate a blob that may be damaged."""
    by_name = {field.name: field for field in msgspec.structs.fields(kind)}
    fields: list[Any] = [
        (name, by_name[name].type, msgspec.field(default_factory=list))
        for name in lists
    ]
    return msgspec.defstruct(f"ListsOf{kind.__name__}", fields)


def _cached_blocks(events: KvCacheEvents) -> Iterator[Row]:
    """Export rows: blocks stored, each with its parent, and blocks removed."""
    about = (events.t_ns, events.rank)
    for block in events.removed:
        yield *about, "removed", block, None
    for block, parent in zip_longest(events.stored, events.parents):
        yield *about, "stored", block, parent


def _map_changes(blocks: BlockMap) -> Iterator[Row]:
    """Yield a row for each change that a block map reports.

    In this order: blocks whose cached content was evicted, requests that gave up their
    blocks, changed block lists of requests, blocks with new cached content. A list has
    a row with the number of its unchanged first blocks, and a row for each block after.
    """
    about = (blocks.t_ns, blocks.rank, blocks.sequence)
    for block in blocks.uncached:
        yield *about, "uncached", block, None, None, None
    for holder in blocks.gone:
        yield *about, "gone", None, holder, None, None
    lists = zip_longest(blocks.holders, blocks.groups, blocks.kept, blocks.blocks)
    for holder, group, kept, ids in lists:
        at, group = kept or 0, group or 0  # noqa: PLW2901 - all are of the first
        yield *about, "kept", None, holder, group, at
        for place, block in enumerate(ids or (), at):
            yield *about, "held", block, holder, group, place
    for block in blocks.cached:
        yield *about, "cached", block, None, None, None


def _content(blocks: PromptBlocks) -> Iterator[Row]:
    """Export rows: the hash of each block of a request."""
    places = blocks.places or range(len(blocks.hashes))
    for place, content in zip(places, blocks.hashes, strict=False):
        yield blocks.t_ns, blocks.rank, blocks.ordinal, place, content


def _as_json(reading: AnyReading) -> Iterator[Row]:
    fields = msgspec.to_builtins(reading)
    fields.pop("source", None)
    yield fields.pop("type"), msgspec.json.encode(fields).decode()


class OtherReadingsTable(ReadingTable[AnyReading]):
    """Readings that fit no other table, serialised as on the wire, so none is lost."""

    KNOWN = frozenset(kind.__name__ for kind in get_args(AnyReading))
    """Other kinds were written by a newer inferwatch."""
    DECODER = msgspec.msgpack.Decoder(AnyReading)

    name = "other_readings"
    blobs = (BlobColumn(table=name, column="reading", reader=DECODER.decode),)
    unpacked = ExportedRows(
        name=name, columns=("kind", "fields_json"), rows=_as_json, on_request=False
    )

    INSERT = insert_sql(name, (*KEY, "kind", "reading"))
    SELECT = select_sql(name, ("source", "kind", "reading"))

    def add(self, batch: RowBatch, key: Key, reading: AnyReading) -> None:
        bare = msgspec.structs.replace(reading, source="")
        row = (*key, type(reading).__name__, msgspec.msgpack.encode(bare))
        batch.add(self.INSERT, row)

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        after: Cursor = START,
    ) -> Iterator[Numbered]:
        rows = connection.execute(self.SELECT, (session, after.ordinal))
        for ordinal, source, kind, blob in rows:
            if kind not in self.KNOWN:
                continue
            bare = self.DECODER.decode(blob)
            yield ordinal, msgspec.structs.replace(bare, source=sources[source])
