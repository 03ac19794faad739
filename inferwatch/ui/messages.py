"""What screens ask of the app. Widgets define messages of their own."""

from dataclasses import dataclass
from pathlib import Path

from textual.message import Message


class LookAgain(Message):
    """The screen changed what it shows and needs a snapshot now."""


@dataclass
class LookAt(Message):
    """Show another screen of the session, by name."""

    screen: str


@dataclass
class OpenRequest(Message):
    """Show a request on its own screen, by its key in snapshots."""

    key: str


@dataclass
class OpenStep(Message):
    """Show the step that ran at a moment, and hold the view there."""

    t_ns: int
    key: str = ""
    """Key of a request that the step belongs to; empty for any."""


@dataclass
class OpenWhatIf(Message):
    """Open the what-if dialog."""

    source: str | None
    """None for all servers."""


@dataclass
class OpenReview(Message):
    """Open the review of a server's set-up."""

    source: str | None
    """None for all servers."""


@dataclass
class OpenKnobs(Message):
    """Open the dialog of the engine's limits."""

    source: str | None
    """None for all servers."""


class OpenProfile(Message):
    """Open the latest profile or what is under way; without any, ask for one."""


class BeginProfile(Message):
    """Ask which steps to profile."""


class GoTo(Message):
    """Open another page; this one keeps running."""


@dataclass
class OpenSession(GoTo):
    """Replay a recorded session."""

    database: Path
    session: str
    """Id in the file, such as ``s17``."""


@dataclass
class OpenComparison(GoTo):
    """Asks the app for a page that compares sessions, each with the first of them."""

    database: Path
    sessions: tuple[str, ...]


@dataclass
class OpenSample(GoTo):
    """Replay the sample session."""


@dataclass
class OpenServers(GoTo):
    """Watch running servers by address."""

    urls: tuple[str, ...]


@dataclass
class OpenServed(GoTo):
    """Watch an engine served by inferwatch."""

    engine_id: str


@dataclass
class OpenDemo(GoTo):
    """Asks the app to start the demo and watch it."""


class GoBack(Message):
    """Go back a page."""
