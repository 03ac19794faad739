"""Asks for one line of text: a time to go to, what a bookmark says."""

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label

Check = Callable[[str], str | None]
"""Says what is wrong with a text, None when nothing is."""


class PromptScreen(ModalScreen[str | None]):
    """Ends with the text, or with None by escape; stays while the text is wrong."""

    DEFAULT_CSS = """
    PromptScreen { align: center bottom; }
    PromptScreen Vertical {
        width: 78; max-width: 100%; height: auto; padding: 0 1; margin-bottom: 2;
        background: $surface; border: round $primary;
    }
    PromptScreen Input { background: $panel; }
    PromptScreen Input.-textual-compact { padding: 0 1 !important; }
    PromptScreen #hint { color: $ink-muted; width: 100%; }
    PromptScreen #hint.-wrong { color: $error; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "close"),
        Binding("ctrl+c", "leave", "close", show=False, priority=True),
    ]

    def __init__(self, title: str, hint: str, check: Check, text: str = "") -> None:
        super().__init__()
        self._title, self._hint, self._check, self._text = title, hint, check, text

    def compose(self) -> ComposeResult:
        """What is asked, a field, what can be typed or what is wrong with it."""
        with Vertical():
            yield Label(self._title, id="title", markup=False)
            yield Input(self._text, compact=True, select_on_focus=False)
            yield Label(self._hint, id="hint", markup=False)

    def action_leave(self) -> None:
        """Never mind."""
        self.dismiss(None)

    @on(Input.Submitted)
    def _answer(self, message: Input.Submitted) -> None:
        wrong = self._check(message.value)
        if wrong is None:
            self.dismiss(message.value)
            return
        hint = self.query_one("#hint", Label)
        hint.update(f"▲ {wrong}")
        hint.add_class("-wrong")

    @on(Input.Changed)
    def _typing(self) -> None:
        hint = self.query_one("#hint", Label)
        if hint.has_class("-wrong"):
            hint.update(self._hint)
            hint.remove_class("-wrong")
