"""What the app tells its screens, and they the app. Widgets have their own messages."""

from dataclasses import dataclass
from pathlib import Path

from textual.message import Message

from inferwatch.metrics.snapshot import Snapshot


@dataclass
class SnapshotReady(Message):
    """A fresh picture of everything."""

    snapshot: Snapshot
    charts: bool
    """Charts are drawn at half the pace of the rest."""
    present: Snapshot
    """As things are now, where the picture is of another moment; else the same."""

    def can_replace(self, message: Message) -> bool:
        """Only the newest matters, unless an older one still owes its charts."""
        return isinstance(message, SnapshotReady) and message.charts <= self.charts


class LookAgain(Message):
    """A screen changed what it shows and wants the present picture at once."""


class GoTo(Message):
    """People want to go elsewhere; where they are goes on meanwhile, unseen."""


@dataclass
class OpenSession(GoTo):
    """Replay a recorded session."""

    database: Path
    session: str
    """Its id in that file, as ``s17``."""


@dataclass
class OpenComparison(GoTo):
    """Put sessions side by side; the first is what the others are compared with."""

    database: Path
    sessions: tuple[str, ...]


@dataclass
class OpenSample(GoTo):
    """Replay the session that comes with inferwatch."""


@dataclass
class OpenDemo(GoTo):
    """Start the demo."""


class GoBack(Message):
    """People have seen enough here."""
