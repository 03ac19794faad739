"""Reads a trace of torch's profiler (Kineto) as a stream, never all of it at once.

The file is one JSON object with the list ``traceEvents``, or that list alone, perhaps
compressed. It is cut into pieces of whole events: at the last ``}`` and ``{`` between
which a piece is a list of events by itself. A boundary within an event, or within a
string, leaves brackets open and is none.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferwatch.errors import ReadFailedError, StorageError

PIECE_BYTES = 4 << 20
LONGEST_EVENT = 32 << 20
"""Bytes in which an event ends; a file without an end of one there is no trace."""
LONGEST_NAME = 4096
"""Characters of a name that are kept; templates of CUDA have up to some thousand."""
MOST_NAMES = 1_000_000
MOST_RANKS = 1_000_000
"""Of workers; what is beyond is no rank."""
LONGEST_HEAD = 16 << 20
MOST_BYTES = 16 << 30
"""Of a decompressed trace: more is a bomb."""
MOST_EVENTS = 50_000_000
TRIES = 64
"""Boundaries tried in a piece, from its end."""
LARGEST_US = 3e15
"""Microseconds of a moment or duration, up to the year 2065: moment, base time and
duration together are no more than 64 bits of nanoseconds."""
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
Column = NDArray[Any]
Event = TypeVar("Event")


class Category(IntEnum):
    """Kinds of events that are read; others are counted alone."""

    OPERATOR = 0
    """An operator that the host called."""
    ANNOTATION = 1
    """A range that the program named: vLLM's steps."""
    KERNEL = 2
    COPY = 3
    """By the GPU, sets of memory included."""
    RUNTIME = 4
    """The host calls the GPU's runtime or driver."""
    PYTHON = 5
    """A Python function, where stacks were recorded."""


CATEGORIES = {
    "cpu_op": Category.OPERATOR,
    "user_annotation": Category.ANNOTATION,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.COPY,
    "gpu_memset": Category.COPY,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "python_function": Category.PYTHON,
}
"""By Kineto's names (libkineto ``ActivityType.cpp``)."""


class _Args(msgspec.Struct, gc=False):
    correlation: int | None = None
    stream: int | str | None = None


class TraceEvent(msgspec.Struct, gc=False):
    """What every reader takes of an event, by Chrome's names."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    """Microseconds, as ``dur``."""
    dur: float = 0.0


class _Event(TraceEvent, gc=False):
    args: _Args | None = None


class _Distributed(msgspec.Struct):
    rank: int | None = None


class TraceHead(msgspec.Struct):
    """What stands in a trace beside its events."""

    baseTimeNanoseconds: int = 0  # noqa: N815 - Kineto's name
    """Wall clock to which ``ts`` is added; 0 where ``ts`` is whole, as of old."""
    distributedInfo: _Distributed | None = None  # noqa: N815 - likewise


_PIECE = msgspec.json.Decoder(list[_Event])
_LOOSE = msgspec.json.Decoder(list[msgspec.Raw])
_ONE = msgspec.json.Decoder(_Event)
_HEAD = msgspec.json.Decoder(TraceHead)


class ProfileTrace:
    """The events of one trace in columns, in the order of the file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rank: int | None = None
        self.size_bytes = 0
        """Uncompressed."""
        self.events = 0
        self.skipped = 0
        """Events that are no events."""
        self.begin_ns: Column = np.empty(0, np.int64)
        """Wall clock."""
        self.duration_ns: Column = np.empty(0, np.int64)
        self.category: Column = np.empty(0, np.int8)
        self.label: Column = np.empty(0, np.int32)
        """Position in ``names``."""
        self.thread: Column = np.empty(0, np.int32)
        """Position in ``threads``."""
        self.correlation: Column = np.empty(0, np.int64)
        """What ties a kernel to the call that launched it; -1: nothing."""
        self.names: list[str] = []
        self.threads: list[tuple[Any, Any]] = []
        """Process and thread, or device and stream, of each."""
        self.problems: list[str] = []
        """What it does not tell, as text for users."""
        self._columns: list[tuple[Column, ...]] = []
        self._labels, self._threads = Numbering(), Numbering()

    def add(self, events: list[_Event]) -> None:
        """Add the events that are of a kind that is read."""
        self.events += len(events)
        kept = [each for each in events if each.ph == "X" and each.cat in CATEGORIES]
        begin, lasted = (
            np.array([getattr(each, name) for each in kept], dtype=np.float64)
            for name in ("ts", "dur")
        )
        good = (begin >= 0) & (begin < LARGEST_US) & (lasted >= 0)
        good &= lasted < LARGEST_US
        if not good.all():
            self.skipped += int(len(kept) - good.sum())
            kept = [each for each, is_good in zip(kept, good, strict=True) if is_good]
            begin, lasted = begin[good], lasted[good]
        # Beside a base time a double holds nanoseconds. Microseconds of the wall clock,
        # as of old, it holds to a quarter of one.
        self._columns.append(
            (
                np.rint(begin * 1_000).astype(np.int64),
                np.rint(lasted * 1_000).astype(np.int64),
                np.array([CATEGORIES[each.cat] for each in kept], dtype=np.int8),
                np.array(
                    [self._labels[each.name[:LONGEST_NAME]] for each in kept],
                    dtype=np.int32,
                ),
                np.array(
                    [self._threads[each.pid, each.tid] for each in kept], dtype=np.int32
                ),
                np.array([_correlation(each.args) for each in kept], dtype=np.int64),
            )
        )

    @property
    def names_so_far(self) -> int:
        return len(self._labels)

    def close(self, base_ns: int) -> None:
        """Join the columns; moments become those of the wall clock."""
        columns = zip(*self._columns, strict=True) if self._columns else _NO_COLUMNS
        joined = [np.concatenate(each) for each in columns]
        self._columns.clear()
        self.begin_ns, self.duration_ns, self.category = joined[:3]
        self.label, self.thread, self.correlation = joined[3:]
        self.begin_ns += base_ns
        self.names, self.threads = list(self._labels), list(self._threads)


_NO_COLUMNS: Any = (([], []),) * 6


class Numbering(dict[Any, int]):
    """Numbers what is looked up in it, in the order in which it comes."""

    def __missing__(self, key: object) -> int:
        number = self[key] = len(self)
        return number


def _correlation(args: _Args | None) -> int:
    found = None if args is None else args.correlation
    return -1 if found is None or not 0 <= found < 1 << 62 else found


def read_trace(
    path: Path, on_progress: Callable[[float], None] | None = None
) -> ProfileTrace:
    """Read a trace; ``on_progress`` hears which share of the file was read.

    Raises:
        StorageError: it cannot be read, or is no trace.
    """
    trace = ProfileTrace(path.name)
    pieces = _Pieces(path, _typed, on_progress)
    for events, bad in pieces:
        trace.add(events)
        trace.events, trace.skipped = trace.events + bad, trace.skipped + bad
        if trace.events > MOST_EVENTS:
            raise StorageError(f"{path} has more than {MOST_EVENTS:,} events")
        if trace.names_so_far > MOST_NAMES:
            raise StorageError(f"{path} has more than {MOST_NAMES:,} names")
    trace.close(pieces.head.baseTimeNanoseconds)
    trace.size_bytes = pieces.size_bytes
    distributed = pieces.head.distributedInfo
    rank = distributed.rank if distributed is not None else None
    trace.rank = rank if rank is not None and 0 <= rank < MOST_RANKS else None
    return trace


def raw_events(path: Path) -> Iterator[bytes]:
    """Yield each event as the JSON that stands in the file.

    Raises:
        StorageError: it cannot be read, or is no trace.
    """
    for events, _ in _Pieces(path, _raw):
        yield from map(bytes, events)


def trace_head(path: Path) -> TraceHead:
    """Read what stands beside the events, which takes as long as all of it.

    Raises:
        StorageError: it cannot be read, or is no trace.
    """
    pieces = _Pieces(path, _raw)
    for _ in pieces:
        pass
    return pieces.head


def _raw(piece: bytes) -> tuple[list[msgspec.Raw], int]:
    return _LOOSE.decode(piece), 0


def _typed(piece: bytes) -> tuple[list[_Event], int]:
    """Return the events of a piece, and how many are none."""
    try:
        return _PIECE.decode(piece), 0
    except msgspec.ValidationError:
        found = []
        raw = _LOOSE.decode(piece)
        for each in raw:
            with suppress(msgspec.ValidationError, UnicodeDecodeError):
                found.append(_ONE.decode(each))
        return found, len(raw) - len(found)


class _Pieces(Generic[Event]):
    """The list of events in pieces: whole events, and how many were none."""

    def __init__(
        self,
        path: Path,
        decode: Callable[[bytes], tuple[list[Event], int]],
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self.head = TraceHead()
        """Complete once all pieces were taken."""
        self.size_bytes = 0
        self._path, self._decode, self._on_progress = path, decode, on_progress

    def __iter__(self) -> Iterator[tuple[list[Event], int]]:
        try:
            with self._path.open("rb") as file:
                total = max(self._path.stat().st_size, 1)
                is_packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                unpacked: IO[bytes] = gzip.open(file) if is_packed else file  # type: ignore[assignment]  # noqa: SIM115 - of an open file
                yield from self._of(unpacked, lambda: file.tell() / total)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise self._error(f"it is damaged: {error}") from error
        except OSError as error:
            why = error.strerror or error
            raise ReadFailedError(f"{self._path}: {why}") from error
        except RecursionError as error:
            raise self._error("its events are nested too deeply") from error

    def _of(
        self, file: IO[bytes], share: Callable[[], float]
    ) -> Iterator[tuple[list[Event], int]]:
        head, rest = self._head(file)
        while True:
            read = self._read(file)
            rest += read
            if self._on_progress is not None:
                self._on_progress(min(share(), 1.0))
            if not read:
                break
            found, rest = self._cut(rest)
            if found is not None:
                yield found
        yield from self._end(head, rest)

    def _read(self, file: IO[bytes]) -> bytes:
        read = file.read(PIECE_BYTES)
        self.size_bytes += len(read)
        if self.size_bytes > MOST_BYTES:
            raise self._error(f"it is larger than {MOST_BYTES >> 30} GiB")
        return read

    def _head(self, file: IO[bytes]) -> tuple[bytes, bytes]:
        """Return what stands before the list of events, and what of it was read."""
        begun = b""
        while len(begun) < LONGEST_HEAD:
            read = self._read(file)
            begun += read
            if begun[:64].lstrip()[:1] == b"[":
                return b"", begun.lstrip()[1:]
            found = _LIST.search(begun)
            if found is not None:
                return begun[: found.start()], begun[found.end() :]
            if not read:
                break
        raise self._error("it is no trace of torch's profiler: it has no traceEvents")

    def _cut(self, text: bytes) -> tuple[tuple[list[Event], int] | None, bytes]:
        """Cut after the last whole event; None where none ends."""
        end = len(text)
        for _ in range(TRIES):
            close = text.rfind(b"}", 0, end)
            if close < 0:
                break
            found = _BOUNDARY.match(text, close)
            if found is not None:
                events = self._events(text[: close + 1])
                if events is not None:
                    return events, text[found.end() - 1 :]
            end = close
        if len(text) > LONGEST_EVENT:
            raise self._error("one of its events has no end")
        return None, text

    def _events(self, text: bytes) -> tuple[list[Event], int] | None:
        """Decode events; None if they do not end here."""
        try:
            return self._decode(b"[" + text + b"]")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def _end(self, head: bytes, rest: bytes) -> Iterator[tuple[list[Event], int]]:
        """Yield the last events, and read what stands beside all of them."""
        end = len(rest)
        for _ in range(TRIES):
            end = rest.rfind(b"]", 0, end)
            found = self._events(rest[:end]) if end >= 0 else None
            if found is not None:
                yield found
                break
        else:
            raise self._error("it was cut short: its last event has no end")
        if not head:
            return
        tail = rest[end + 1 :].strip()
        try:
            self.head = _HEAD.decode(head + b'"traceEvents":[]' + tail)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._error(f"what stands around its events: {error}") from error
        base_ns = self.head.baseTimeNanoseconds
        if not 0 <= base_ns < 1 << 61:
            raise self._error(f"it has a base time that cannot be: {base_ns}")

    def _error(self, why: str) -> StorageError:
        return StorageError(f"{self._path}: {why}")
