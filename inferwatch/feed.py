"""What the screens are given: a session, live or recorded, and nothing else."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from inferwatch.metrics.snapshot import Snapshot, Window


class FeedState(StrEnum):
    """Where the numbers come from right now."""

    STARTING = "starting"
    LIVE = "live"
    REPLAYING = "replaying"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordState:
    """What the recorder does, for the header."""

    session_id: str
    file_bytes: int = 0
    written: int = 0
    unrecorded: int = 0
    message: str | None = None
    """Why recording is impaired, fit to show; None when all is well."""


class Feed(Protocol):
    """A session as the screens see it."""

    @property
    def state(self) -> FeedState:
        """Where the numbers come from."""
        ...

    @property
    def served(self) -> bool:
        """The engine outlives us: ``q`` detaches, stopping is asked for."""
        ...

    @property
    def can_restart(self) -> bool:
        """The engine is gone and we know how to start it again."""
        ...

    @property
    def record(self) -> RecordState | None:
        """None with ``--no-record``."""
        ...

    def now_ns(self) -> int:
        """Session time now."""
        ...

    def wall_text(self, t_ns: int) -> str:
        """A moment of session time as local clock time, HH:MM:SS."""
        ...

    def snapshot(self, window: Window, *, requests: bool = True) -> Snapshot:
        """Everything as of now; cheap enough for 2 Hz."""
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
