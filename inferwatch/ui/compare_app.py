"""The app that compares sessions: it ends when it is left."""

from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType

from inferwatch.compare.selection import ComparisonRequest
from inferwatch.errors import InferwatchError
from inferwatch.ui.compare.screen import CompareScreen
from inferwatch.ui.onward import Onward
from inferwatch.ui.shared.terminal_app import TerminalApp
from inferwatch.ui.shared.theme import DARK, LIGHT


class CompareApp(TerminalApp[Onward | None]):
    """One screen; None: nowhere else."""

    TITLE = "inferwatch"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
        Binding("t", "theme", "light/dark", show=False, tooltip="Dark or light"),
    ]

    def __init__(self, wanted: ComparisonRequest) -> None:
        super().__init__()
        self._comparing = CompareScreen(wanted)

    @property
    def failure(self) -> InferwatchError | None:
        """Why there was nothing to see; None when there was."""
        return self._comparing.failure

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Inks for the moment before our theme is set."""
        return DARK.variables

    def get_default_screen(self) -> CompareScreen:
        """The only one."""
        return self._comparing

    def on_mount(self) -> None:
        """In our colours."""
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name

    def action_theme(self) -> None:
        """Dark or light."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name


def compare_app(database: Path, sessions: tuple[str, ...]) -> CompareApp:
    """Sessions of one file; the first is what the others are compared with."""
    return CompareApp(ComparisonRequest(database=database, sessions=sessions))
