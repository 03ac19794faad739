"""Nothing runs: what can be done?"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer

from inferwatch.ui.sessions.browser import BROWSER_KEYS, SessionBrowser
from inferwatch.ui.shared.help_drawer import Key, toggle_help
from inferwatch.ui.shared.messages import (
    OpenComparison,
    OpenDemo,
    OpenSample,
    OpenSession,
)
from inferwatch.ui.start.panel import StartPanel

KEYS: Sequence[Key] = (
    ("D", "start the demo: a small real vLLM engine under load"),
    ("x", "look at the recorded session that comes with inferwatch"),
    *BROWSER_KEYS,
    ("t", "dark or light"),
    ("q", "quit"),
)
SHORT = 32
"""Rows; with fewer, margins go."""


class StartScreen(Screen[None]):
    """Leads to a demo, the sample, or what was recorded."""

    NAME = "start"

    DEFAULT_CSS = """
    StartScreen { layers: default drawer; }
    """
    AUTO_FOCUS = "SessionTable"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("D", "demo", "demo", show=False, tooltip="Start a small real engine"),
        Binding(
            "x", "sample", "sample", show=False, tooltip="A session that comes with us"
        ),
        Binding(
            "question_mark", "help", "help", key_display="?", tooltip="What the keys do"
        ),
    ]

    def __init__(self, database: Path) -> None:
        super().__init__()
        self._database = database

    def compose(self) -> ComposeResult:
        """What can be done, then what was recorded."""
        yield StartPanel()
        yield SessionBrowser(self._database, "nothing recorded yet: D records a demo")
        yield Footer(compact=True, show_command_palette=False)

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
        toggle_help(self, "Nothing runs: what can be done?", (), KEYS)

    @on(SessionBrowser.ReplayRequested)
    def _open(self, message: SessionBrowser.ReplayRequested) -> None:
        session = message.session.row.id
        self.post_message(OpenSession(database=self._database, session=session))

    @on(SessionBrowser.CompareRequested)
    def _compare(self, message: SessionBrowser.CompareRequested) -> None:
        self.post_message(OpenComparison(database=self._database, sessions=message.ids))
