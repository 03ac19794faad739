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


@dataclass
class LookAt(Message):
    """People want another screen of the same session, by its name."""

    screen: str


@dataclass
class OpenRequest(Message):
    """People want one request on a screen of its own, by its key in snapshots."""

    key: str


@dataclass
class OpenWhatIf(Message):
    """People ask what other settings would have made of the last minutes."""

    source: str | None
    """Of one server, or of all."""


@dataclass
class OpenKnobs(Message):
    """People want to turn the limits of a running engine, or see who did."""

    source: str | None
    """Of one server, or of all."""


class GoTo(Message):
    """People want to go elsewhere; where they are goes on meanwhile, unseen."""


@dataclass
class OpenSession(GoTo):
    """People want a recorded session replayed."""

    database: Path
    session: str
    """Its id in that file, as ``s17``."""


@dataclass
class OpenComparison(GoTo):
    """People want sessions compared, each of the others with the first."""

    database: Path
    sessions: tuple[str, ...]


@dataclass
class OpenSample(GoTo):
    """People want the session replayed that comes with inferwatch."""


@dataclass
class OpenServers(GoTo):
    """People want running servers watched, by their addresses."""

    urls: tuple[str, ...]


@dataclass
class OpenServed(GoTo):
    """People want an engine watched that inferwatch serves."""

    engine_id: str


@dataclass
class OpenDemo(GoTo):
    """People want the demo started."""


class GoBack(Message):
    """People have seen enough here."""
