"""The app for when nothing runs: it ends with where people want to go."""

from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferwatch.ui.onward import Onward
from inferwatch.ui.shared.terminal_app import TerminalApp
from inferwatch.ui.shared.theme import DARK, LIGHT
from inferwatch.ui.start.screen import StartScreen


class StartApp(TerminalApp[Onward | None]):
    """One screen; None means that people had enough."""

    TITLE = "inferwatch"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit", tooltip="Leave"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
        Binding("t", "theme", "light/dark", show=False, tooltip="Dark or light"),
    ]

    def __init__(self, database: Path, news: str | None = None) -> None:
        super().__init__()
        self._database = database
        self._news = news
        """What to say first: why one could not go where one wanted to."""

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Inks for the moment before our theme is set."""
        return DARK.variables

    def get_default_screen(self) -> StartScreen:
        """The only one."""
        return StartScreen(self._database)

    def on_mount(self) -> None:
        """In our colours."""
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        if self._news is not None:
            self.notify(self._news, severity="error", timeout=10, markup=False)

    def action_theme(self) -> None:
        """Dark or light."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name
