"""What a table lists, and how to change that: scopes to choose from, a filter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    fit,
    join_whole,
    spread,
    width_of,
)
from inferwatch.ui.kit.row_filter import FilterGrammar, RowFilter

ScopeChip = tuple[str, str]
"""A scope, and what its chip says."""


class FilterBar(Vertical):
    """The scopes and the filter that a table is under, and a field to type another.

    What is typed holds at once as far as it makes sense; the bar says what does not,
    and what would.
    """

    DEFAULT_CSS = """
    FilterBar {
        height: auto;
        FilterInput, FilterRemark { display: none; }
        &.-asking FilterInput, &.-asking FilterRemark { display: block; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "clear", "clear")]

    @dataclass
    class ScopeChosen(Message):
        """The chip of a scope was clicked: list its rows."""

        scope: str

    @dataclass
    class FilterChanged(Message):
        """Other rows are to be listed."""

        filter: RowFilter[Any]

    class FilterClosed(Message):
        """The field was closed: the owner takes the focus back."""

    def __init__(
        self,
        grammar: FilterGrammar[Any],
        scope_key: str = "",
        examples: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._grammar = grammar
        self._scope_key = scope_key
        self._examples = examples

    def compose(self) -> ComposeResult:
        """The line, the field, what can be typed into it."""
        yield FilterLine(self._scope_key)
        yield FilterInput(self._grammar)
        yield FilterRemark(self._grammar, self._examples)

    def show(
        self,
        chips: Sequence[ScopeChip],
        scope: str,
        words: str,
        told: Line,
        *shorter: Line,
        group: Line = (),
    ) -> None:
        """Take what is listed, its group, and what is told of it on the right.

        Where there is no room for that, something shorter is told.
        """
        line = self.query_one(FilterLine)
        line.show(chips, scope, words, (told, *shorter), group)

    @property
    def asking(self) -> bool:
        """A filter is being typed."""
        return self.has_class("-asking")

    def ask(self) -> None:
        """Ask for a filter."""
        self.add_class("-asking")
        self.query_one(FilterInput).focus()

    def clear(self) -> None:
        """List any row again."""
        self.query_one(FilterInput).clear()
        self._leave()

    def action_clear(self) -> None:
        """Never mind."""
        self.clear()

    def _leave(self) -> None:
        self.remove_class("-asking")
        self.post_message(self.FilterClosed())

    @on(Input.Submitted)
    def _keep(self, message: Input.Submitted) -> None:
        """Close the field; the filter stays."""
        message.stop()
        if not self._take(message.value, typing=False):
            self._leave()

    @on(Input.Changed)
    def _typed(self, message: Input.Changed) -> None:
        message.stop()
        self._take(message.value, typing=True)

    def _take(self, text: str, *, typing: bool) -> str:
        """What is wrong with it."""
        reading = self._grammar.read(text, typing=typing)
        self.query_one(FilterRemark).say(reading.fault, reading.hint)
        self.query_one(FilterInput).set_class(bool(reading.fault), "-wrong")
        self.post_message(self.FilterChanged(reading.filter))
        return reading.fault


class FilterInput(Input):
    """Where a filter is typed; the rest of a word is offered as it is begun."""

    DEFAULT_CSS = """
    FilterInput { height: 1; background: $surface; }
    FilterInput.-textual-compact { padding: 0 1 !important; }
    FilterInput.-wrong { color: $error; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", "complete"),
        Binding("enter", "submit", "keep"),
    ]

    def __init__(self, grammar: FilterGrammar[Any]) -> None:
        super().__init__(
            placeholder="field>value, field:text or any text",
            suggester=FilterSuggester(grammar),
            compact=True,
        )

    def action_complete(self) -> None:
        """Take what is offered."""
        self.action_end()
        self.action_cursor_right()


class FilterSuggester(Suggester):
    """Offers what the word at the end may become."""

    def __init__(self, grammar: FilterGrammar[Any]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._grammar = grammar

    async def get_suggestion(self, value: str) -> str | None:
        """The whole text, completed."""
        return self._grammar.complete(value)


class FilterRemark(Panel):
    """Below the field: what is wrong with it, else what can be typed."""

    DEFAULT_CSS = """
    FilterRemark { background: $surface; }
    """
    _fault = _needs = ""

    def __init__(self, grammar: FilterGrammar[Any], examples: Sequence[str]) -> None:
        super().__init__()
        self._examples = examples
        self._fields = " ".join(each.begun for each in grammar.fields.values())

    def say(self, fault: str, needs: str = "") -> None:
        """Show a fault, else what the word needs that is typed, else the hint."""
        self._fault, self._needs = fault, needs
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        if self._fault:
            return (fit((TextRun(f" ✖ {self._fault}", "bad"),), width),)
        if self._needs or not self._examples:
            text = self._needs or f"{self._fields}  or any text, with spaces between"
            return (fit((TextRun(f" {text}", "muted"),), width),)
        parts = [(TextRun(each, "muted"),) for each in self._examples]
        hint = join_whole(parts, width - 1, " · ")
        return ((TextRun(" "), *hint),)


class FilterLine(Panel):
    """One row of a filter bar: scopes, words, and what is listed."""

    _chips: Sequence[ScopeChip] = ()
    _scope = ""
    _words = ""
    _told: Sequence[Line] = ((),)
    _group: Line = ()

    def __init__(self, scope_key: str) -> None:
        super().__init__()
        self._scope_key = scope_key

    def show(
        self,
        chips: Sequence[ScopeChip],
        scope: str,
        words: str,
        told: Sequence[Line],
        group: Line,
    ) -> None:
        """Take what is listed."""
        self._chips, self._scope = chips, scope
        self._words, self._told, self._group = words, told, group
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
        line = (TextRun(" "), *chips, *asked, *self._group)
        room = width - width_of(line) - 1
        fits = (each for each in self._told if width_of(each) <= room)
        return (spread(line, next(fits, self._told[-1]), width),)

    def action_ask(self) -> None:
        """The words were clicked."""
        if isinstance(self.parent, FilterBar):
            self.parent.ask()

    def action_choose(self, scope: str) -> None:
        """The chip of a scope was clicked: list its rows."""
        self.post_message(FilterBar.ScopeChosen(scope))
