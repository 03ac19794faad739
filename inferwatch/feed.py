"""The protocols of a session that screens are given, live or recorded."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from collectors.contract.readings import LiveLimits, MetricsPage, Step
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.story.story import RequestStory
from inferwatch.profiles.report import ProfileReport


class FeedState(StrEnum):
    """Where the numbers on screen come from."""

    STARTING = "starting"
    LIVE = "live"
    REPLAYING = "replaying"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightState:
    """The readings kept in memory until a rule of ``--record-on`` holds."""

    keep_s: float
    """How many seconds of readings are to be kept."""
    kept_s: float
    """How many seconds of readings are kept at present."""
    kept_bytes: int
    cut_short: bool = False
    """Whether memory is full, so that less than ``keep_s`` can be kept."""
    sessions: tuple[str, ...] = ()
    """The ids of the sessions recorded so far, the present one included."""
    because: str | None = None
    """The rule that is being recorded for; None while readings are only kept."""
    since_ns: int | None = None
    """Since when it is being recorded; None while readings are only kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordState:
    """The state of the recorder, for the header."""

    session_id: str
    file_bytes: int = 0
    """The size of the whole file, with other sessions."""
    grown_bytes: int = 0
    """By how much the file grew with this session; it never falls."""
    written: int = 0
    unrecorded: int = 0
    message: str | None = None
    """Why recording is impaired, fit to show; None when it is not."""
    flight: FlightState | None = None
    """None when everything is recorded."""


class MarkKind(StrEnum):
    """Why a moment of a session is worth a look."""

    LOAD = "load"
    """A load run began, changed its rate or ended."""
    LOST = "lost"
    """An engine was lost, or came back."""
    LIMITS = "limits"
    """A limit of a running engine was changed."""
    SLO = "slo"
    """A minute missed an objective of the load, or a watched objective began to be
    missed, or is met again."""
    PREEMPTION = "preemption"
    """Requests were preempted after a time without preemptions."""
    COMPILATION = "compilation"
    """The engine compiled a kernel or recorded a CUDA graph while it served."""
    STALL = "stall"
    """Requests waited and no step ended for a time."""
    FINDING = "finding"
    """A finding began to hold, or no longer holds."""
    ALERT = "alert"
    """A rule of --record-on or --alert began to hold."""
    BOOKMARK = "bookmark"
    OTHER = "other"
    """Another note that people should see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment worth a look: drawn on the time line, reached by ``n`` and ``N``."""

    t_ns: int
    kind: MarkKind
    text: str


class Playback(Protocol):
    """Moves the view to any moment of a session, while it is recorded or later.

    All times are session time. While a call takes time, ``Feed.snapshot`` returns the
    old snapshot: it never waits.
    """

    @property
    def span_ns(self) -> tuple[int, int]:
        """The first and the latest moment that can be shown."""
        ...

    @property
    def position_ns(self) -> int:
        """The session time of the moment shown."""
        ...

    @property
    def goes_on(self) -> bool:
        """Whether the session is still being recorded; its end can be followed then."""
        ...

    @property
    def at_live(self) -> bool:
        """Whether the end is followed: the moment shown is now."""
        ...

    @property
    def playing(self) -> bool:
        """Whether the position advances."""
        ...

    @property
    def speed(self) -> float:
        """Seconds of the session per second, from 0.1 to 100."""
        ...

    @property
    def seeking(self) -> bool:
        """Whether a seek is under way; the snapshot is still that of the old moment."""
        ...

    @property
    def opening(self) -> bool:
        """Whether the moment to begin with was not reached yet."""

    @property
    def cannot_seek(self) -> str | None:
        """Why only pausing works, as a text; None if any moment can be shown."""
        ...

    @property
    def shape(self) -> Timeline | None:
        """The whole session in at most 240 columns; None until known."""
        ...

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The marks of the session, in order of time."""
        ...

    def play(self) -> None:
        """Let the position advance from where it is."""
        ...

    def pause(self) -> None:
        """Pause the view; recording goes on."""
        ...

    def set_speed(self, speed: float) -> None:
        """Set the speed, kept within 0.1 and 100."""
        ...

    async def seek(self, t_ns: int) -> None:
        """Show a moment, kept within the span; a later call overtakes this one."""
        ...

    async def step(self, count: int) -> None:
        """Pause and move by engine steps, back when negative."""
        ...

    async def go_live(self) -> None:
        """Follow a session that is being recorded; of one that ended, show the end."""
        ...

    def bookmarks(self) -> Sequence[Mark]:
        """Read the bookmarks in the record, which ``marks`` may still lack.

        Raises:
            StorageError: the record cannot be read.
        """
        ...

    async def bookmark(self, text: str, t_ns: int | None = None) -> None:
        """Bookmark a moment, by default the position; it is kept in the record.

        Raises:
            StorageError: the record cannot be written.
        """
        ...


class LoadDesk(Protocol):
    """Starts, changes and stops load on the watched server."""

    @property
    def running(self) -> bool:
        """Whether a load run of ours is under way."""
        ...

    @property
    def plan(self) -> LoadPlan:
        """The plan of the current run, else of the last one, else one to start with."""
        ...

    @property
    def must_name_host(self) -> str | None:
        """The host name to type before a load, if others use the server; else None."""
        ...

    @property
    def unavailable(self) -> str | None:
        """Why no load can be started now, as a text to show; None if one can."""
        ...

    async def start(self, plan: LoadPlan) -> None:
        """Run a plan, with the url, uds and model of the watched server.

        Raises:
            SourceError: there is no engine, or the generator did not start.
        """
        ...

    async def change(
        self,
        *,
        rate_per_s: float | None = None,
        concurrency: int | None = None,
        burst: int | None = None,
    ) -> None:
        """Change the current run from now on; the record marks when.

        ``burst`` is a number of requests to send at once, beside the rate.
        A rate over time is replaced by the one rate. Without a current run, do nothing.

        Raises:
            UsageError: a run of that kind cannot be changed like this.
        """
        ...

    async def stop(self) -> None:
        """Stop sending and abort the requests in flight."""
        ...


class Recall(Protocol):
    """Looks up single steps and requests, as of the moment shown.

    A live session looks them up in memory, and earlier ones in its record, as for a
    recorded session: equal readings give equal results.
    """

    async def steps(
        self, start_ns: int, end_ns: int, source: str | None = None
    ) -> Sequence[Step]:
        """Return the steps that ended in a span, oldest first: the latest 20,000.

        The steps include their members.
        """
        ...

    async def request(self, key: str) -> RequestStory | None:
        """Return the story of a request; None if nothing is known of it."""
        ...

    async def metrics_pages(
        self, start_ns: int, end_ns: int, source: str
    ) -> Sequence[MetricsPage]:
        """Return a server's pages of a span, oldest first: at most 60, evenly spread.

        Each has all its lines.
        """
        ...


class CanarySwitch(Protocol):
    """Sends canary requests, tiny ones, to what is watched; off until turned on."""

    @property
    def on(self) -> tuple[str, ...]:
        """The sources of the servers that canary requests are sent to."""
        ...

    def targets(self, source: str | None) -> tuple[str, ...]:
        """Return where canaries can be sent: the given source, or all that answer."""
        ...

    def start(self, source: str | None) -> None:
        """Send canary requests to this source, or to all that answer, from now on."""
        ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPair:
    """The limits to set on an engine; None leaves one as it is."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


class LimitDesk(Protocol):
    """Sets and restores the limits of a running engine.

    The engine itself reports its limits: ``Snapshot.live_limits``.
    """

    @property
    def unavailable(self) -> str | None:
        """Why no limit can be set now, as a text to show; None if one can."""
        ...

    @property
    def must_name_host(self) -> str | None:
        """The host name to type first, if others use the engine; else None."""
        ...

    @property
    def by(self) -> str:
        """The name by which the engine knows us, as in ``LiveLimits.by``."""
        ...

    @property
    def answered(self) -> tuple[LiveLimits, ...]:
        """The limits in the engine's last answer, by rank; empty before any answer.

        The engine also reports a change as a reading with its next step, which an idle
        engine does not take. Times in the answer are the engine's own.
        """
        ...

    async def set(self, wanted: LimitPair, *, keep: bool = False) -> None:
        """Set the limits on all ranks; they are restored when we disconnect.

        With ``keep`` they stay.

        Raises:
            UsageError: the engine refuses; the message says why.
            SourceError: the engine is gone.
        """
        ...

    async def reset(self) -> None:
        """Restore the limits that the engine was started with.

        Raises:
            SourceError: the engine is gone.
        """
        ...


class ProfileStage(StrEnum):
    """How far the profile that was asked for last has come."""

    NONE = "none"
    WAITING = "waiting"
    """For the condition with which it is to begin."""
    PROFILING = "profiling"
    WRITING = "writing"
    """The engine writes its traces, and makes no step meanwhile."""
    READING = "reading"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileProgress:
    """The profile that was asked for last, for the screen."""

    stage: ProfileStage = ProfileStage.NONE
    steps: int | None = None
    """Steps that have ended in it."""
    steps_asked: int = 0
    read_share: float | None = None
    """Of its traces, 0-1, while they are read."""
    key: str | None = None
    """Of the profile, once it is among the session's."""
    text: str = ""
    """Why it failed or ended early, as text for users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenProfile:
    """A profile of the session whose traces may still be there."""

    number: int
    """Of those of the session, from 1."""
    key: str
    source: str
    began_ns: int
    ended_ns: int
    steps: int | None = None
    """None where its ranks have not counted them."""
    by: str | None = None
    why: str | None = None
    """Why it ended early."""
    held_up_ns: int | None = None
    """How long writing its traces held up the engine; None until they were read, where
    vLLM wrote them within a step."""
    lost: str | None = None
    """Why its traces cannot be read; None if they can."""


class ProfileDesk(Protocol):
    """Profiles steps of the watched engine, and reads what was profiled."""

    @property
    def unavailable(self) -> str | None:
        """Why no profile can begin now, as a text to show; None if one can."""
        ...

    @property
    def progress(self) -> ProfileProgress: ...

    @property
    def taken(self) -> Sequence[TakenProfile]:
        """The session's profiles up to the moment shown, oldest first."""
        ...

    async def begin(self, steps: int | None = None) -> None:
        """Begin a profile; ``progress`` tells how it goes.

        Raises:
            UsageError: one is on already, or the engine refuses.
            SourceError: the engine is gone, or cannot be profiled.
        """
        ...

    async def stop(self) -> None:
        """End the profile at once; what has been profiled is read."""
        ...

    async def report(self, key: str) -> ProfileReport:
        """Read a profile's traces; a second time it is there at once.

        Raises:
            StorageError: its traces are gone, or cannot be read.
        """
        ...


class Feed(Protocol):
    """A session as the screens see it."""

    @property
    def state(self) -> FeedState:
        """Where the numbers on screen come from."""
        ...

    @property
    def served(self) -> bool:
        """Whether the engine outlives this process, so that ``q`` detaches."""
        ...

    @property
    def starts(self) -> bool:
        """Whether the engine is one that we start, so that its start has stages."""
        ...

    @property
    def can_stop(self) -> bool:
        """Whether the engine is ours to stop; the user confirms it first."""
        ...

    @property
    def can_restart(self) -> bool:
        """Whether the engine is gone and can be started again."""
        ...

    @property
    def record(self) -> RecordState | None:
        """The state of the recorder; None with ``--no-record``."""
        ...

    @property
    def playback(self) -> Playback | None:
        """What moves the view to other moments; None if there is only the present."""
        ...

    @property
    def recall(self) -> Recall: ...

    @property
    def canary(self) -> CanarySwitch | None:
        """What sends canary requests; None where that is impossible: in a replay."""
        ...

    @property
    def load_desk(self) -> LoadDesk | None:
        """What starts and stops load; None where that is impossible: in a replay."""
        ...

    @property
    def limit_desk(self) -> LimitDesk | None:
        """What sets the engine's limits; None where that is impossible: in a replay."""
        ...

    @property
    def profile_desk(self) -> ProfileDesk:
        """What profiles steps, and reads earlier profiles: in a replay only these."""
        ...

    def now_ns(self) -> int:
        """Return the session time of what is shown: now, unless paused or replayed."""
        ...

    def wall_text(self, t_ns: int, *, ms: bool = False) -> str:
        """Return local wall-clock time as HH:MM:SS, or as HH:MM:SS.mmm."""
        ...

    def snapshot(self, query: SnapshotQuery) -> Snapshot:
        """Return the snapshot of the moment shown; cheap enough for 2 Hz."""
        ...

    def present(self, source: str | None = None) -> Snapshot:
        """Return the snapshot of now, whatever moment is shown, without requests.

        Header, losses and news use it, as they must be seen at once. In a replay it is
        of the moment shown.
        """
        ...

    def look_closely(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Read GPUs ten times a second while on screen, else once a second.

        A screen with GPUs calls this when it is shown and when it is left. A driver
        that was missing is looked for again. In a replay nothing happens.
        """
        ...

    @property
    def no_log(self) -> str:
        """Why there are no log lines, as a text to show."""
        ...

    def log_tail(self, lines: int) -> list[str]:
        """Return the engine's last log lines, oldest first."""
        ...

    async def run(self) -> None:
        """Take readings until the session ends; cancelled when the app closes."""
        ...

    async def restart(self) -> None:
        """Start the lost engine again, in the same session."""
        ...

    async def stop_engine(self) -> None:
        """Stop a served engine; call it only after the user confirmed."""
        ...
