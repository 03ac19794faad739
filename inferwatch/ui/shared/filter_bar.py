"""What a table lists, and how to change that: scopes to choose from, words to match."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, spread

ScopeChip = tuple[str, str]
"""A scope, and what its chip says."""


class FilterBar(Vertical):
    """The scopes and words that a table is filtered by, and a field to type words."""

    DEFAULT_CSS = """
    FilterBar {
        height: auto;
        Input { display: none; height: 1; background: $surface; }
        Input.-textual-compact { padding: 0 1 !important; }
    }
    """

    @dataclass
    class ScopeChosen(Message):
        """The chip of a scope was clicked: list its rows."""

        scope: str

    @dataclass
    class FilterChanged(Message):
        """Other words are to be matched."""

        words: str

    class Closed(Message):
        """The field for words was closed: the owner takes the focus back."""

    def __init__(self, placeholder: str, scope_key: str = "") -> None:
        super().__init__()
        self._placeholder = placeholder
        self._scope_key = scope_key

    def compose(self) -> ComposeResult:
        """The line, the field."""
        yield FilterLine(self._scope_key)
        yield Input(placeholder=self._placeholder, compact=True)

    def show(
        self, chips: Sequence[ScopeChip], scope: str, words: str, told: Line
    ) -> None:
        """Take what is listed, and what is told of it on the right."""
        self.query_one(FilterLine).show(chips, scope, words, told)

    @property
    def asking(self) -> bool:
        """Words are being typed."""
        return self.query_one(Input).display

    def ask(self) -> None:
        """Ask for words."""
        self.query_one(Input).display = True
        self.query_one(Input).focus()

    def clear(self) -> None:
        """Match any row again."""
        self.query_one(Input).clear()
        self.leave()

    @on(Input.Submitted)
    def leave(self) -> None:
        """Close the field; the words stay."""
        self.query_one(Input).display = False
        self.post_message(self.Closed())

    @on(Input.Changed)
    def _match(self, message: Input.Changed) -> None:
        self.post_message(self.FilterChanged(message.value))


class FilterLine(Panel):
    """One row of a filter bar: scopes, words, and what is listed."""

    _chips: Sequence[ScopeChip] = ()
    _scope = ""
    _words = ""
    _told: Line = ()

    def __init__(self, scope_key: str) -> None:
        super().__init__()
        self._scope_key = scope_key

    def show(
        self, chips: Sequence[ScopeChip], scope: str, words: str, told: Line
    ) -> None:
        """Take what is listed."""
        self._chips, self._scope = chips, scope
        self._words, self._told = words, told
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row; with a key for the scopes, keys stand out."""
        del height
        chips = [
            TextRun(
                text, "chip" if scope == self._scope else "muted", f"choose('{scope}')"
            )
            for scope, text in self._chips
        ]
        words = self._words or "no filter"
        ink = "accent" if self._words else "muted"
        if not self._scope_key:
            asked: Line = (TextRun(f"   / {words}", ink, "ask"),)
        else:
            chips.insert(0, TextRun(f"{self._scope_key} ", "accent"))
            asked = (TextRun("   / ", "accent", "ask"), TextRun(words, ink, "ask"))
        return (spread((TextRun(" "), *chips, *asked), self._told, width),)

    def action_ask(self) -> None:
        """The words were clicked."""
        if isinstance(self.parent, FilterBar):
            self.parent.ask()

    def action_choose(self, scope: str) -> None:
        """The chip of a scope was clicked: list its rows."""
        self.post_message(FilterBar.ScopeChosen(scope))
