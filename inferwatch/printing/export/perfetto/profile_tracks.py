"""Tracks of profiles: the events of their traces, with times as all the others have.

They are copied one by one, as a trace may be larger than memory.
"""

from pathlib import Path
from typing import Any

import msgspec

from inferwatch.errors import StorageError
from inferwatch.metrics.steps.profiles import ProfileLog, SessionProfile
from inferwatch.printing.export.perfetto.trace_format import (
    Trace,
    TraceTrack,
    TrackOrder,
)
from inferwatch.profiles.trace_file import raw_events, trace_head
from inferwatch.record.file.trace_folder import traces_in

NS_PER_US = 1_000
FLOWS = frozenset("stf")
"""Phases of the arrows from a launch to its kernel."""


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    id: int | str | None = None
    args: dict[str, Any] | None = None


_EVENT = msgspec.json.Decoder(_Event)


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
                if path.suffix != ".sqlite":
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

    def event(self, raw: bytes, offset_ns: int) -> None:
        try:
            event = _EVENT.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return  # as viewers do
        if event.ph == "M":
            self._name(event)
            return
        if event.ph != "X" and event.ph not in FLOWS:
            return
        begin_ns = round(event.ts * NS_PER_US) + offset_ns
        track = self._track(event)
        if event.ph == "X":
            end_ns = begin_ns + round(event.dur * NS_PER_US)
            args = {**(event.args or {}), "category": event.cat}
            self._trace.slice(track, event.name, (begin_ns, end_ns), args)
        else:
            flow = f"{self._group} {event.id}"
            self._trace.flow(track, event.ph, event.name, begin_ns, flow)

    def _track(self, event: _Event) -> TraceTrack:
        key = event.pid, event.tid
        track = self._tracks.get(key)
        if track is None:
            group = f"{self._group}: {self._names.get((event.pid, None), event.pid)}"
            name = self._names.get(key, str(event.tid))
            track = self._trace.track(group, name, TrackOrder.PROFILES)
            self._tracks[key] = track
        return track

    def _name(self, event: _Event) -> None:
        """Take a name of a process or thread; Kineto writes them after its events."""
        name = str((event.args or {}).get("name", "")).strip()
        if not name:
            return
        if event.name == "thread_name":
            self._names[event.pid, event.tid] = name
            track = self._tracks.get((event.pid, event.tid))
            if track is not None:
                self._trace.rename(track, "thread_name", name)
        elif event.name == "process_name":
            self._names[event.pid, None] = name
