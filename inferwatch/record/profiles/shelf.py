"""The profiles of a session with their traces: which can be read, and what they tell.

Of a live session and of a recorded one alike: who watches says what is to be shown, and
where the session's traces are kept.
"""

import asyncio
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
from inferwatch.record.file.trace_folder import REPORT_END, traces_in

AROUND_NS = NS_PER_S
"""Steps this long before and after a profile are joined to its traces, too."""
MOST_REPORTS = 4
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


class ProfileShelf:
    """Finds the traces of profiles, and reads them once."""

    def __init__(
        self,
        source: ProfileSource,
        read: Reader = read_profile,
    ) -> None:
        self._source, self._read = source, read
        self._reports: dict[str, ProfileReport] = {}
        """The latest that were asked for, by key."""
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

    def find(self, key: str) -> SessionProfile | None:
        """Return a profile by its key, or by what any of its traces begins with."""
        every = self._source.profiles_known
        return next((each for each in every if key in each.prefixes), None)

    def traces(self, profile: SessionProfile) -> list[Path]:
        """Return its traces: beside the record, else where the engine wrote them."""
        folder = self._source.traces_folder
        kept = traces_in(folder, profile.prefixes) if folder is not None else []
        return kept or traces_in(Path(profile.directory), profile.prefixes)

    async def report(
        self, key: str, on_progress: OnProgress | None = None
    ) -> ProfileReport:
        """Read a profile's traces; what was read before is there at once.

        Raises:
            UsageError: there is no such profile.
            StorageError: its traces are gone, or cannot be read.
        """
        profile = self.find(key)
        if profile is None:
            raise UsageError(f"there is no profile {key}")
        async with self._turn:  # one reader at a time: each needs a core and memory
            report = self._reports.pop(profile.key, None)
            if report is None:
                report = await asyncio.to_thread(self._kept_report, profile)
            steps = await self._steps(profile)
            if report is None:
                report = await self._made(profile, steps, on_progress)
            if not profile.is_imported:
                held_up_ns = _held_up_ns(profile, steps)
                if held_up_ns is not None:
                    self._held_up_ns[profile.key] = held_up_ns
            self._reports[profile.key] = report
            while len(self._reports) > MOST_REPORTS:
                del self._reports[next(iter(self._reports))]
        return report

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
        steps: Sequence[Step],
        on_progress: OnProgress | None,
    ) -> ProfileReport:
        traces = await asyncio.to_thread(self.traces, profile)
        if not traces:
            raise StorageError(_gone(profile))
        job = ReportJob(
            files=[str(each) for each in traces],
            realtime_offset_ns=profile.realtime_offset_ns,
            steps=spans_of(steps),
            costs=self._costs(profile.source),
        )
        report = await self._read(job, on_progress)
        await asyncio.to_thread(self._keep, profile, report, traces[0].parent)
        return report

    def _costs(self, source: str) -> ClassCosts | None:
        """Return the costs of an engine's first rank; its ranks are alike."""
        known = [
            each for key, each in self._source.step_needs.items() if key[0] == source
        ]
        return class_costs(known[0]) if known else None

    def _lost(self, profile: SessionProfile) -> str | None:
        if profile.key in self._reports or self.traces(profile):
            return None
        place = self._report_place(profile)
        return None if place is not None and place.is_file() else _gone(profile)

    def _report_place(self, profile: SessionProfile) -> Path | None:
        folder = self._source.traces_folder
        return folder / f"{profile.key}{REPORT_END}" if folder is not None else None

    def _kept_report(self, profile: SessionProfile) -> ProfileReport | None:
        """Return what was read before; None if nothing was, or by another version."""
        place = self._report_place(profile)
        if place is None:
            return None
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            report = msgspec.json.decode(place.read_bytes(), type=ProfileReport)
            if report.version == VERSION:
                return report
        return None

    def _keep(
        self, profile: SessionProfile, report: ProfileReport, folder: Path
    ) -> None:
        """Keep what was read beside the traces, if they are beside the record."""
        place = self._report_place(profile)
        if place is None or place.parent != folder:
            return
        partial = place.with_name(f".{place.name}.part")
        with suppress(OSError):  # it is read again the next time
            partial.write_bytes(msgspec.json.encode(report))
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

    None where neither steps nor the switch tell.
    """
    durations_ns = [e.duration_ns for e in steps if e.end_ns > profile.began_ns]
    if not durations_ns:
        return profile.switch_ns
    beyond_ns = max(durations_ns) - round(median(durations_ns))
    return max(beyond_ns, profile.switch_ns or 0)


def _taken(
    profile: SessionProfile, ended_ns: int, held_up_ns: int | None, lost: str | None
) -> TakenProfile:
    return TakenProfile(
        key=profile.key,
        source=profile.source,
        began_ns=profile.began_ns,
        ended_ns=ended_ns,
        steps=profile.steps,
        by=profile.by,
        why=profile.why,
        switch_ns=held_up_ns,
        lost=lost,
    )


def _gone(profile: SessionProfile) -> str:
    return (
        "its traces are neither beside the record nor, on this host, in "
        f"{profile.directory}, where the engine wrote them"
    )
