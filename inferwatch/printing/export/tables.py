"""The tables of a session to export: those of the recording, and unpacked blobs.

Columns are read from the file itself, so columns of a newer schema are exported as
well. Column names contain the units; unknown values are None.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from heapq import merge
from operator import attrgetter, itemgetter
from typing import Any

from collectors.contract.readings import (
    AnyReading,
    ClientSample,
    EventKind,
    HostSample,
    LoadEvent,
    LoadPlanned,
    Note,
    RequestEvent,
    RequestRecord,
    TokenTimes,
)
from inferwatch.errors import StorageError
from inferwatch.metrics.causes.cause import TTFT_CAUSES
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request_index import MOST_ROWS
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.export.recording import EVERY, Recording
from inferwatch.printing.summary.session import load_runs
from inferwatch.record.file.sqlite import RECOVER
from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.table import (
    UNREADABLE,
    ExportedRows,
    ReadingTable,
    SessionPart,
    readable,
)

# Why each request was late, one row per request: parts of its TTFT in seconds.
#
# None of this is recorded: the Model computes it from the readings, as for
# screens.

REQUEST_CAUSES = "request_causes"
FACTS = (
    "arrived_ns",
    "request_id",
    "external_id",
    "state",
    "class_name",
    "lora",
    "priority",
    "header",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "ttft_s",
    "cause",
)
COLUMNS = (
    *FACTS,
    *(f"{cause.name.lower()}_s" for cause in TTFT_CAUSES),
    "itl_max_s",
    "itl_cause",
)
LOOK_EVERY = MOST_ROWS // 4
"""The Model keeps only the latest ended requests, so it is read this often."""


def request_causes(recording: Recording) -> Iterator[tuple[Any, ...]]:
    """The causes of each request's latency, roughly by arrival.

    Requests that have not ended are included.

    Raises:
        StorageError: the recording is damaged.
    """
    try:
        yield from _cause_rows(recording)
    except UNREADABLE as error:
        raise StorageError(
            f"the record is damaged: why requests were late cannot be told; {RECOVER}"
        ) from error


def _cause_rows(recording: Recording) -> Iterator[tuple[Any, ...]]:
    model, ended = Model(), 0
    by_key: dict[str, RequestRow] = {}
    for reading in recording.readings():
        model.fold(reading)
        if isinstance(reading, RequestEvent) and reading.kind is EventKind.FINISHED:
            ended += 1
            if ended % LOOK_EVERY == 0:
                by_key, before = _rows(model, recording), by_key
                yield from (_row(before[key]) for key in before if key not in by_key)
    by_key, before = _rows(model, recording), by_key
    yield from (_row(before[key]) for key in before if key not in by_key)
    yield from map(_row, by_key.values())


def _rows(model: Model, recording: Recording) -> dict[str, RequestRow]:
    """All requests that the Model has, the earliest arrival first."""
    now_ns = recording.session.duration_ns
    snapshot = model.snapshot(now_ns, SnapshotQuery(Window.TEN_SECONDS, client=False))
    return {row.key: row for row in reversed(snapshot.requests)}


def _row(row: RequestRow) -> tuple[Any, ...]:
    """A request's facts, the parts of its TTFT by cause, and its longest gap.

    A cause that took no time is 0, or None if the TTFT was not split.
    """
    parts = dict(row.ttft_parts)
    nothing = 0.0 if parts else None
    return (
        *(getattr(row, name) for name in FACTS),
        *(parts.get(cause, nothing) for cause in TTFT_CAUSES),
        row.itl_max_s,
        row.itl_cause,
    )


Row = tuple[Any, ...]
LOAD_RUNS = "load_runs"
RUN_COLUMNS = (
    "number",
    "run_id",
    "state",
    "verdict",
    "reasons",
    "cause",
    "asked_per_s",
    "users",
    "achieved_per_s",
    "done_per_s",
    "output_tokens_per_s",
    "sent",
    "succeeded",
    "failed",
    "aborted",
    "warmup",
    "held_back",
)
RUN_LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
RUN_STATISTICS = ("n", "mean", "p50", "p90", "p95", "p99", "max")
LOAD_READINGS = (
    ClientSample,
    HostSample,
    LoadEvent,
    LoadPlanned,
    RequestRecord,
    TokenTimes,
)
"""Readings from which a load run's numbers and its client's verdict are computed."""
TimeRange = tuple[int | None, int | None]
"""First and last wanted moment in session time; None is no bound."""
EVERYWHEN: TimeRange = (None, None)
SOURCES = "sources"
"""Not a table of its own: other tables contain the sources' names."""
INTERNAL = ("_ordinal", "_carried")
"""Suffixes of columns that only replay needs."""
COUNTED = {"steps": "steps", "step_members": "steps", "requests": "requests"}
"""Tables whose number of rows the session row knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTable:
    """A table to export; its rows are read when they are needed."""

    name: str
    columns: tuple[str, ...]
    rows: Callable[[], Iterator[Row]]


def tables(
    recording: Recording,
    what: SessionPart,
    *,
    token_times: bool = False,
    span: TimeRange = EVERYWHEN,
) -> list[ExportTable]:
    """The tables of a part of the session.

    Request tables without rows are left out, unless all are empty.
    """
    result = [_table(recording, name, span) for name in _names(recording, what)]
    if what is SessionPart.REQUESTS:  # from a probe or from traces
        result = [each for each in result if any(each.rows())] or result[:1]
    for table, unpacked in _unpacked():
        is_wanted = token_times or not unpacked.on_request
        if is_wanted and what in {SessionPart.ALL, table.part}:
            result.append(_table_in_blobs(recording, table, unpacked, span))
    if what in {SessionPart.ALL, SessionPart.CLIENT}:
        result.append(_load_runs(recording))
    if what in {SessionPart.ALL, SessionPart.CAUSES}:
        result.append(_request_causes(recording, span))
    return result


def _request_causes(recording: Recording, span: TimeRange) -> ExportTable:
    """Causes of requests that arrived in the span, computed from all readings."""
    arrived = COLUMNS.index("arrived_ns")

    def rows() -> Iterator[Row]:
        every = request_causes(recording)
        return (row for row in every if _inside(row[arrived], span))

    return ExportTable(name=REQUEST_CAUSES, columns=COLUMNS, rows=rows)


def _load_runs(recording: Recording) -> ExportTable:
    """Each load run in one row: client verdict, counts and latencies.

    All are of the whole run, as the verdict is.
    """
    latencies = [
        (metric, statistic) for metric in RUN_LATENCIES for statistic in RUN_STATISTICS
    ]

    def rows() -> Iterator[Row]:
        model = Model()
        for reading in _load_readings(recording):
            model.fold(reading)
        now_ns = recording.session.duration_ns
        view = model.snapshot(
            now_ns, SnapshotQuery(Window.SESSION, requests=False)
        ).client
        for run in load_runs(view):
            summary = {**run, "reasons": "; ".join(run["reasons"]) or None}
            yield (
                *(summary[column] for column in RUN_COLUMNS),
                *(summary[metric][statistic] for metric, statistic in latencies),
            )

    names = (
        f"{m.removesuffix('_s')}_{s}{'' if s == 'n' else '_s'}" for m, s in latencies
    )
    return ExportTable(name=LOAD_RUNS, columns=(*RUN_COLUMNS, *names), rows=rows)


def _load_readings(recording: Recording) -> Iterator[AnyReading]:
    """The readings of load runs in order of receipt."""
    readings = merge(
        *(
            readable(table.read(recording.connection, number, recording.sources))
            for table in every_table()
            if table.kind in {*LOAD_READINGS, Note, None}
            for number in [recording.session.session]
        ),
        key=itemgetter(0),
    )
    return (reading for _, reading in readings if isinstance(reading, LOAD_READINGS))


def _unpacked() -> list[tuple[ReadingTable[Any], ExportedRows]]:
    """Tables whose rows hold blobs to be exported as rows; optional ones come last."""
    pairs = [(table, table.unpacked) for table in every_table() if table.unpacked]
    return sorted(pairs, key=lambda each: each[1].on_request)


def _names(recording: Recording, what: SessionPart) -> list[str]:
    """The names of the recording's tables that belong to the part."""
    query = (
        "SELECT t.name FROM sqlite_master t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table' AND c.name = 'session' AND c.type = 'INTEGER' "
        "ORDER BY t.rowid"
    )
    names = [name for (name,) in recording.connection.execute(query)]
    in_blobs = {SOURCES, *(unpacked.name for _, unpacked in _unpacked())}
    return [
        name
        for name in names
        if name not in in_blobs
        and name.isidentifier()  # it becomes a file name
        and what in {SessionPart.ALL, _part(name)}
    ]


def _part(name: str) -> SessionPart:
    """The session part that a table belongs to.

    A table of a later version is of GPUs if its name says so, else of all parts.
    """
    return _parts().get(
        name, SessionPart.GPU if name.startswith("gpu") else SessionPart.ALL
    )


@cache
def _parts() -> dict[str, SessionPart]:
    return {
        name: table.part
        for table in every_table()
        for name in (table.name, *table.with_it)
    }


@cache
def _moments() -> dict[str, str]:
    return {table.name: table.moment for table in every_table()}


def _table(recording: Recording, name: str, span: TimeRange) -> ExportTable:
    """A table of the recording, including computed columns (``table_xinfo``)."""
    info = recording.connection.execute(f"PRAGMA table_xinfo({name})").fetchall()
    columns = tuple(
        column
        for _, column, kind, *_ in info
        if not column.endswith(INTERNAL)
        and (column != "session" or name == "sessions")
        and kind != "BLOB"
    )
    keys = [
        column for _, column, _, _, _, key, _ in info if key and column != "session"
    ]
    where, bounds = _within(name, columns, span)
    query = (
        f"SELECT {', '.join(columns)} FROM {name} "  # noqa: S608  the file's own names
        f"WHERE session = ?{where} ORDER BY {', '.join(keys) or 'session'}"
    )
    values = (recording.session.session, *bounds)
    expected = _expected(recording, name)

    def rows() -> Iterator[Row]:
        named = _named(recording, columns)
        cursor = recording.connection.execute(query, values)
        for done, row in enumerate(cursor):
            if done % EVERY == 0:
                recording.progress.at(name, done, expected)
            yield named(row)

    return ExportTable(name=name, columns=columns, rows=rows)


def _within(
    name: str, columns: tuple[str, ...], span: TimeRange
) -> tuple[str, list[int]]:
    """The SQL condition for the span; empty for tables without a time column."""
    moment = _moments().get(name, "t_ns")
    if moment == "t_ns" and moment not in columns:
        return "", []
    bounds = [
        (f" AND {moment} {sign} ?", t_ns)
        for sign, t_ns in zip((">=", "<="), span, strict=True)
        if t_ns is not None
    ]
    return "".join(text for text, _ in bounds), [t_ns for _, t_ns in bounds]


def _named(recording: Recording, columns: tuple[str, ...]) -> Callable[[Row], Row]:
    """A function that replaces a row's source number by its name."""
    if "source" not in columns:
        return lambda row: row
    place, sources = columns.index("source"), recording.sources
    return lambda row: (*row[:place], sources[row[place]], *row[place + 1 :])


def _table_in_blobs(
    recording: Recording,
    table: ReadingTable[Any],
    unpacked: ExportedRows,
    span: TimeRange,
) -> ExportTable:
    """The table of the rows that ``table`` stores in blobs."""

    def rows() -> Iterator[Row]:
        expected = _expected(recording, unpacked.name)
        number = recording.session.session
        read = table.read(recording.connection, number, recording.sources)
        for done, (ordinal, reading) in enumerate(readable(read)):
            if done % EVERY == 0:
                recording.progress.at(unpacked.name, done, expected)
            if moment is None or _inside(moment(reading), span):
                for row in unpacked.rows(reading):
                    yield ordinal, reading.source, *row

    moment = attrgetter(unpacked.moment) if unpacked.moment else None
    columns = ("ordinal", "source", *unpacked.columns)
    return ExportTable(name=unpacked.name, columns=columns, rows=rows)


def _expected(recording: Recording, name: str) -> int | None:
    return getattr(recording.session, COUNTED[name]) if name in COUNTED else None


def _inside(t_ns: int, span: TimeRange) -> bool:
    first, last = span
    return (first is None or t_ns >= first) and (last is None or t_ns <= last)
