"""Tracks of profiles: the events of their traces, with times as all the others have.

They are copied one by one, as a trace may be larger than memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from inferwatch.errors import StorageError
from inferwatch.formatting import counted
from inferwatch.metrics.steps.profiles import ProfileLog, SessionProfile
from inferwatch.printing.export.perfetto.trace_format import (
    Trace,
    TraceTrack,
    TrackOrder,
)
from inferwatch.profiles.trace_file import (
    LARGEST_US,
    LONGEST_NAME,
    TraceEvent,
    raw_events,
    trace_head,
)
from inferwatch.record.file.trace_folder import SQLITE, traces_in

NS_PER_US = 1_000
FLOWS = frozenset("stf")
"""Phases of the arrows from a launch to its kernel."""
MOST_TRACKS = 1_000
"""Of one trace; a worker has some ten threads and streams."""
LONGEST_TRACK_NAME = 200
"""Characters of the name of a process or thread."""


class _CopiedEvent(TraceEvent, gc=False):
    id: int | str | None = None
    args: dict[str, Any] | None = None


_EVENT = msgspec.json.Decoder(_CopiedEvent)


class ProfileTracks:
    """The traces of a session's profiles, written after everything else."""

    def __init__(self, trace: Trace, folder: Path) -> None:
        self._trace, self._folder = trace, folder
        self._log = ProfileLog(most=None)
        self.profile = self._log.take

    def write(self) -> None:
        """Write the events; of a trace that is gone or damaged, a mark that says so."""
        for profile in self._log.every:
            if not profile.ended or profile.failed:
                continue
            found = traces_in(self._folder, profile.prefixes) or traces_in(
                Path(profile.directory), profile.prefixes
            )
            for path in found:
                if path.suffix == SQLITE:
                    self._mark(profile, f"{path.name}: Nsight Systems shows it")
                else:
                    self._copy(profile, path)
            if not found:
                self._mark(profile, "its traces are gone")

    def _copy(self, profile: SessionProfile, path: Path) -> None:
        copy = _Copy(self._trace, f"profile {profile.number}, {_worker(profile, path)}")
        try:
            base_ns = trace_head(path).baseTimeNanoseconds
            offset_ns = base_ns - profile.realtime_offset_ns
            for raw in raw_events(path):
                copy.event(raw, offset_ns)
        except StorageError as error:
            self._mark(profile, str(error))
        for each in copy.left_out():
            self._mark(profile, f"{path.name}: {each}")

    def _mark(self, profile: SessionProfile, why: str) -> None:
        name = f"profile {profile.number}"
        track = self._trace.track(name, "traces", TrackOrder.PROFILES)
        about = {"prefix": profile.key}
        self._trace.instant(track, why, profile.ended[-1].t_ns, about)


def _worker(profile: SessionProfile, path: Path) -> str:
    """Return which worker wrote a trace; of several engine ranks, also of which."""
    told = next(e for e in profile.began if path.name.startswith(f"{e.prefix}_"))
    worker = path.name.removeprefix(f"{told.prefix}_").partition(".")[0]
    return f"engine rank {told.rank}, {worker}" if len(profile.began) > 1 else worker


class _Copy:
    """Copies the events of one trace onto tracks of its own."""

    def __init__(self, trace: Trace, group: str) -> None:
        self._trace, self._group = trace, group
        self._tracks: dict[tuple[object, object], TraceTrack] = {}
        self._names: dict[tuple[object, object], str] = {}
        self._unread = self._beyond = 0

    def left_out(self) -> Iterator[str]:
        """Say what was not copied."""
        if self._unread:
            yield f"{counted(self._unread, 'event').strip()} could not be read"
        if self._beyond:
            events = counted(self._beyond, "event").strip()
            yield f"{events} left out: it has more than {MOST_TRACKS:,} tracks"

    def event(self, raw: bytes, offset_ns: int) -> None:
        try:
            event = _EVENT.decode(raw)
            if event.ph == "M":
                self._name(event)
            elif event.ph == "X" or event.ph in FLOWS:
                self._timed(event, offset_ns)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._unread += 1

    def _timed(self, event: _CopiedEvent, offset_ns: int) -> None:
        if not (0 <= event.ts < LARGEST_US and 0 <= event.dur < LARGEST_US):
            self._unread += 1
            return
        track = self._track(event)
        if track is None:
            self._beyond += 1
            return
        name = _cut(event.name, LONGEST_NAME)
        begin_ns = round(event.ts * NS_PER_US) + offset_ns
        if event.ph == "X":
            end_ns = begin_ns + round(event.dur * NS_PER_US)
            args = {**(event.args or {}), "category": event.cat}
            self._trace.slice(track, name, (begin_ns, end_ns), args)
        else:
            flow = f"{self._group} {event.id}"
            self._trace.flow(track, event.ph, name, begin_ns, flow)

    def _track(self, event: _CopiedEvent) -> TraceTrack | None:
        """Return the track of an event; None for one too many."""
        key = event.pid, event.tid
        track = self._tracks.get(key)
        if track is None and len(self._tracks) < MOST_TRACKS:
            process = self._names.get((event.pid, None), str(event.pid))
            group = f"{self._group}: {_cut(process, LONGEST_TRACK_NAME)}"
            name = self._names.get(key, str(event.tid))
            name = _cut(name, LONGEST_TRACK_NAME)
            track = self._trace.track(group, name, TrackOrder.PROFILES)
            self._tracks[key] = track
        return track

    def _name(self, event: _CopiedEvent) -> None:
        """Take a name of a process or thread; Kineto writes them after its events."""
        name = str((event.args or {}).get("name", "")).strip()
        name = _cut(name, LONGEST_TRACK_NAME)
        if not name or len(self._names) > 2 * MOST_TRACKS:
            return
        if event.name == "thread_name":
            self._names[event.pid, event.tid] = name
            track = self._tracks.get((event.pid, event.tid))
            if track is not None:
                self._trace.rename(track, "thread_name", name)
        elif event.name == "process_name":
            self._names[event.pid, None] = name


def _cut(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
