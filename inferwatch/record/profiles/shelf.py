"""The profiles of a session with their traces: which can be read, and what they tell.

Of a live session and of a recorded one alike: who watches says what is to be shown, and
where the session's traces are kept.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Protocol

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step
from inferwatch.errors import StorageError, UsageError
from inferwatch.feed import Recall, TakenProfile
from inferwatch.metrics.floor.rank import StepNeeds
from inferwatch.metrics.steps.engines import Key
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.profiles.floors import class_costs
from inferwatch.profiles.reading import read_profile
from inferwatch.profiles.report import (
    VERSION,
    ClassCosts,
    ProfileReport,
    ReportJob,
    StepSpan,
)
from inferwatch.record.file.trace_folder import (
    NAMED,
    REPORT_END,
    move_traces,
    traces_in,
)

AROUND_NS = NS_PER_S
"""Steps this long before and after a profile are joined to its traces, too."""
MOST_REPORTS = 4
LOOK_AGAIN_S = 2.0
"""How long it counts whether traces are there."""
OnProgress = Callable[[float], None]
Reader = Callable[[ReportJob, OnProgress | None], Awaitable[ProfileReport]]


class ProfileSource(Protocol):
    """The session whose profiles are shown."""

    @property
    def profiles_shown(self) -> Sequence[SessionProfile]:
        """Those up to the moment shown."""
        ...

    @property
    def profiles_known(self) -> Sequence[SessionProfile]:
        """All of the session so far."""
        ...

    @property
    def step_needs(self) -> dict[Key, StepNeeds]:
        """What steps cost, by source and rank."""
        ...

    @property
    def steps_recall(self) -> Recall:
        """Looks up steps up to now."""
        ...

    @property
    def traces_folder(self) -> Path | None:
        """Where the session's traces are kept; None where nothing is recorded."""
        ...


class KeptReport(msgspec.Struct, frozen=True):
    """What was read of traces, and of which."""

    sizes: dict[str, int]
    """In bytes, by the name of the file."""
    report: ProfileReport


class ProfileShelf:
    """Finds the traces of profiles, and reads them once."""

    def __init__(
        self,
        source: ProfileSource,
        read: Reader = read_profile,
    ) -> None:
        self._source, self._read = source, read
        self._reports: dict[str, KeptReport] = {}
        """The latest that were asked for, by key."""
        self._looked: dict[str, tuple[float, str | None]] = {}
        """When traces were looked for, and why they are lost; by key."""
        self._held_up_ns: dict[str, int] = {}
        self._turn = asyncio.Lock()

    @property
    def taken(self) -> list[TakenProfile]:
        """The profiles up to the moment shown that are over, oldest first."""
        return [
            _taken(each, ended_ns, self.held_up_ns(each), self._lost(each))
            for each in self._source.profiles_shown
            if (ended_ns := each.ended_ns) is not None and not each.failed
        ]

    def held_up_ns(self, profile: SessionProfile) -> int | None:
        """Return how long writing its traces held up the engine.

        If vLLM counted the steps itself it wrote them within a step, which is looked up
        as the profile is read: None until then.
        """
        held_up_ns = self._held_up_ns.get(profile.key)
        if held_up_ns is None and profile.why is not None:
            return profile.switch_ns
        return held_up_ns

    def find(self, key: str, source: str | None = None) -> SessionProfile | None:
        """Return a profile by its key, or by what any of its traces begins with.

        Of several, as sources may say what they like, the latest.
        """
        for each in reversed(self._source.profiles_known):
            if key in each.prefixes and source in {None, each.source}:
                return each
        return None

    def traces(self, profile: SessionProfile) -> list[Path]:
        """Return its traces: beside the record, or where the engine wrote them."""
        places = [Path(profile.directory)]
        if (folder := self._source.traces_folder) is not None:
            places.append(folder)
        found = {
            each.name: each
            for place in places
            for each in traces_in(place, profile.prefixes)
        }
        return [found[name] for name in sorted(found)]

    async def keep_traces(self, directory: Path, prefixes: Iterable[str]) -> None:
        """Move traces beside the record, if the session is recorded.

        Nobody reads meanwhile. What cannot be moved is read where it is.
        """
        folder = self._source.traces_folder
        if folder is None:
            return
        async with self._turn:
            with suppress(OSError):
                await asyncio.to_thread(move_traces, directory, prefixes, folder)

    async def report(
        self, key: str, on_progress: OnProgress | None = None
    ) -> ProfileReport:
        """Read a profile's traces; what was read before is there at once.

        Raises:
            UsageError: there is no such profile, or it is on.
            StorageError: its traces are gone, or cannot be read.
        """
        profile = self.find(key)
        if profile is None or not profile.is_over:
            why = "is on still" if profile else "is not among the session's"
            raise UsageError(f"the profile {key} {why}")
        async with self._turn:  # one reader at a time: each needs a core and memory
            kept = self._reports.pop(profile.key, None)
            if kept is None:
                kept = await asyncio.to_thread(self._kept_report, profile)
            traces = await asyncio.to_thread(self.traces, profile)
            sizes = await asyncio.to_thread(_sizes, traces)
            steps = await self._steps(profile)
            if kept is None or not sizes.items() <= kept.sizes.items():
                report = await self._made(profile, traces, steps, on_progress)
                kept = KeptReport({} if report.is_partial else sizes, report)
                if not report.is_partial:
                    await asyncio.to_thread(self._keep, profile, kept, traces)
            if not profile.is_imported:
                held_up_ns = _held_up_ns(profile, steps)
                if held_up_ns is not None:
                    self._held_up_ns[profile.key] = held_up_ns
            self._reports[profile.key] = kept
            while len(self._reports) > MOST_REPORTS:
                del self._reports[next(iter(self._reports))]
        return kept.report

    async def _steps(self, profile: SessionProfile) -> Sequence[Step]:
        """Return the steps of a profile, and those around it."""
        return await self._source.steps_recall.steps(
            profile.began_ns - AROUND_NS,
            (profile.ended_ns or profile.began_ns) + AROUND_NS,
            profile.source,
        )

    async def _made(
        self,
        profile: SessionProfile,
        traces: Sequence[Path],
        steps: Sequence[Step],
        on_progress: OnProgress | None,
    ) -> ProfileReport:
        if not traces:
            raise StorageError(_gone(profile))
        job = ReportJob(
            files=[str(each) for each in traces],
            engine_ranks=_engine_ranks(profile, traces),
            realtime_offset_ns=profile.realtime_offset_ns,
            steps=spans_of(steps),
            costs=self._costs(profile.source),
        )
        return await self._read(job, on_progress)

    def _costs(self, source: str) -> ClassCosts | None:
        """Return the costs of an engine's first rank; its ranks are alike."""
        known = [
            each for key, each in self._source.step_needs.items() if key[0] == source
        ]
        return class_costs(known[0]) if known else None

    def _lost(self, profile: SessionProfile) -> str | None:
        now_s = time.monotonic()
        looked_s, why = self._looked.get(profile.key, (-LOOK_AGAIN_S, None))
        if now_s - looked_s < LOOK_AGAIN_S:
            return why
        place = self._report_place(profile)
        is_kept = profile.key in self._reports or (place is not None and place.exists())
        why = None if is_kept or self.traces(profile) else _gone(profile)
        self._looked[profile.key] = (now_s, why)
        return why

    def _report_place(self, profile: SessionProfile) -> Path | None:
        """Return where a report is kept; None where its key is no name of a file."""
        folder = self._source.traces_folder
        if folder is None or not NAMED.fullmatch(profile.key):
            return None
        return folder / f"{profile.key}{REPORT_END}"

    def _kept_report(self, profile: SessionProfile) -> KeptReport | None:
        """Return what was read before; None if nothing was, or by another version."""
        place = self._report_place(profile)
        if place is None:
            return None
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            kept = msgspec.json.decode(place.read_bytes(), type=KeptReport)
            if kept.report.version == VERSION:
                return kept
        return None

    def _keep(
        self, profile: SessionProfile, kept: KeptReport, traces: Sequence[Path]
    ) -> None:
        """Keep what was read beside the traces, if they are beside the record."""
        place = self._report_place(profile)
        if place is None or any(each.parent != place.parent for each in traces):
            return
        partial = place.with_name(f".{place.name}.part")
        with suppress(OSError):  # it is read again the next time
            partial.write_bytes(msgspec.json.encode(kept))
            partial.replace(place)


def spans_of(steps: Iterable[Step]) -> list[StepSpan]:
    """Return steps as a reader of traces needs them."""
    return [
        StepSpan(
            index=each.index,
            rank=each.rank,
            start_ns=each.start_ns,
            end_ns=each.end_ns,
            duration_ns=each.duration_ns,
            prefill_tokens=each.prefill_tokens,
            decode_tokens=each.decode_tokens,
            requests=each.prefill_requests + each.decode_requests,
            decode_only=not each.prefill_tokens,
        )
        for each in steps
    ]


def _held_up_ns(profile: SessionProfile, steps: Sequence[Step]) -> int | None:
    """Return by how much the longest step since its beginning exceeds the usual one.

    Or how long it took to switch it off, if that is longer; None if neither is known.
    """
    durations_ns = [e.duration_ns for e in steps if e.end_ns > profile.began_ns]
    known_ns = [] if profile.switch_ns is None else [profile.switch_ns]
    if durations_ns:
        known_ns.append(max(durations_ns) - round(median(durations_ns)))
    return max(known_ns, default=None)


def _engine_ranks(profile: SessionProfile, traces: Iterable[Path]) -> dict[str, int]:
    """Return the engine's rank by trace, if it has several and named them."""
    if profile.is_imported or len(profile.began) < 2:
        return {}
    return {
        str(trace): begun.rank
        for trace in traces
        for begun in profile.began
        if trace.name.startswith(f"{begun.prefix}_")
    }


def _sizes(traces: Iterable[Path]) -> dict[str, int]:
    """Return the sizes of files by name; those that are gone meanwhile are left out."""
    found = {}
    for each in traces:
        with suppress(OSError):
            found[each.name] = each.stat().st_size
    return found


def _taken(
    profile: SessionProfile, ended_ns: int, held_up_ns: int | None, lost: str | None
) -> TakenProfile:
    return TakenProfile(
        number=profile.number,
        key=profile.key,
        source=profile.source,
        began_ns=profile.began_ns,
        ended_ns=ended_ns,
        steps=profile.steps,
        by=profile.by,
        why=profile.why,
        held_up_ns=held_up_ns,
        lost=lost,
    )


def _gone(profile: SessionProfile) -> str:
    return (
        "its traces are neither beside the record nor, on this host, in "
        f"{profile.directory}, where the engine wrote them; if another watcher asked "
        "for them, they are beside its record"
    )
