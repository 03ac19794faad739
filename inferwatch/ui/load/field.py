"""One field of a load plan: its label, its text, and what is wrong with it."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input

from inferwatch.ui.load.plan_form import FormField
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, fit


class LoadRemark(Panel):
    """Beside a field: a hint, or what is wrong."""

    _hint = ""
    _fault = ""

    def say(self, hint: str, fault: str) -> None:
        """A fault goes before a hint."""
        self._hint, self._fault = hint, fault
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        if self._fault:
            return (fit((TextRun(" ✖ ", "bad"), TextRun(self._fault, "bad")), width),)
        return (fit((TextRun(f" {self._hint}", "faint"),), width),)


class LoadLabel(Panel):
    """Names a field."""

    DEFAULT_CSS = """
    LoadLabel { width: 15; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        return (fit((TextRun(f" {self._text}", "muted"),), width),)


class LoadField(Horizontal):
    """Label, text, remark, in one row."""

    DEFAULT_CSS = """
    LoadField {
        height: 1;
        Input { width: 21; height: 1; background: $surface; }
        Input:focus { background: $panel; }
        Input.-textual-compact { padding: 0 1 !important; }
        LoadRemark { width: 1fr; }
    }
    """

    def __init__(self, field: FormField, text: str) -> None:
        super().__init__(id=f"row-{field.key}")
        self.field = field
        self._text = text

    def compose(self) -> ComposeResult:
        """The row."""
        yield LoadLabel(self.field.label)
        yield Input(self._text, compact=True, id=f"field-{self.field.key}")
        yield LoadRemark()

    @property
    def value(self) -> str:
        """What is typed."""
        return self.query_one(Input).value if self.is_mounted else self._text

    def write(self, text: str) -> None:
        """In place of what is typed."""
        self.query_one(Input).value = text

    def say(self, fault: str) -> None:
        """What is wrong with it; empty when nothing is."""
        told = " ".join(fault.split())
        self.query_one(LoadRemark).say(self.field.hint, told)
