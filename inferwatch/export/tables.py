"""What of a session becomes tables: those of the record, and its blobs as rows.

Columns are read from the file itself, so that one that a newer schema brings is there
without a line here. Their names carry the units; unknown is None.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from collectors.readings import AnyReading, Step, TokenTimes
from inferwatch.export.recording import EVERY, Recording
from inferwatch.storage.tables.other_readings import OtherTable
from inferwatch.storage.tables.steps import StepTable
from inferwatch.storage.tables.table import Table as StorageTable
from inferwatch.storage.tables.table import readable
from inferwatch.storage.tables.token_times import TokenTimesTable

Row = tuple[Any, ...]
Span = tuple[int | None, int | None]
"""First and last moment wanted, in session time; None: no bound."""
EVERYWHEN: Span = (None, None)


class What(StrEnum):
    """A part of a session."""

    REQUESTS = "requests"
    STEPS = "steps"
    GPU = "gpu"
    """GPUs and the host's processes."""
    NOTES = "notes"
    CLIENT = "client"
    """What the load generator did and saw."""
    ALL = "all"


PARTS = {
    "requests": What.REQUESTS,
    "steps": What.STEPS,
    "host_samples": What.GPU,
    "host_processes": What.GPU,
    "notes": What.NOTES,
    "bookmarks": What.NOTES,
    "client_requests": What.CLIENT,
    "client_samples": What.CLIENT,
    "load_events": What.CLIENT,
}
"""Tables that are not here come with ``all`` alone, but for those of GPUs."""
NOT_ROWS = {"sources", "step_members", "token_times", "other_readings"}
"""Sources stand as names in the other tables, blobs are taken apart below."""
INTERNAL = ("_ordinal", "_carried")
"""Ends of the columns that only replay reads."""
MOMENTS = {
    "steps": "end_ns",
    "requests": "coalesce(arrived_ns, added_ns)",
    "client_requests": "intended_ns",
}
COUNTED = {"steps", "requests"}
"""The session's row knows how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A name, the names of the columns, and the rows, read as they are asked for."""

    name: str
    columns: tuple[str, ...]
    rows: Callable[[], Iterator[Row]]


def tables(
    recording: Recording,
    what: What,
    *,
    token_times: bool = False,
    span: Span = EVERYWHEN,
) -> list[Table]:
    """The tables of a part of the session."""
    found = [_table(recording, name, span) for name in _names(recording, what)]
    if what is What.ALL:
        found.append(_others(recording))
    if token_times and what in {What.STEPS, What.ALL}:
        found.append(_step_members(recording, span))
    if token_times and what in {What.CLIENT, What.ALL}:
        found.append(_chunks(recording, span))
    return found


def _names(recording: Recording, what: What) -> list[str]:
    """Those of the record that hold sessions and belong to the part."""
    query = (
        "SELECT t.name FROM sqlite_master t, pragma_table_info(t.name) c "
        "WHERE t.type = 'table' AND c.name = 'session' ORDER BY t.rowid"
    )
    names = [name for (name,) in recording.connection.execute(query)]
    return [
        name
        for name in names
        if name not in NOT_ROWS
        and name.isidentifier()  # it becomes the name of a file
        and what in {What.ALL, _part(name)}
    ]


def _part(name: str) -> What:
    return What.GPU if name.startswith("gpu") else PARTS.get(name, What.ALL)


def _table(recording: Recording, name: str, span: Span) -> Table:
    """A table of the record; ``table_xinfo`` knows the computed columns too."""
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
    expected = getattr(recording.session, name) if name in COUNTED else None

    def rows() -> Iterator[Row]:
        named = _named(recording, columns)
        cursor = recording.connection.execute(query, values)
        for done, row in enumerate(cursor):
            if done % EVERY == 0:
                recording.progress.at(name, done, expected)
            yield named(row)

    return Table(name=name, columns=columns, rows=rows)


def _within(name: str, columns: tuple[str, ...], span: Span) -> tuple[str, list[int]]:
    """The condition that keeps what lies in the span; some tables have no moments."""
    moment = MOMENTS.get(name, "t_ns" if "t_ns" in columns else None)
    if moment is None:
        return "", []
    bounds = [
        (f" AND {moment} {sign} ?", t_ns)
        for sign, t_ns in zip((">=", "<="), span, strict=True)
        if t_ns is not None
    ]
    return "".join(text for text, _ in bounds), [t_ns for _, t_ns in bounds]


def _named(recording: Recording, columns: tuple[str, ...]) -> Callable[[Row], Row]:
    """Says the source by its name."""
    if "source" not in columns:
        return lambda row: row
    place, sources = columns.index("source"), recording.sources
    return lambda row: (*row[:place], sources[row[place]], *row[place + 1 :])


def _others(recording: Recording) -> Table:
    """Readings without a row elsewhere, such as a request's second finish."""

    def rows() -> Iterator[Row]:
        for ordinal, reading in _read(recording, OtherTable()):
            fields = msgspec.to_builtins(reading)
            source, kind = fields.pop("source", ""), fields.pop("type")
            yield ordinal, source, kind, msgspec.json.encode(fields).decode()

    return Table(
        name="other_readings",
        columns=("ordinal", "source", "kind", "fields_json"),
        rows=rows,
    )


def _step_members(recording: Recording, span: Span) -> Table:
    """Who was in which step: the engine's token times."""

    def rows() -> Iterator[Row]:
        expected = recording.session.steps
        for done, (ordinal, step) in enumerate(_read(recording, StepTable())):
            if done % EVERY == 0:
                recording.progress.at("step_members", done, expected)
            if isinstance(step, Step) and _inside(step.end_ns, span):
                about = (ordinal, step.source, step.rank, step.index, step.end_ns)
                preempted = {*step.preempted}
                present = zip(step.members, step.scheduled, step.produced, strict=True)
                for member, scheduled, produced in present:
                    yield *about, member, scheduled, produced, int(member in preempted)
                for member in step.preempted:
                    if member not in step.members:
                        yield *about, member, 0, 0, 1

    columns = ("ordinal", "source", "rank", "step", "end_ns", "member")
    counts = ("scheduled_tokens", "output_tokens", "preempted")
    return Table(name="step_members", columns=(*columns, *counts), rows=rows)


def _chunks(recording: Recording, span: Span) -> Table:
    """When each chunk of a client request came."""

    def rows() -> Iterator[Row]:
        for ordinal, times in _read(recording, TokenTimesTable()):
            if isinstance(times, TokenTimes) and _inside(times.first_ns, span):
                t_ns = times.first_ns
                about = (ordinal, times.source, times.external_id)
                for chunk, gap_ns in enumerate((0, *times.gaps_ns)):
                    t_ns += gap_ns
                    yield *about, chunk, t_ns, times.by_kernel

    columns = ("ordinal", "source", "external_id", "chunk", "t_ns", "by_kernel")
    return Table(name="token_times", columns=columns, rows=rows)


def _inside(t_ns: int, span: Span) -> bool:
    first, last = span
    return (first is None or t_ns >= first) and (last is None or t_ns <= last)


def _read(
    recording: Recording, table: StorageTable[Any]
) -> Iterator[tuple[int, AnyReading]]:
    number = recording.session.session
    return readable(table.read(recording.connection, number, recording.sources))
