"""Profiles steps of the watched engine, moves the traces beside the record, reads them.

The engine ends a profile by itself; closing the desk ends one that is on.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

from collectors.contract.clock import NS_PER_S
from collectors.contract.collector import CollectorError, SourceLostError
from collectors.contract.readings import Profile, ProfileState
from collectors.probe.profile_control import (
    NO_PROFILER,
    ProfileControl,
    ProfileRefusedError,
    can_profile,
)
from collectors.probe.profiling import (
    DEFAULT_S,
    LONGEST_S,
    MOST_BYTES,
    STEPS,
    SWITCH_S,
    ProfileAnswer,
)
from inferwatch.errors import InferwatchError, SourceError, UsageError
from inferwatch.feed import (
    ProfileProgress,
    ProfileStage,
    Recall,
    TakenProfile,
)
from inferwatch.live.limit_desk import ELSEWHERE, NO_ENGINE, NO_PROBE, FindTarget
from inferwatch.live.live_session import LiveSession
from inferwatch.live.past.live_recall import LiveRecall
from inferwatch.metrics.floor.rank import StepNeeds
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.steps.engines import Key
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.profiles.reading import read_profile
from inferwatch.profiles.report import ProfileReport
from inferwatch.record.file.trace_folder import traces_folder
from inferwatch.record.profiles.shelf import OnProgress, ProfileShelf, Reader

OTHERWISE = {
    NO_ENGINE: "no engine is up whose steps could be profiled",
    ELSEWHERE: (
        "steps are profiled on the host of the engine alone, where its traces are, and "
        "this one is heard over the network: run inferwatch there"
    ),
    NO_PROBE: "steps are profiled by the probe in the engine, and none is heard",
}
"""What is said where the reason why limits cannot be set holds for profiles, too."""
ON = "a profile is on already"
ASK_S = 0.1
"""How often the engine is asked how far it is."""
SILENT_S = 1.0
"""An engine that answers nothing for so long is writing its traces."""
TELL_S = 10.0
"""How long its readings may take to come after it has ended."""
UNTOLD = "the probe has not told of its end: readings were lost"
CANCELLED = "it was cancelled"
RUNNING = {ProfileStage.PROFILING, ProfileStage.WRITING, ProfileStage.READING}


class _LiveSource:
    """The profiles of a live session; see :class:`ProfileSource`."""

    def __init__(
        self, session: LiveSession, shown: Callable[[], Sequence[SessionProfile]]
    ) -> None:
        self._session, self._shown = session, shown
        self.steps_recall: Recall = LiveRecall(session.pipeline, session.now_ns)

    @property
    def profiles_shown(self) -> Sequence[SessionProfile]:
        return self._shown()

    @property
    def profiles_known(self) -> Sequence[SessionProfile]:
        return self._session.pipeline.profiles

    @property
    def step_needs(self) -> dict[Key, StepNeeds]:
        asked = SnapshotQuery(
            Window.TEN_SECONDS, requests=False, client=False, needs=True
        )
        now = self._session.pipeline.snapshot(self._session.now_ns(), asked)
        return dict(now.step_needs or {})

    @property
    def traces_folder(self) -> Path | None:
        record, path = self._session.pipeline.record, self._session.pipeline.database
        if record is None or path is None or not record.session_id:
            return None
        return traces_folder(path, record.session_id)


class WatchedProfileDesk:
    """Profiles the viewed engine; one profile at a time."""

    def __init__(
        self,
        session: LiveSession,
        shown: Callable[[], Sequence[SessionProfile]],
        target: FindTarget,
        read: Reader = read_profile,
    ) -> None:
        """``shown`` returns the profiles up to the moment shown."""
        self._session, self._target = session, target
        self._source = _LiveSource(session, shown)
        self.shelf = ProfileShelf(self._source, read)
        self._control: ProfileControl | None = None
        """Of the profile that is on."""
        self._following: asyncio.Task[None] | None = None
        self._progress = ProfileProgress()

    @property
    def unavailable(self) -> str | None:
        """Why no profile can begin now; None if one can."""
        if self._is_busy:
            return ON
        target = self._target()
        if isinstance(target, str):
            return OTHERWISE.get(target, target)
        if not can_profile(target.engine_id):
            return NO_PROFILER
        return self._on_for_others(target.source)

    @property
    def progress(self) -> ProfileProgress:
        return self._progress

    @property
    def taken(self) -> Sequence[TakenProfile]:
        """The session's profiles up to the moment shown, oldest first."""
        return self.shelf.taken

    def await_condition(self, text: str) -> None:
        """Tell that a profile is to begin once a condition holds."""
        self._progress = ProfileProgress(stage=ProfileStage.WAITING, text=text)

    async def begin(
        self,
        steps: int | None = None,
        *,
        most_s: float = DEFAULT_S,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Begin a profile; ``progress`` tells how it goes.

        Raises:
            UsageError: one is on already, or the engine refuses.
            SourceError: the engine is gone, or cannot be profiled.
        """
        if self._is_busy:
            raise UsageError(ON)
        target = self._target()
        if isinstance(target, str):
            raise SourceError(OTHERWISE.get(target, target))
        steps = STEPS if steps is None else steps
        self._progress = ProfileProgress(
            stage=ProfileStage.PROFILING, steps_asked=steps
        )
        try:
            control = await ProfileControl.open(target.engine_id)
            before = _numbers(await control.state())
            self._control = control
            await control.start(steps=steps, most_s=most_s, most_bytes=most_bytes)
        except (CollectorError, asyncio.CancelledError) as error:
            await self._hang_up()
            self._fail(str(error))
            if isinstance(error, ProfileRefusedError):
                raise UsageError(str(error)) from error
            if isinstance(error, CollectorError):
                raise SourceError(str(error)) from error
            raise
        self._following = asyncio.create_task(
            self._follow(control, before, target.source)
        )

    async def stop(self) -> None:
        """End the profile at once; what has been profiled is read."""
        if self._control is not None:
            with suppress(CollectorError):  # then it ends by itself
                await self._control.stop()

    async def report(
        self, key: str, on_progress: OnProgress | None = None
    ) -> ProfileReport:
        """Read a profile's traces; a second time it is there at once.

        Raises:
            UsageError: there is no such profile.
            StorageError: its traces are gone, or cannot be read.
        """
        return await self.shelf.report(key, on_progress)

    async def ended(self) -> ProfileProgress:
        """Wait until the profile that was begun is read, or has failed."""
        if self._following is not None:
            await asyncio.wait([self._following])
        return self._progress

    async def close(self) -> None:
        """End a profile that is on."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
        await self._hang_up()
        if self._is_busy:  # it was cancelled before its first turn
            self._fail(CANCELLED)

    @property
    def _is_busy(self) -> bool:
        return self._progress.stage in RUNNING

    def _on_for_others(self, source: str) -> str | None:
        """Say for whom a profile is on, by what the engine has told."""
        since_ns = self._session.now_ns() - round((LONGEST_S + SWITCH_S) * NS_PER_S)
        for each in self._source.profiles_known:
            if each.source == source and not each.is_over and each.began_ns > since_ns:
                return f"{ON}, for {each.by or 'another client'}"
        return None

    async def _follow(
        self, control: ProfileControl, before: dict[int, int], source: str
    ) -> None:
        """Follow a profile from its beginning until it is read."""
        try:
            parts, is_off = await self._until_ended(control, before)
            await self._hang_up()
            within_s = TELL_S if is_off else SWITCH_S
            profile = await self._told(parts[0].prefix, source, within_s)
            if profile.failed:
                self._fail(profile.why or "the engine could not end it")
                return
            # Where they are is what the engine itself has answered.
            for directory in {each.directory for each in parts}:
                prefixes = [e.prefix for e in parts if e.directory == directory]
                await self.shelf.keep_traces(Path(directory), prefixes)
            self._progress = replace(
                self._progress,
                stage=ProfileStage.READING,
                steps=profile.steps,
                key=profile.key,
                text=profile.why or "",
            )
            await self.shelf.report(profile.key, self._read)
            self._progress = replace(
                self._progress, stage=ProfileStage.DONE, read_share=None
            )
        except (InferwatchError, CollectorError) as error:
            self._fail(str(error))
        except BaseException:
            self._fail(CANCELLED)
            raise
        finally:
            await self._hang_up()

    async def _until_ended(
        self, control: ProfileControl, before: dict[int, int]
    ) -> tuple[Sequence[Profile], bool]:
        """Wait until all ranks have ended; return the part of each.

        An engine that does not answer is writing its traces, mostly: whether it has
        ended is False then, as its readings will tell.

        Raises:
            SourceError: it failed on all ranks, or the engine is gone.
        """
        parts: dict[int, Profile] = {}
        until_s = monotonic() + 2 * SWITCH_S + LONGEST_S
        while monotonic() < until_s:
            try:
                answers = await self._state(control)
            except SourceLostError as error:
                raise SourceError(str(error)) from error
            except CollectorError:
                if not parts:
                    raise
                return [*parts.values()], False
            fresh = _fresh(answers, before)
            parts |= {each.rank: each for each in fresh}
            self._look(answers, fresh)
            if fresh and len(fresh) == len(answers):
                if all(each.state is ProfileState.FAILED for each in fresh):
                    raise SourceError(fresh[0].why or "the engine could not begin it")
                if not any(each.is_on for each in answers):
                    return [*parts.values()], True
            await asyncio.sleep(ASK_S)
        raise SourceError(f"the engine has not ended it within {SWITCH_S:.0f} s")

    async def _state(self, control: ProfileControl) -> Sequence[ProfileAnswer]:
        """Ask how it goes; if nobody answers for a while, tell that it writes."""
        asking = asyncio.create_task(control.state())
        try:
            await asyncio.wait([asking], timeout=SILENT_S)
            if not asking.done() and self._progress.steps:
                self._progress = replace(self._progress, stage=ProfileStage.WRITING)
            return await asking
        finally:
            asking.cancel()

    def _look(self, answers: Sequence[ProfileAnswer], fresh: Sequence[Profile]) -> None:
        """Tell how far the ranks are."""
        if not fresh:
            return
        on = {each.rank for each in fresh}
        known = [e.steps for e in answers if e.rank in on and e.steps is not None]
        steps = min(known, default=self._progress.steps)
        asked = fresh[0].steps_asked
        is_writing = steps is not None and steps >= asked
        self._progress = replace(
            self._progress,
            stage=ProfileStage.WRITING if is_writing else ProfileStage.PROFILING,
            steps=None if steps is None else min(steps, asked),
            steps_asked=asked,
        )

    async def _told(self, prefix: str, source: str, within_s: float) -> SessionProfile:
        """Wait until the engine's readings tell that the profile is over.

        Raises:
            SourceError: they do not.
        """
        for _ in range(round(within_s / ASK_S)):
            profile = self.shelf.find(prefix, source)
            if profile is not None and profile.is_over:
                return profile
            await asyncio.sleep(ASK_S)
        raise SourceError(UNTOLD)

    def _read(self, share: float) -> None:
        self._progress = replace(self._progress, read_share=share)

    def _fail(self, text: str) -> None:
        self._progress = replace(self._progress, stage=ProfileStage.FAILED, text=text)

    async def _hang_up(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            await control.close()


def _fresh(answers: Sequence[ProfileAnswer], before: dict[int, int]) -> list[Profile]:
    """Return the parts of ranks that have begun since ``before``."""
    return [
        each.latest
        for each in answers
        if each.latest is not None and each.latest.number > before.get(each.rank, 0)
    ]


def _numbers(answers: Sequence[ProfileAnswer]) -> dict[int, int]:
    """Return the number of each rank's latest profile."""
    return {
        each.rank: each.latest.number for each in answers if each.latest is not None
    }
