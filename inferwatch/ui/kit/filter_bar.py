"""The scopes and filter of a table, and the input to change them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from inferwatch.ui.kit.panel import LinePanel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    fit,
    join_whole,
    spread,
    width_of,
)
from inferwatch.ui.kit.row_filter import FilterGrammar, RowFilter
from inferwatch.ui.kit.table import CursorTable

SORT_BINDING = Binding(
    "s", "sort", "sort", tooltip="Sort by the next column; clicking a title works too"
)
REVERSE_BINDING = Binding(
    "S", "reverse", "reverse", show=False, tooltip="Reverse the order"
)
ScopeChip = tuple[str, str]
"""A scope and the label of its chip."""


class FilterBar(Vertical):
    """Scopes and filter of a table, with an input to type another filter.

    The valid part of what is typed applies at once; the bar explains the rest.
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
        """The chip of a scope was clicked."""

        scope: str

    @dataclass
    class FilterChanged(Message):
        """The table should list the rows of another filter."""

        filter: RowFilter[Any]

    class FilterClosed(Message):
        """The input was closed: the owner takes the focus back."""

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
        yield FilterLine(self._scope_key)
        yield FilterInput(self._grammar)
        yield FilterRemark(self._grammar, self._examples)

    def show(
        self,
        chips: Sequence[ScopeChip],
        scope: str,
        words: str,
        summary: Line,
        *shorter: Line,
        group: Line = (),
    ) -> None:
        """Show scope, filter and group, and the longest text that fits on the right."""
        line = self.query_one(FilterLine)
        line.show(chips, scope, words, (summary, *shorter), group)

    @property
    def asking(self) -> bool:
        return self.has_class("-asking")

    def ask(self) -> None:
        self.add_class("-asking")
        self.query_one(FilterInput).focus()

    def clear(self) -> None:
        self.query_one(FilterInput).clear()
        self._leave()

    def action_clear(self) -> None:
        self.clear()

    def _leave(self) -> None:
        self.remove_class("-asking")
        self.post_message(self.FilterClosed())

    @on(Input.Submitted)
    def _keep(self, message: Input.Submitted) -> None:
        message.stop()
        if not self._take(message.value, typing=False):
            self._leave()

    @on(Input.Changed)
    def _typed(self, message: Input.Changed) -> None:
        message.stop()
        self._take(message.value, typing=True)

    def _take(self, text: str, *, typing: bool) -> str:
        """Apply a filter's text; return what is wrong with it, empty if nothing is."""
        reading = self._grammar.read(text, typing=typing)
        self.query_one(FilterRemark).say(reading.fault, reading.hint)
        self.query_one(FilterInput).set_class(bool(reading.fault), "-wrong")
        self.post_message(self.FilterChanged(reading.filter))
        return reading.fault


class FilteredList(DOMNode):
    """Connects a filter bar with a table, as the second base of their parent."""

    @property
    @abstractmethod
    def filtered(self) -> CursorTable[Any]:
        """The table that scope and filter apply to."""

    @property
    def listing(self) -> CursorTable[Any]:
        """The visible table, which may be one of groups."""
        return self.filtered

    @abstractmethod
    def show_list(self) -> None:
        """Update everything that depends on the listed rows."""

    def list_within(self, scope: StrEnum) -> None:
        self.filtered.within(scope)
        self.show_list()

    def action_sort(self) -> None:
        self.listing.sort_by_next()

    def action_reverse(self) -> None:
        self.listing.reverse()

    def action_scope(self) -> None:
        scopes = list(type(self.filtered.scope))
        here = scopes.index(self.filtered.scope)
        self.list_within(scopes[(here + 1) % len(scopes)])

    def action_filter(self) -> None:
        self.query_one(FilterBar).ask()

    @on(FilterBar.ScopeChosen)
    def _choose_scope(self, message: FilterBar.ScopeChosen) -> None:
        self.list_within(type(self.filtered.scope)(message.scope))

    @on(FilterBar.FilterChanged)
    def _change_filter(self, message: FilterBar.FilterChanged) -> None:
        self.filtered.narrow(message.filter)
        self.show_list()

    @on(FilterBar.FilterClosed)
    def _leave_filter(self) -> None:
        self.listing.focus()


class FilterInput(Input):
    """The filter input; suggests the rest of a word."""

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
        self.action_end()
        self.action_cursor_right()


class FilterSuggester(Suggester):
    """Suggests completions of the last word."""

    def __init__(self, grammar: FilterGrammar[Any]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._grammar = grammar

    async def get_suggestion(self, value: str) -> str | None:
        return self._grammar.complete(value)


class FilterRemark(LinePanel):
    """Under the input: what is wrong with the filter, else what can be typed."""

    DEFAULT_CSS = """
    FilterRemark { background: $surface; }
    """
    _fault = _needs = ""

    def __init__(self, grammar: FilterGrammar[Any], examples: Sequence[str]) -> None:
        super().__init__()
        self._examples = examples
        self._fields = " ".join(each.begun for each in grammar.fields.values())

    def say(self, fault: str, needs: str = "") -> None:
        """Show a mistake in the filter, else what its current word needs or a hint."""
        self._fault, self._needs = fault, needs
        self.redraw()

    def line(self, width: int) -> Line:
        if self._fault:
            return fit((TextRun(f" ✖ {self._fault}", "bad"),), width)
        if self._needs or not self._examples:
            text = self._needs or f"{self._fields}  or any text, with spaces between"
            return fit((TextRun(f" {text}", "muted"),), width)
        parts = [(TextRun(each, "muted"),) for each in self._examples]
        hint = join_whole(parts, width - 1, " · ")
        return (TextRun(" "), *hint)


class FilterLine(LinePanel):
    """One row of a filter bar: scopes, filter, and what is listed."""

    _chips: Sequence[ScopeChip] = ()
    _scope = ""
    _words = ""
    _summaries: Sequence[Line] = ((),)
    _group: Line = ()

    def __init__(self, scope_key: str) -> None:
        super().__init__()
        self._scope_key = scope_key

    def show(
        self,
        chips: Sequence[ScopeChip],
        scope: str,
        words: str,
        summary: Sequence[Line],
        group: Line,
    ) -> None:
        self._chips, self._scope = chips, scope
        self._words, self._summaries, self._group = words, summary, group
        self.redraw()

    def line(self, width: int) -> Line:
        """Draw scope and filter; if a key changes the scope, keys are highlighted."""
        chips = [
            TextRun(
                text, "chip" if scope == self._scope else "muted", f"choose('{scope}')"
            )
            for scope, text in self._chips
        ]
        words = self._words or "no filter"
        ink = "accent" if self._words else "muted"
        if not self._scope_key:
            filter_runs: Line = (TextRun(f"   / {words}", ink, "ask"),)
        else:
            chips.insert(0, TextRun(f"{self._scope_key} ", "accent"))
            filter_runs = (
                TextRun("   / ", "accent", "ask"),
                TextRun(words, ink, "ask"),
            )
        line = (TextRun(" "), *chips, *filter_runs, *self._group)
        room = width - width_of(line) - 1
        fits = (each for each in self._summaries if width_of(each) <= room)
        return spread(line, next(fits, self._summaries[-1]), width)

    def action_ask(self) -> None:
        if isinstance(self.parent, FilterBar):
            self.parent.ask()

    def action_choose(self, scope: str) -> None:
        self.post_message(FilterBar.ScopeChosen(scope))
