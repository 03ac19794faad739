"""Nothing is running: what can I do?"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from inferwatch import __version__
from inferwatch.ui.sessions.browser import BROWSER_KEYS, SessionBrowser
from inferwatch.ui.shared.drawers import toggle_help
from inferwatch.ui.shared.keys import HERE, KeyFooter
from inferwatch.ui.shared.messages import (
    OpenComparison,
    OpenDemo,
    OpenSample,
    OpenSession,
)
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import (
    Line,
    TextRun,
    cells,
    fit,
    ruled,
    spread,
)
from inferwatch.ui.shared.session_screen import SHORT


class StartScreen(Screen[None]):
    """Leads to a demo, the sample, or what was recorded."""

    NAME = "start"

    DEFAULT_CSS = """
    StartScreen { layers: default drawer; }
    """
    AUTO_FOCUS = "SessionTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "D",
            "demo",
            "demo",
            tooltip="Start the demo: a small real vLLM engine under load",
        ),
        Binding(
            "x",
            "sample",
            "sample",
            tooltip="Replay the recorded session that ships with inferwatch",
        ),
        Binding(
            "question_mark",
            "help",
            "help",
            key_display="?",
            tooltip="This help: all keys",
        ),
    ]

    def __init__(self, database: Path) -> None:
        super().__init__()
        self._database = database

    def compose(self) -> ComposeResult:
        """What can be done, then what was recorded."""
        yield StartPanel()
        yield SessionBrowser(
            self._database, "nothing is recorded yet: D records a demo"
        )
        yield KeyFooter()

    def on_resize(self) -> None:
        """Leave out what has no room."""
        self.query_one(SessionBrowser).set_class(self.size.height < SHORT, "-short")

    def action_demo(self) -> None:
        """Start the demo."""
        self.post_message(OpenDemo())

    def action_sample(self) -> None:
        """Replay the sample."""
        self.post_message(OpenSample())

    def action_help(self) -> None:
        """Open or close the explanations."""
        toggle_help(self, "Nothing is running: what can I do?", {HERE: BROWSER_KEYS})

    @on(SessionBrowser.ReplayRequested)
    def _open(self, message: SessionBrowser.ReplayRequested) -> None:
        session = message.session.row.id
        self.post_message(OpenSession(database=self._database, session=session))

    @on(SessionBrowser.CompareRequested)
    def _compare(self, message: SessionBrowser.CompareRequested) -> None:
        self.post_message(OpenComparison(database=self._database, sessions=message.ids))


CHOICES = (
    ("D", "demo", "start a small real vLLM engine; no GPU needed"),
    ("x", "sample", "replay the session that ships with inferwatch"),
)
"""Key, action, what it does."""
COMMANDS = (
    ("inferwatch serve MODEL", "start a vLLM engine and watch it"),
    ("inferwatch load URL --rate 5", "load a running server, and measure it"),
)
"""What wants more than a key."""


class StartPanel(Panel):
    """What can be done when nothing runs: keys to press, commands to type."""

    DEFAULT_CSS = """
    StartPanel { height: 8; }
    """

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The rows."""
        del height
        name = (TextRun(" inferwatch ", "strong"), TextRun(__version__, "muted"))
        none = (TextRun("○ no engine is running here ", "muted"),)
        return (
            spread(name, none, width),
            (),
            *(fit(_choice(*choice), width) for choice in CHOICES),
            *(fit(_command(*command), width) for command in COMMANDS),
            (),
            ruled((TextRun("recorded sessions", "muted"),), (), width),
        )


def _choice(key: str, action: str, what: str) -> Line:
    run = f"screen.{action}"
    return (
        TextRun(f"  {key} ", "accent", run),
        cells(action, 29, "")._replace(action=run),
        TextRun(what, "muted", run),
    )


def _command(typed: str, what: str) -> Line:
    return (TextRun("  $ ", "faint"), cells(typed, 29), TextRun(what, "muted"))
