"""Chrome's trace-event JSON, written incrementally; Perfetto and others open it.

Timestamps are microseconds of the host's monotonic clock with nanosecond digits, so
that traces of other tools on that host line up.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping
from enum import IntEnum
from typing import IO, Any

import msgspec

from inferwatch.printing.export.tables import EVERYWHEN, TimeRange
from inferwatch.visible import ascii_json

Args = Mapping[str, object]


class TrackOrder(IntEnum):
    """The order of track groups from top to bottom; equal ones by creation."""

    COUNTERS = 0
    GPU = 1
    HOST = 2
    SESSION = 3
    CLOCKS = 4
    STEPS = 5
    REQUESTS = 6
    CLIENT = 7
    PROFILES = 8


MOST_GROUPS = 100_000
"""Most groups at one position of this order."""


class TraceTrack:
    """A track for events: a process and, except for counters, a thread in it."""

    __slots__ = ("pid", "tid")

    def __init__(self, pid: int, tid: int) -> None:
        self.pid = pid
        self.tid = tid


class Trace:
    """A trace file being written; tracks are named when they are created."""

    def __init__(
        self, out: IO[bytes], start_monotonic_ns: int, span: TimeRange = EVERYWHEN
    ) -> None:
        self._out = out
        self._start_ns = start_monotonic_ns
        self._span = span
        self._encoder = msgspec.json.Encoder()
        self._pids: dict[str, int] = {}
        self._ids = 0
        self._empty = True

    def open(self, about: Args) -> None:
        """Begin the file with its metadata."""
        head = self._encode({"displayTimeUnit": "ms", "otherData": about})
        self._out.write(head[:-1] + b',"traceEvents":[')

    def close(self) -> None:
        self._out.write(b"\n]}\n")

    def process(self, name: str, place: TrackOrder) -> int:
        """The id of a group of tracks, created when first used."""
        pid = self._pids.get(name)
        if pid is None:
            pid = self._pids[name] = self._next_id()
            track = TraceTrack(pid, pid)
            self._named("process_name", track, name)
            order = place * MOST_GROUPS + len(self._pids)
            self._event("M", "process_sort_index", track, {"sort_index": order})
        return pid

    def track(self, group: str, name: str, place: TrackOrder) -> TraceTrack:
        pid = self.process(group, place)
        track = TraceTrack(pid, self._next_id())
        self._named("thread_name", track, name)
        self._event("M", "thread_sort_index", track, {"sort_index": track.tid})
        return track

    def shows(self, start_ns: int, end_ns: int) -> bool:
        first, last = self._span
        return (first is None or end_ns >= first) and (last is None or start_ns <= last)

    def slice(
        self, track: TraceTrack, name: str, span_ns: tuple[int, int], args: Args
    ) -> None:
        start_ns, end_ns = span_ns
        if self.shows(start_ns, end_ns):
            duration = self._micros(max(end_ns - start_ns, 0))
            timing = {"ts": self._at(start_ns), "dur": duration}
            self._event("X", name, track, args, timing)

    def instant(self, track: TraceTrack, name: str, t_ns: int, args: Args) -> None:
        if self.shows(t_ns, t_ns):
            timing = {"ts": self._at(t_ns), "s": "t"}
            self._event("i", name, track, args, timing)

    def flow(
        self, track: TraceTrack, phase: str, name: str, t_ns: int, flow: str
    ) -> None:
        """An arrow from one slice to another: its start, or its end."""
        if self.shows(t_ns, t_ns):
            timing = {"ts": self._at(t_ns), "id": flow, "cat": "flow", "bp": "e"}
            self._event(phase, name, track, {}, timing)

    def rename(self, track: TraceTrack, kind: str, name: str) -> None:
        """Give a track or its group another name: viewers take the last one."""
        self._named(kind, track, name)

    def counter(self, pid: int, name: str, t_ns: int, values: Args) -> None:
        if self.shows(t_ns, t_ns):
            self._event("C", name, TraceTrack(pid, pid), values, {"ts": self._at(t_ns)})

    def _next_id(self) -> int:
        """A unique id, as some viewers identify threads by id alone."""
        self._ids += 1
        return self._ids

    def _named(self, kind: str, track: TraceTrack, name: str) -> None:
        self._event("M", kind, track, {"name": name})

    def _event(
        self,
        phase: str,
        name: str,
        track: TraceTrack,
        args: Args,
        timing: Mapping[str, Any] | None = None,
    ) -> None:
        event = {"ph": phase, "name": name, "pid": track.pid, "tid": track.tid}
        event |= timing or {}
        event["args"] = {k: v for k, v in args.items() if v is not None}
        text = self._encode(event)
        self._out.write(b"\n" if self._empty else b",\n")
        self._out.write(text)
        self._empty = False

    def _encode(self, what: object) -> bytes:
        """Encode as ASCII JSON, so that no terminal obeys control sequences in it."""
        return ascii_json(self._encoder.encode(what))

    def _at(self, t_ns: int) -> msgspec.Raw:
        return self._micros(self._start_ns + t_ns)

    @staticmethod
    def _micros(duration_ns: int) -> msgspec.Raw:
        """Microseconds with nanosecond digits, which a double would round."""
        micros, rest = divmod(abs(duration_ns), 1_000)
        sign = b"-" if duration_ns < 0 else b""  # before the host's clock began
        return msgspec.Raw(b"%b%d.%03d" % (sign, micros, rest))


class Slots:
    """Tracks of a group that are reused when the slice on them has ended.

    There are only as many as overlap, if they are taken in the order in which their
    slices end: of the free tracks, the one that became free last is used.
    """

    def __init__(self, trace: Trace, group: str, place: TrackOrder) -> None:
        self._trace, self._group, self._place = trace, group, place
        self._free: list[tuple[int, int]] = []
        """When each track became free, and its number; sorted."""
        self._tracks: list[TraceTrack] = []

    def take(self, start_ns: int, end_ns: int) -> TraceTrack:
        """A track that is free during the given time."""
        place = bisect_right(self._free, (start_ns, len(self._tracks))) - 1
        number = self._free.pop(place)[1] if place >= 0 else len(self._tracks)
        if number == len(self._tracks):
            name = f"slot {number + 1}"
            self._tracks.append(self._trace.track(self._group, name, self._place))
        insort(self._free, (max(end_ns, start_ns), number))
        return self._tracks[number]
