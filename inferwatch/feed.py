"""What the screens are given: a session, live or recorded, and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from collectors.contract.readings import LiveLimits, Step
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.story.story import RequestStory


class FeedState(StrEnum):
    """Where the numbers come from right now."""

    STARTING = "starting"
    LIVE = "live"
    REPLAYING = "replaying"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightState:
    """What is kept in memory until a rule of ``--record-on`` holds."""

    keep_s: float
    """How much is to be kept."""
    kept_s: float
    """How much there is by now."""
    kept_bytes: int
    cut_short: bool = False
    """Memory was short: it can be no more."""
    sessions: tuple[str, ...] = ()
    """Those that were recorded so far, the present one included."""
    because: str | None = None
    """What is being recorded for; None while it is only kept."""
    since_ns: int | None = None
    """Likewise, since when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordState:
    """What the recorder does, for the header."""

    session_id: str
    file_bytes: int = 0
    written: int = 0
    unrecorded: int = 0
    message: str | None = None
    """Why recording is impaired, fit to show; None when all is well."""
    flight: FlightState | None = None
    """None where all is recorded."""


class MarkKind(StrEnum):
    """Why a moment of a session is worth going to."""

    LOAD = "load"
    """A load run began, changed its rate or ended."""
    LOST = "lost"
    """An engine was lost, or came back."""
    LIMITS = "limits"
    """Somebody changed what limits an engine while it runs."""
    SLO = "slo"
    """A minute in which an objective of the load was missed, or one that is watched
    began to be, or is met again."""
    PREEMPTION = "preemption"
    """Requests were preempted after a while without."""
    STALL = "stall"
    """Work waited and no step ended for a while."""
    FINDING = "finding"
    """A diagnosis began to hold, or no longer does."""
    ALERT = "alert"
    """A rule of --record-on or --alert began to hold."""
    BOOKMARK = "bookmark"
    OTHER = "other"
    """Any other note that people should hear of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment worth going to: drawn on the time line, reached by ``n`` and ``N``."""

    t_ns: int
    kind: MarkKind
    text: str


class Playback(Protocol):
    """Goes to any moment of a session, long after it or while it is recorded.

    All moments are session time. A call that takes time gives the old picture until
    the new one is there: ``Feed.snapshot`` never waits.
    """

    @property
    def span_ns(self) -> tuple[int, int]:
        """The first and the latest moment that can be shown."""
        ...

    @property
    def position_ns(self) -> int:
        """The moment that is shown."""
        ...

    @property
    def goes_on(self) -> bool:
        """The session is still being recorded: its end moves, and can be followed."""
        ...

    @property
    def at_live(self) -> bool:
        """It is followed: what is shown is now."""
        ...

    @property
    def playing(self) -> bool:
        """The position moves."""
        ...

    @property
    def speed(self) -> float:
        """Seconds of the session a second, 0.1 to 100."""
        ...

    @property
    def seeking(self) -> bool:
        """On the way to another moment; the picture is still that of the old one."""
        ...

    @property
    def cannot_seek(self) -> str | None:
        """Why only pausing works, fit to show; None when any moment can be had."""
        ...

    @property
    def shape(self) -> Timeline | None:
        """The whole session at a glance, at most 240 columns; None until known."""
        ...

    @property
    def marks(self) -> tuple[Mark, ...]:
        """In order of time."""
        ...

    def play(self) -> None:
        """Let the position move on from where it is."""
        ...

    def pause(self) -> None:
        """Hold the view; what is recorded goes on being recorded."""
        ...

    def set_speed(self, speed: float) -> None:
        """Kept within 0.1 and 100."""
        ...

    async def seek(self, t_ns: int) -> None:
        """Show that moment, kept within the span; a later call overtakes this one."""
        ...

    async def step(self, count: int) -> None:
        """Go on by engine steps, back when negative; pauses."""
        ...

    async def go_live(self) -> None:
        """Follow a session that goes on; of one that has ended: its end."""
        ...

    async def bookmark(self, text: str, t_ns: int | None = None) -> None:
        """Mark a moment, else the position: it is there when opened again.

        Raises:
            StorageError: the file does not let us.
        """
        ...


class LoadDesk(Protocol):
    """Where load on the watched server is started, changed and stopped."""

    @property
    def running(self) -> bool:
        """A load run of ours goes on."""
        ...

    @property
    def plan(self) -> LoadPlan:
        """Of the run that goes on, else of the last one, else one to begin with."""
        ...

    @property
    def must_name_host(self) -> str | None:
        """The host's name, to be typed before load: others use this server."""
        ...

    @property
    def unavailable(self) -> str | None:
        """Why no load can be started now, fit to show; None when it can."""
        ...

    async def start(self, plan: LoadPlan) -> None:
        """Follow a plan; its url, uds and model are those of the watched server.

        Raises:
            SourceError: the generator did not start.
        """
        ...

    async def change(
        self, *, rate_per_s: float | None = None, concurrency: int | None = None
    ) -> None:
        """Of the run that goes on, from now on; the record marks when.

        A rate by time gives way to the one rate. When no run goes on: nothing.

        Raises:
            UsageError: a run of that kind cannot be changed so.
        """
        ...

    async def stop(self) -> None:
        """Send nothing more and abort what is in flight."""
        ...


class Recall(Protocol):
    """What single steps and requests did, as of the moment that is shown.

    Of a live session from memory, of what is longer ago and of recorded ones from the
    record: equal readings tell the same.
    """

    async def steps(
        self, start_ns: int, end_ns: int, source: str | None = None
    ) -> Sequence[Step]:
        """Those that ended in a span, with members, oldest first; 20,000 at most.

        Where there are more, the latest.
        """
        ...

    async def request(self, key: str) -> RequestStory | None:
        """The story of the request with that key; None where nothing is known of it."""
        ...


class NothingRecalled:
    """A Recall where nothing was kept."""

    async def steps(
        self, start_ns: int, end_ns: int, source: str | None = None
    ) -> Sequence[Step]:
        """None."""
        del start_ns, end_ns, source
        return ()

    async def request(self, key: str) -> RequestStory | None:
        """None."""
        del key
        return None


class CanarySwitch(Protocol):
    """Tiny requests of ours to what is watched, off until somebody wants them."""

    @property
    def on(self) -> tuple[str, ...]:
        """The sources of the servers they are sent to."""
        ...

    def targets(self, source: str | None) -> tuple[str, ...]:
        """The servers they could be sent to: one, or all that answer."""
        ...

    def start(self, source: str | None) -> None:
        """Send to these from now on."""
        ...

    async def stop(self) -> None:
        """Send no more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPair:
    """What somebody wants an engine's limits to be; None: as it is."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


class LimitDesk(Protocol):
    """Where the limits of a running engine are turned, and turned back.

    What they are is told by the engine: ``Snapshot.live_limits``.
    """

    @property
    def unavailable(self) -> str | None:
        """Why nothing can be turned now, fit to show; None when it can."""
        ...

    @property
    def must_name_host(self) -> str | None:
        """The host's name, to be typed first: others use this engine."""
        ...

    @property
    def by(self) -> str:
        """As whom the engine knows us, in ``LiveLimits.by``."""
        ...

    @property
    def answered(self) -> tuple[LiveLimits, ...]:
        """What the engine answered last, by rank; empty before it was asked.

        It tells of a change at its next step; an idle one has none. Times in it are
        the engine's own.
        """
        ...

    async def set(self, wanted: LimitPair, *, keep: bool = False) -> None:
        """Turn them, on all ranks; the start-up values return when we go.

        With ``keep`` they stay.

        Raises:
            UsageError: the engine refuses; the message says why.
            SourceError: it is gone.
        """
        ...

    async def reset(self) -> None:
        """Back to what the engine was started with.

        Raises:
            SourceError: it is gone.
        """
        ...


class Feed(Protocol):
    """A session as the screens see it."""

    @property
    def state(self) -> FeedState:
        """Where the numbers come from."""
        ...

    @property
    def served(self) -> bool:
        """The engine outlives us: ``q`` detaches."""
        ...

    @property
    def can_stop(self) -> bool:
        """It is ours to end, which is asked for."""
        ...

    @property
    def can_restart(self) -> bool:
        """The engine is gone and we know how to start it again."""
        ...

    @property
    def record(self) -> RecordState | None:
        """None with ``--no-record``."""
        ...

    @property
    def playback(self) -> Playback | None:
        """What goes to other moments; None while there is nothing but now."""
        ...

    @property
    def recall(self) -> Recall:
        """What single steps and requests did."""
        ...

    @property
    def canary(self) -> CanarySwitch | None:
        """None where none can be sent: in a replay."""
        ...

    @property
    def load_desk(self) -> LoadDesk | None:
        """None where no load can be started: in a replay."""
        ...

    @property
    def limit_desk(self) -> LimitDesk | None:
        """None where no limit can be turned: in a replay."""
        ...

    def now_ns(self) -> int:
        """Session time of what is shown: now, unless paused or replaying."""
        ...

    def wall_text(self, t_ns: int, *, ms: bool = False) -> str:
        """A moment of session time as local clock time, HH:MM:SS or HH:MM:SS.mmm."""
        ...

    def snapshot(
        self,
        window: Window,
        *,
        requests: bool = True,
        client: bool = False,
        hardware: bool = False,
        source: str | None = None,
    ) -> Snapshot:
        """Everything as of now; if asked, the client's view and GPUs over time.

        Cheap enough for 2 Hz.

        With a source, of that server alone; of one that is not known: of all.
        """
        ...

    def present(self, source: str | None = None) -> Snapshot:
        """As things are now, whatever moment is shown; without rows of requests.

        For what must be told at once: the header, losses, news. What is shown itself
        where there is no other now: in a replay.
        """
        ...

    def look_closely(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Read GPUs ten times a second while somebody sees it, else once; cheap.

        A screen that shows them calls it when it is shown and when it is left. It also
        looks for a driver again that was not there. In a replay: nothing.
        """
        ...

    @property
    def no_log(self) -> str:
        """Why the log is empty where it is, fit to show."""
        ...

    def log_tail(self, lines: int) -> list[str]:
        """The engine's latest log lines, oldest first."""
        ...

    async def run(self) -> None:
        """Pump readings until the session ends; cancelled when the app closes."""
        ...

    async def restart(self) -> None:
        """Start the lost engine again, in the same session."""
        ...

    async def stop_engine(self) -> None:
        """End a served engine; only after the user said so."""
        ...
