"""What the request table lists, and how to change that."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.message import Message

from inferwatch.formatting import format_count
from inferwatch.ui.requests.order import Order, Scope
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, spread


class FilterLine(Panel):
    """One row: scope, words, how many of how many."""

    @dataclass
    class FilterAsked(Message):
        """The words were clicked."""

    _order = Order()
    _listed = 0
    _known = 0
    _evicted = 0

    def show(self, order: Order, listed: int, known: int, evicted: int) -> None:
        """Take what is listed."""
        self._order, self._listed = order, listed
        self._known, self._evicted = known, evicted
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        scopes = [
            TextRun(
                f" {scope.value} ",
                "chip" if scope is self._order.scope else "muted",
                f"screen.choose_scope('{scope.value}')",
            )
            for scope in Scope
        ]
        scopes.insert(0, TextRun("e ", "accent", "screen.scope"))
        words = self._order.text or "no filter"
        ink = "accent" if self._order.text else "muted"
        filter_ = (TextRun("   / ", "accent", "ask"), TextRun(words, ink, "ask"))
        counts = f"{_count(self._listed)} of {_count(self._known)} requests"
        if self._evicted:
            counts += f", {_count(self._evicted)} older ones let go"
        return (
            spread(
                (TextRun(" "), *scopes, *filter_),
                (TextRun(f"{counts} ", "muted"),),
                width,
            ),
        )

    def action_ask(self) -> None:
        """Ask for words to match."""
        self.post_message(self.FilterAsked())


def _count(count: int) -> str:
    return format_count(count).strip()
