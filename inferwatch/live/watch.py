"""The base of live sessions, as the screens see them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from collectors.contract.clock import SessionClock
from collectors.contract.readings import Note, Prices, WatchedSlo
from collectors.hardware.gpu_source import GpuOptions
from inferwatch.feed import FeedState, LimitDesk, LoadDesk, Recall, RecordState
from inferwatch.formatting import wall_clock
from inferwatch.live.alarms.alarms import Alarms
from inferwatch.live.alarms.options import AlarmOptions
from inferwatch.live.limit_desk import NO_ENGINE, LimitTarget
from inferwatch.live.live_session import LiveSession
from inferwatch.live.load.canary import Canaries
from inferwatch.live.load.load_desk import LoadTarget
from inferwatch.live.past.live_playback import LivePlayback
from inferwatch.live.past.live_recall import LiveRecall
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.profile_desk import WatchedProfileDesk
from inferwatch.live.stall_stacks import StallStacks
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.profiles import SessionProfile
from inferwatch.record.flight.flight_recorder import FlightRecorder


class Watch(ABC):
    """A live session as a :class:`inferwatch.feed.Feed`: its record and its time.

    Subclasses say what is watched and what state it is in.
    """

    def __init__(self, clock: SessionClock, pipeline: Pipeline) -> None:
        self.clock = clock
        self._pipeline = pipeline
        self._session = LiveSession(clock, pipeline, self._every_process)
        self.playback = LivePlayback(clock, pipeline)
        """Pauses and rewinds the view; recording goes on."""
        self.recall: Recall = LiveRecall(pipeline, self.now_ns)
        self.alarms: Alarms | None = None
        """Evaluates the alarm rules; None when there are none."""
        self.canary = Canaries(self._session, self._canary_targets)
        """Sends canary requests to what is watched, when turned on."""
        self._profile_desk = WatchedProfileDesk(
            self._session, self._profiles_shown, self._limit_target
        )
        self.stacks = StallStacks(
            self._session, self._engine_processes, self._engine_log
        )

    # The state of what is watched.

    @property
    def state(self) -> FeedState:
        ended = self._session.ended_ns is not None
        return FeedState.ENDED if ended else self._state

    @property
    @abstractmethod
    def _state(self) -> FeedState:
        """The state while the session goes on."""

    @property
    @abstractmethod
    def begun(self) -> asyncio.Event:
        """Set when there is something to see; ``--duration`` counts from here."""

    @property
    def settled(self) -> asyncio.Event:
        """Set when rates are known as well, or it is certain that they will not be."""
        return self.begun

    @property
    @abstractmethod
    def lost(self) -> asyncio.Event:
        """Set when nothing more will come."""

    @property
    @abstractmethod
    def came_up(self) -> bool:
        """Whether anything has answered, so that there is something to sum up."""

    @property
    @abstractmethod
    def failure(self) -> str | None:
        """Why nothing answers, as text for users; None while something does."""

    @property
    def faults(self) -> list[str]:
        """Faults of inferwatch that did not end the session, as text for users."""
        return self._session.faults

    @property
    @abstractmethod
    def runs_on(self) -> bool:
        """Whether what is watched outlives this process."""

    @property
    @abstractmethod
    def served(self) -> bool:
        """Whether ``q`` detaches from the engine instead of stopping it."""

    @property
    @abstractmethod
    def farewell(self) -> str:
        """What to print when leaving a session while the engine runs on."""

    @property
    @abstractmethod
    def load_desk(self) -> LoadDesk: ...

    @property
    def limit_desk(self) -> LimitDesk | None:
        """Sets limits of the engine while it runs; None where that is not possible."""
        return None

    @property
    def profile_desk(self) -> WatchedProfileDesk:
        """Profiles steps of the engine that is viewed."""
        return self._profile_desk

    def _limit_target(self) -> LimitTarget | str:
        """Return the engine whose limits and steps can be reached, or why none can."""
        return NO_ENGINE

    @abstractmethod
    def _canary_targets(self) -> dict[str, LoadTarget]:
        """Return how to send requests to each server that answers, by source."""

    @abstractmethod
    def _work(self) -> list[Coroutine[Any, Any, None]]:
        """Return coroutines to run all the time, besides collectors and ticks."""

    @abstractmethod
    async def _wind_down(self) -> None:
        """Stop what we started, while its last readings can still be recorded."""

    @abstractmethod
    def _processes(self) -> list[tuple[int, str]]:
        """Return the processes to sample on this host besides our own."""

    def _engine_processes(self, source: str) -> list[tuple[int, str]]:
        """Return the processes of one engine on this host."""
        del source
        return self._processes()

    def _engine_log(self, source: str, lines: int) -> list[str]:
        """Return the last log lines of one engine."""
        del source
        return self.log_tail(lines)

    def _every_process(self) -> list[tuple[int, str]]:
        senders = [(pid, "load") for pid in self.canary.pids]
        return [*self._processes(), *senders]

    @property
    def only_hardware(self) -> bool:
        """Whether no engine is watched, nor ever will be."""
        return False

    @property
    def starts(self) -> bool:
        """Whether what is watched is started by us."""
        return False

    @property
    def can_restart(self) -> bool:
        """Whether what is watched is gone and can be started again."""
        return False

    @property
    def can_stop(self) -> bool:
        """Whether we may stop the engine that is watched."""
        return False

    @abstractmethod
    async def restart(self) -> None:
        """Start a lost engine again, if we can."""

    @abstractmethod
    async def stop_engine(self) -> None:
        """Stop the engine that is watched, if we may."""

    @property
    def no_log(self) -> str:
        """Why there is no log, or none yet."""
        return "nothing is logged yet"

    def log_tail(self, lines: int) -> list[str]:
        """Return the engine's last log lines, if they can be read."""
        del lines
        return []

    # Called by the screens.

    @property
    def record(self) -> RecordState | None:
        """The state of the recorder; None when nothing is recorded."""
        return self._pipeline.record

    @property
    def notes(self) -> tuple[Note, ...]:
        """The latest notes, oldest first."""
        return self._pipeline.notes

    def read_gpus(self, options: GpuOptions) -> None:
        """Set which GPUs are read, and how; call it before the watch begins."""
        self._session.gpus.options = options

    def look_out(
        self,
        options: AlarmOptions,
        recorder: FlightRecorder | None = None,
        name: str | None = None,
    ) -> None:
        """Set the alarm rules; call it before the watch begins.

        Raises:
            UsageError: a rule cannot be parsed.
        """
        self.alarms = Alarms(self._session, options, recorder, name)

    def hold_to(self, slo: str) -> None:
        """Judge requests by these objectives; call it before the watch begins."""
        self._session.first.append(WatchedSlo(t_ns=self.clock.start_ns, slo=slo))

    def pay(self, prices: Prices) -> None:
        """Set what time or energy costs; call this before the watch begins."""
        dated = msgspec.structs.replace(prices, t_ns=self.clock.start_ns)
        self._session.first.append(dated)

    def look_closely(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Read GPUs ten times a second while their numbers are on screen."""
        self._session.gpus.look_closely(on)

    def now_ns(self) -> int:
        """Return the session time of the moment shown."""
        return self.playback.position_ns

    def wall_text(self, t_ns: int, *, ms: bool = False) -> str:
        """Return the local wall-clock time of a moment."""
        wall_ns = self._session.anchors.wall_ns(t_ns + self.clock.start_ns)
        return wall_clock(wall_ns, ms=ms)

    def snapshot(self, query: SnapshotQuery) -> Snapshot:
        """Return the snapshot of the moment shown: the present, or one of the past."""
        past = self.playback.past(query)
        if past is not None:
            return past
        return self._pipeline.snapshot(self.clock.now_ns(), query)

    def _profiles_shown(self) -> Sequence[SessionProfile]:
        asked = SnapshotQuery(Window.TEN_SECONDS, requests=False, client=False)
        past = self.playback.past(asked)
        return self._pipeline.profiles if past is None else past.profiles

    def present(self, source: str | None = None) -> Snapshot:
        """Return the snapshot of now, whatever moment is shown."""
        return self._session.snapshot(Window.MINUTE, source)

    def whole(self) -> Snapshot:
        """Return a snapshot over the whole session up to now, or up to its end."""
        ended_ns = self._session.ended_ns
        now_ns = self.clock.now_ns() if ended_ns is None else ended_ns
        query = SnapshotQuery(Window.SESSION, breakdown=True, tenants=True)
        return self._pipeline.snapshot(now_ns, query)

    async def run(self) -> None:
        """Watch until cancelled; whatever we started has ended when this returns."""
        async with self._session.recorded():
            try:
                rules = [self.alarms.run()] if self.alarms else []
                await self._session.collect(*self._work(), *rules, self.stacks.run())
            finally:
                if self.alarms:
                    await self.alarms.close()
                await self._profile_desk.close()
                await self._wind_down()
                await self.canary.stop()
                await self._session.close_collectors()
                await self.playback.close()
