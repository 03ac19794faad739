"""Dialogs: one line of text, or yes and no."""

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label

from inferwatch.ui.kit.keys import KeyFooter

Check = Callable[[str], str | None]
"""Says what is wrong with a text, None when nothing is."""


class DialogInput(Input):
    """The field of a dialog: its footer says that enter goes on."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "confirm")]


class PromptScreen(ModalScreen[str | None]):
    """Asks for one line of text: a time to go to, what a bookmark says.

    Ends with the text, or with None by escape; stays while the text is wrong.
    """

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
            yield DialogInput(self._text, compact=True, select_on_focus=False)
            yield Label(self._hint, id="hint", markup=False)
        yield KeyFooter()

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


class ConfirmScreen(ModalScreen[bool]):
    """A question before something that cannot be taken back.

    Yes only by ``y`` or the button: enter and escape mean no.
    """

    DEFAULT_CSS = """
    ConfirmScreen { align: center middle; background: $background 60%; }
    ConfirmScreen Vertical {
        width: 62; height: auto; padding: 1 2; background: $surface;
        border: round $warning;
    }
    ConfirmScreen Horizontal { height: auto; margin-top: 1; align-horizontal: right; }
    ConfirmScreen Button { margin-left: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape", "answer(False)", "no"),
    ]

    def __init__(
        self, question: str, consequence: str, yes: str, keep: str = "Keep it"
    ) -> None:
        super().__init__()
        self._question, self._consequence = question, consequence
        self._yes, self._no = yes, keep

    def compose(self) -> ComposeResult:
        """Question, consequence, two buttons."""
        with Vertical():
            yield Label(f"▲ {self._question}", id="question", markup=False)
            yield Label(self._consequence, id="consequence", markup=False)
            with Horizontal():
                yield Button(f"n or enter  {self._no}", id="no", compact=True)
                yield Button(f"y  {self._yes}", id="yes", variant="error", compact=True)
        yield KeyFooter()

    def on_mount(self) -> None:
        """No is the answer to a careless enter."""
        self.query_one("#no").focus()

    @on(Button.Pressed)
    def _pressed(self, message: Button.Pressed) -> None:
        self.dismiss(message.button.id == "yes")

    def action_answer(self, yes: bool) -> None:  # noqa: FBT001 - Textual passes it so
        """Answer and go."""
        self.dismiss(yes)
