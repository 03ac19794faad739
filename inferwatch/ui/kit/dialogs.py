"""Dialogs: one line of text, yes and no, or a table computed in a thread."""

from collections.abc import Callable, Sequence
from threading import Event
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label

from inferwatch.ui.kit.keys import KeyFooter
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, fit

Check = Callable[[str], str | None]
"""Returns what is wrong with a text, None if it is fine."""


class DialogInput(Input):
    """The input of a dialog; the footer shows that enter confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "confirm")]


class PromptScreen(ModalScreen[str | None]):
    """Asks for one line of text.

    Returns the text, or None after escape; stays open while the text is wrong.
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
        with Vertical():
            yield Label(self._title, id="title", markup=False)
            yield DialogInput(self._text, compact=True, select_on_focus=False)
            yield Label(self._hint, id="hint", markup=False)
        yield KeyFooter()

    def action_leave(self) -> None:
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
    """Asks before an action that cannot be undone.

    Only ``y`` or the button means yes: enter and escape mean no.
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
        with Vertical():
            yield Label(f"▲ {self._question}", id="question", markup=False)
            yield Label(self._consequence, id="consequence", markup=False)
            with Horizontal():
                yield Button(f"n or enter  {self._no}", id="no", compact=True)
                yield Button(f"y  {self._yes}", id="yes", variant="error", compact=True)
        yield KeyFooter()

    def on_mount(self) -> None:
        """Focus "no", so that a careless enter does nothing."""
        self.query_one("#no").focus()

    @on(Button.Pressed)
    def _pressed(self, message: Button.Pressed) -> None:
        self.dismiss(message.button.id == "yes")

    def action_answer(self, yes: bool) -> None:  # noqa: FBT001 - Textual passes it so
        self.dismiss(yes)


class GivenUpError(Exception):
    """The dialog was closed during a computation."""


class DialogTable(Panel):
    """A heading, a table and sentences; its container scrolls."""

    DEFAULT_CSS = """
    DialogTable { height: auto; min-height: 3; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn: Callable[[int], Sequence[Line]] = lambda _: ()

    def show(self, lines: Callable[[int], Sequence[Line]]) -> None:
        """Show the lines that this makes for a width."""
        self._drawn = lines
        self._fit()
        self.redraw()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        self.styles.height = max(len(self._drawn(self.size.width or 74)), 1)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        return [fit(line, width) for line in self._drawn(width)]


class TableDialog(ModalScreen[None]):
    """Shows a table that is computed in a thread and scrolls by pages."""

    DEFAULT_CSS = """
    TableDialog {
        align: center middle; background: $background 60%;
        #sheet {
            width: 108; max-width: 100%; height: auto; max-height: 100%;
            padding: 0 1; margin-bottom: 1; background: $surface;
            border: round $primary;
        }
        VerticalScroll {
            height: auto; scrollbar-size-vertical: 1;
            scrollbar-color: $ink-faint; scrollbar-background: $surface;
        }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._given_up = Event()
        """Set once nobody waits for the computation."""

    def on_unmount(self) -> None:
        self._given_up.set()

    def action_leave(self) -> None:
        self.dismiss(None)

    def action_scroll(self, way: int) -> None:
        table = self.query_one(VerticalScroll)
        table.scroll_relative(y=way * max(table.size.height - 1, 1))
