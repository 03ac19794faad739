"""What every live session is to the screens, whatever it watches."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

import msgspec

from collectors.contract.clock import SessionClock
from collectors.contract.readings import Note, Prices, WatchedSlo
from collectors.hardware.gpu_source import GpuOptions
from inferwatch.feed import FeedState, LimitDesk, LoadDesk, Recall, RecordState
from inferwatch.formatting import wall_clock
from inferwatch.live.alarms.alarms import Alarms
from inferwatch.live.alarms.options import AlarmOptions
from inferwatch.live.live_session import LiveSession
from inferwatch.live.load.canary import Canaries
from inferwatch.live.load.load_desk import LoadTarget
from inferwatch.live.past.live_playback import LivePlayback
from inferwatch.live.past.live_recall import LiveRecall
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.record.flight.flight_recorder import FlightRecorder


class Watch(ABC):
    """A live session as a :class:`inferwatch.feed.Feed`: its record and its time.

    Who derives from it says what is watched, and how that is.
    """

    def __init__(self, clock: SessionClock, pipeline: Pipeline) -> None:
        self.clock = clock
        self._pipeline = pipeline
        self._session = LiveSession(clock, pipeline, self._every_process)
        self.playback = LivePlayback(clock, pipeline)
        """Holds the view, and goes through the past; what is recorded goes on."""
        self.recall: Recall = LiveRecall(pipeline, self.now_ns)
        self.alarms: Alarms | None = None
        """Rules that are looked at; None where there are none."""
        self.canary = Canaries(self._session, self._canary_targets)
        """Sends tiny requests to what is watched, if somebody wants that."""

    # How it is with what is watched.

    @property
    def state(self) -> FeedState:
        """Where the numbers come from right now."""
        ended = self._session.ended_ns is not None
        return FeedState.ENDED if ended else self._state

    @property
    @abstractmethod
    def _state(self) -> FeedState:
        """While the session goes on."""

    @property
    @abstractmethod
    def begun(self) -> asyncio.Event:
        """Set when there is something to see: a duration counts from here."""

    @property
    def settled(self) -> asyncio.Event:
        """Set when rates are known too, as far as they ever will be."""
        return self.begun

    @property
    @abstractmethod
    def lost(self) -> asyncio.Event:
        """Set when nothing more is to come."""

    @property
    @abstractmethod
    def came_up(self) -> bool:
        """Something has answered: there is something to sum up."""

    @property
    @abstractmethod
    def failure(self) -> str | None:
        """Why nothing answers, fit to show; None while all is well."""

    @property
    def faults(self) -> list[str]:
        """What went wrong in us and ended nothing, fit to show."""
        return self._session.faults

    @property
    @abstractmethod
    def runs_on(self) -> bool:
        """What is watched outlives us."""

    @property
    @abstractmethod
    def served(self) -> bool:
        """We are to detach, not to stop: ``q`` does that."""

    @property
    @abstractmethod
    def farewell(self) -> str:
        """What people are told who left what runs on."""

    @property
    @abstractmethod
    def load_desk(self) -> LoadDesk:
        """Where load is started, changed and stopped."""

    @property
    def limit_desk(self) -> LimitDesk | None:
        """Where limits of the engine are turned while it runs."""
        return None

    @abstractmethod
    def _canary_targets(self) -> dict[str, LoadTarget]:
        """How to ask each server that answers, by its source."""

    @abstractmethod
    def _work(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on from start to end, collectors and ticks aside."""

    @abstractmethod
    async def _wind_down(self) -> None:
        """End what we started, while its last words can still be recorded."""

    @abstractmethod
    def _processes(self) -> list[tuple[int, str]]:
        """What is to be sampled on this host besides our own process."""

    def _every_process(self) -> list[tuple[int, str]]:
        senders = [(pid, "load") for pid in self.canary.pids]
        return [*self._processes(), *senders]

    @property
    def only_hardware(self) -> bool:
        """No engine is watched, nor ever will be."""
        return False

    @property
    def can_restart(self) -> bool:
        """What is watched is gone, and we can start it again."""
        return False

    @property
    def can_stop(self) -> bool:
        """What is watched is ours to end."""
        return False

    @abstractmethod
    async def restart(self) -> None:
        """Start what is lost again, where we can."""

    @abstractmethod
    async def stop_engine(self) -> None:
        """End what is watched, where it is ours."""

    @property
    def no_log(self) -> str:
        """Why the log is empty where it is."""
        return "nothing is logged yet"

    def log_tail(self, lines: int) -> list[str]:
        """The engine's latest log lines, where they can be read."""
        del lines
        return []

    # What the screens ask.

    @property
    def record(self) -> RecordState | None:
        """What the recorder does; None when nothing is recorded."""
        return self._pipeline.record

    @property
    def notes(self) -> tuple[Note, ...]:
        """The latest, oldest first."""
        return self._pipeline.notes

    def read_gpus(self, options: GpuOptions) -> None:
        """Which GPUs are read, and how; said before the watch begins."""
        self._session.gpus.options = options

    def look_out(
        self,
        options: AlarmOptions,
        recorder: FlightRecorder | None = None,
        name: str | None = None,
    ) -> None:
        """Which rules are looked at; said before the watch begins.

        Raises:
            UsageError: one means nothing.
        """
        self.alarms = Alarms(self._session, options, recorder, name)

    def hold_to(self, slo: str) -> None:
        """Judge requests by these objectives; said before the watch begins."""
        self._session.first.append(WatchedSlo(t_ns=self.clock.start_ns, slo=slo))

    def pay(self, prices: Prices) -> None:
        """What time or energy costs; likewise."""
        told = msgspec.structs.replace(prices, t_ns=self.clock.start_ns)
        self._session.first.append(told)

    def look_closely(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Read GPUs ten times a second while somebody sees it."""
        self._session.gpus.look_closely(on)

    def now_ns(self) -> int:
        """Session time of what is shown."""
        return self.playback.position_ns

    def wall_text(self, t_ns: int, *, ms: bool = False) -> str:
        """Local clock time of a moment."""
        wall_ns = self._session.anchors.wall_ns(t_ns + self.clock.start_ns)
        return wall_clock(wall_ns, ms=ms)

    def snapshot(
        self,
        window: Window,
        *,
        requests: bool = True,
        client: bool = False,
        hardware: bool = False,
        source: str | None = None,
    ) -> Snapshot:
        """Everything as of the moment shown; the client's view if asked."""
        return self.playback.snapshot(
            window, requests=requests, client=client, hardware=hardware, source=source
        )

    def present(self, source: str | None = None) -> Snapshot:
        """As things are now, whatever moment is shown."""
        return self._session.known(Window.MINUTE, source)

    def whole(self) -> Snapshot:
        """The whole session up to now, or up to its end."""
        ended_ns = self._session.ended_ns
        now_ns = self.clock.now_ns() if ended_ns is None else ended_ns
        return self._pipeline.snapshot(now_ns, Window.SESSION)

    async def run(self) -> None:
        """Watch until cancelled; whatever we started is gone when this returns."""
        async with self._session.recorded():
            try:
                rules = [self.alarms.run()] if self.alarms else []
                await self._session.collect(*self._work(), *rules)
            finally:
                if self.alarms:
                    await self.alarms.close()
                await self._wind_down()
                await self.canary.stop()
                await self._session.close_collectors()
                await self.playback.close()
