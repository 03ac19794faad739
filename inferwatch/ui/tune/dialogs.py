"""Over a tune: one setting told whole, and the question before it ends."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.markup import escape
from textual.screen import ModalScreen
from textual.widgets import Static

from inferwatch.studies.tune.progress import TuneProgress
from inferwatch.ui.kit.dialogs import ConfirmScreen
from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.ui.tune.detail import told
from inferwatch.ui.tune.rows import TuneRow
from inferwatch.visible import visible, visible_lines


class EndTuneScreen(ConfirmScreen):
    """Ctrl-C a second time means yes: who types it twice wants out."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "answer(True)", "yes", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__(
            "End the tune?",
            "What was measured is told; --resume takes up the rest.",
            "End it",
            "Go on",
        )


class SettingScreen(ModalScreen[None]):
    """All that is known of a setting: numbers, trials, sessions, causes in full."""

    DEFAULT_CSS = """
    SettingScreen { align: center middle; background: $background 60%; }
    SettingScreen VerticalScroll {
        width: 96; max-width: 100%; height: auto; max-height: 90%; padding: 0 1;
        background: $surface; border: round $primary;
        scrollbar-size-vertical: 1;
    }
    SettingScreen Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "close", key_display="esc"),
        Binding("ctrl+c", "dismiss", "close", show=False, priority=True),
    ]

    def __init__(self, row: TuneRow, progress: TuneProgress) -> None:
        super().__init__()
        self._row, self._progress = row, progress

    def compose(self) -> ComposeResult:
        """Its lines, folded where they are long."""
        text = "\n".join(told(self._row, self._progress))
        with VerticalScroll() as scroll:
            scroll.border_title = escape(visible(self._row.point.text))
            yield Static(visible_lines(text), markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        """Arrows scroll."""
        self.query_one(VerticalScroll).focus()
