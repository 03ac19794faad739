"""Words with a fixed list of meanings that snapshots are told in."""

from enum import Enum, StrEnum


class Window(Enum):
    """The span a number covers; ``value`` in ns, None for the whole session."""

    TEN_SECONDS = 10_000_000_000
    MINUTE = 60_000_000_000
    FIVE_MINUTES = 300_000_000_000
    SESSION = None

    @property
    def label(self) -> str:
        """As screens write it."""
        return {
            Window.TEN_SECONDS: "10 s",
            Window.MINUTE: "60 s",
            Window.FIVE_MINUTES: "5 min",
            Window.SESSION: "session",
        }[self]


class Health(StrEnum):
    """The verdict in one word, worst last."""

    STARTING = "starting"
    IDLE = "idle"
    HEALTHY = "healthy"
    QUEUEING = "queueing"
    STALLED = "stalled"
    LOST = "lost"


class RequestState(StrEnum):
    """Where a request is."""

    ARRIVED = "arrived"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"

    @property
    def live(self) -> bool:
        """Still in the engine or on its way there."""
        return self not in {
            RequestState.FINISHED,
            RequestState.ABORTED,
            RequestState.FAILED,
        }


class RunState(StrEnum):
    """Where a load run is."""

    STARTING = "starting"
    WARMING_UP = "warming up"
    SENDING = "sending"
    DRAINING = "draining"
    """Everything was sent; what is in flight may end."""
    SILENT = "silent"
    """It did not end, and yet nothing is heard of it."""
    ENDED = "ended"

    @property
    def going_on(self) -> bool:
        """It has not ended, as far as one knows."""
        return self not in {RunState.SILENT, RunState.ENDED}
