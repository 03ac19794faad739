"""A question before something that cannot be taken back."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Label


class AskScreen(ModalScreen[bool]):
    """Yes only by ``y`` or the button: enter and escape mean no."""

    DEFAULT_CSS = """
    AskScreen { align: center middle; background: $background 60%; }
    AskScreen Vertical {
        width: 62; height: auto; padding: 1 2; background: $surface;
        border: round $warning;
    }
    AskScreen Horizontal { height: auto; margin-top: 1; align-horizontal: right; }
    AskScreen Button { margin-left: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape", "answer(False)", "no"),
    ]

    def __init__(self, question: str, consequence: str, yes: str) -> None:
        super().__init__()
        self._question, self._consequence, self._yes = question, consequence, yes

    def compose(self) -> ComposeResult:
        """Question, consequence, two buttons."""
        with Vertical():
            yield Label(f"▲ {self._question}", id="question", markup=False)
            yield Label(self._consequence, id="consequence", markup=False)
            with Horizontal():
                yield Button("n  Keep it", id="no", compact=True)
                yield Button(f"y  {self._yes}", id="yes", variant="error", compact=True)

    def on_mount(self) -> None:
        """No is the answer to a careless enter."""
        self.query_one("#no").focus()

    @on(Button.Pressed)
    def _pressed(self, message: Button.Pressed) -> None:
        self.dismiss(message.button.id == "yes")

    def action_answer(self, yes: bool) -> None:  # noqa: FBT001 - Textual passes it so
        """Answer and go."""
        self.dismiss(yes)
