"""Reads a trace that Nsight Systems recorded, as ``nsys export --type sqlite`` has it.

One file holds all processes that were recorded: each that executed kernels is a worker
of its own, by device. Tables and columns are those of the "SQLite Export Schema
Reference" in NVIDIA's documentation. Versions differ in columns, and what was not
recorded has no table. Moments count from the start of the recording.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inferwatch.errors import ReadFailedError, StorageError
from inferwatch.profiles.trace_file import (
    LONGEST_NAME,
    MOST_EVENTS,
    MOST_NAMES,
    Category,
    Column,
    Numbering,
    ProfileTrace,
)

MAGIC = b"SQLite format 3\x00"
ROWS = 1 << 16
FAILURES = {sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
"""Of the system and not of the file."""
"""Read at once."""
LONGEST_NS = 1 << 60
"""Nothing real lasts longer, or is further from the start of the recording."""
COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
"""By ``copyKind`` (``CUpti_ActivityMemcpyKind``)."""
WHOLE_GRAPHS = (
    "CUDA graphs were recorded whole, so their kernels are not told: record with "
    "--cuda-graph-trace=node"
)
NO_START = "it does not say when it was recorded: no step of the engine is found in it"
_VERSION = re.compile(r"_v\d+$")
"""CUDA's version, which ends the name of a call."""
_PROCESS_BITS = 24
"""The lowest bits of a ``globalTid`` are its thread, those above its process."""
Name = Callable[[Any, "_Export"], str]


class _Table(NamedTuple):
    """A table of events, and what makes a name of its column ``label``."""

    category: Category
    label: str
    named: Name
    where: str = "1"


def _by_id(label: object, export: "_Export") -> str:
    return export.string(label) if isinstance(label, int) else str(label or "")


_ON_DEVICE = {
    "CUPTI_ACTIVITY_KIND_KERNEL": _Table(Category.KERNEL, "demangledName", _by_id),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _Table(
        Category.KERNEL, "graphId", lambda *_: "CUDA graph"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _Table(
        Category.COPY, "copyKind", lambda kind, _: COPIES.get(kind, "Memcpy")
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": _Table(Category.COPY, "0", lambda *_: "Memset"),
}
_ON_HOST = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": _Table(
        Category.RUNTIME, "nameId", lambda name, of: _VERSION.sub("", _by_id(name, of))
    ),
    # Ranges that were pushed and popped, or started and ended; all others are moments.
    "NVTX_EVENTS": _Table(
        Category.ANNOTATION,
        "coalesce(text, textId)",
        _by_id,
        where='eventType IN (59, 60) AND "end" IS NOT NULL',
    ),
}
_TABLES = _ON_DEVICE | _ON_HOST


class _Events(NamedTuple):
    """Events of all tables, in columns."""

    begin_ns: Column
    duration_ns: Column
    process: Column
    place: Column
    correlation: Column
    label: Column
    category: Column


def is_nsys(path: Path) -> bool:
    """Whether a file is a database, by how it begins."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_nsys(
    path: Path, on_progress: Callable[[float], None] | None = None
) -> list[ProfileTrace]:
    """Read a trace of each worker; ``on_progress`` hears which share was read.

    Raises:
        StorageError: it cannot be read, or is no export of Nsight Systems.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.text_factory = lambda text: text.decode(errors="replace")
            database.execute("PRAGMA trusted_schema = OFF")
            return _Export(path, database).traces(on_progress)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in FAILURES:
            raise ReadFailedError(f"{path}: {error}") from error
        raise StorageError(f"{path}: it is no export of Nsight Systems: {error}") from (
            error
        )


class _Export:
    """An export that is open, read table by table."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path, self._database = path, database
        self._strings: dict[int, str] = {}
        self._labels, self._places = Numbering(), Numbering()
        # Views are left out: they may be anything.
        found = database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' "
            "AND sql NOT LIKE 'CREATE VIRTUAL%'"
        )
        self._tables = {name for (name,) in found}

    def traces(self, on_progress: Callable[[float], None] | None) -> list[ProfileTrace]:
        there = [name for name in _TABLES if name in self._tables]
        counts = {name: self._count(name) for name in there}
        total, read = sum(counts.values()), 0
        if total > MOST_EVENTS:
            raise StorageError(f"{self._path} has more than {MOST_EVENTS:,} events")
        parts = []
        for name in there:
            for rows in self._rows(name):
                parts.append(self._part(name, rows))
                read += len(rows)
                if len(self._labels) > MOST_NAMES:
                    raise StorageError(
                        f"{self._path} has more than {MOST_NAMES:,} names"
                    )
                if on_progress is not None:
                    on_progress(read / total)
        workers = self._workers(parts)
        if not workers:
            raise StorageError(
                f"{self._path}: it is no export of Nsight Systems with kernels: was "
                "CUDA recorded (--trace=cuda,nvtx)?"
            )
        workers[0].skipped = total - read
        return workers

    def string(self, number: int) -> str:
        """Return a text by its number; empty where there is none."""
        if number not in self._strings:
            found = self._database.execute(
                "SELECT value FROM StringIds WHERE id = ?", (number,)
            ).fetchone()
            self._strings[number] = str(found[0]) if found else ""
        return self._strings[number]

    def _count(self, name: str) -> int:
        query = f"SELECT count(*) FROM {name} WHERE {_TABLES[name].where}"  # noqa: S608 - ours
        count: int = self._database.execute(query).fetchone()[0]
        return count

    def _rows(self, name: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield events of a table; those that are none are left out."""
        table, is_device = _TABLES[name], name in _ON_DEVICE
        whose = ("globalPid", "deviceId", "streamId")
        if not is_device:
            whose = ("globalTid",) * 3
        launched = "NULL" if name == "NVTX_EVENTS" else "correlationId"
        numbers = ", ".join(
            f"CAST(coalesce({each}, -1) AS INTEGER)" for each in (*whose, launched)
        )
        cursor = self._database.execute(
            f'SELECT start, "end" - start, {numbers}, {table.label} FROM {name} '  # noqa: S608 - ours
            f"WHERE {table.where} AND typeof(start) = 'integer' "
            'AND typeof("end") = \'integer\' AND "end" >= start '
            f"AND start BETWEEN -{LONGEST_NS} AND {LONGEST_NS} "
            f'AND "end" <= {LONGEST_NS}'
        )
        while rows := cursor.fetchmany(ROWS):
            yield rows

    def _part(self, name: str, rows: list[tuple[Any, ...]]) -> _Events:
        table, is_device = _TABLES[name], name in _ON_DEVICE
        begin, lasted, process, first, second, correlation, label = zip(
            *rows, strict=True
        )
        places: Iterable[tuple[int, int]] = map(_thread, first)
        if is_device:
            places = zip(first, second, strict=True)
        return _Events(
            begin_ns=np.array(begin, dtype=np.int64),
            duration_ns=np.array(lasted, dtype=np.int64),
            process=np.array(process, dtype=np.int64) >> _PROCESS_BITS,
            place=np.array([self._places[each] for each in places], dtype=np.int32),
            correlation=np.array(correlation, dtype=np.int64),
            label=np.array(
                [
                    self._labels[table.named(each, self)[:LONGEST_NAME]]
                    for each in label
                ],
                dtype=np.int32,
            ),
            category=np.full(len(rows), table.category, dtype=np.int8),
        )

    def _workers(self, parts: list[_Events]) -> list[ProfileTrace]:
        """Return a trace of each process that executed something, by device."""
        if not parts:
            return []
        events = _Events(*map(np.concatenate, zip(*parts, strict=True)))
        names, places = list(self._labels), list(self._places)
        is_device = np.isin(events.category, [Category.KERNEL, Category.COPY])
        by_device = sorted(
            (min(places[each][0] for each in set(events.place[mine].tolist())), process)
            for process in set(events.process[is_device].tolist())
            if (mine := is_device & (events.process == process)).any()
        )
        begun_ns, found = self._begun_ns(), []
        for rank, (_, process) in enumerate(by_device):
            mine = events.process == process
            trace = ProfileTrace(self._path.name)
            trace.rank = rank
            trace.begin_ns = events.begin_ns[mine] + (begun_ns or 0)
            trace.duration_ns, trace.correlation, trace.label, trace.category = (
                each[mine]
                for each in (
                    events.duration_ns,
                    events.correlation,
                    events.label,
                    events.category,
                )
            )
            trace.thread = events.place[mine]
            trace.names, trace.threads = names, places
            trace.events = int(mine.sum())
            share = trace.events / len(events.begin_ns)
            trace.size_bytes = round(self._path.stat().st_size * share)
            trace.problems = [NO_START] * (begun_ns is None)
            if "CUDA graph" in names:
                trace.problems.append(WHOLE_GRAPHS)
            found.append(trace)
        return found

    def _begun_ns(self) -> int | None:
        """Return when the recording began by the wall clock; None if it is not told."""
        if "TARGET_INFO_SESSION_START_TIME" not in self._tables:
            return None
        found = self._database.execute(
            "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
        ).fetchone()
        is_told = found is not None and isinstance(found[0], int)
        return found[0] if is_told and 0 < found[0] < LONGEST_NS << 1 else None


def _thread(global_tid: int) -> tuple[int, int]:
    """Return process and thread."""
    bits = (1 << _PROCESS_BITS) - 1
    return global_tid >> _PROCESS_BITS & bits, global_tid & bits
