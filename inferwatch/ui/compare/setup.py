"""How the sessions were set up, which part is compared, how it is judged."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from inferwatch.compare.comparison import Comparison
from inferwatch.compare.report import (
    MORE,
    NOT_RECORDED,
    load_sentence,
    method_text,
    peak_text,
    window_text,
)
from inferwatch.formatting import UNKNOWN
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, cells, ruled

NAME = 30


class CompareSetup(Panel):
    """A table of the settings that differ, then sentences."""

    DEFAULT_CSS = """
    CompareSetup { height: 1fr; }
    """

    _comparison: Comparison | None = None
    _first = 0
    """The line on top; those before it have been read."""

    def show(self, comparison: Comparison) -> None:
        """Take what was found."""
        self._comparison = comparison
        self._first = 0
        self.redraw()

    def move(self, lines: int) -> None:
        """Go down, or up when negative."""
        self._first += lines
        self.redraw()

    def on_mouse_scroll_down(self) -> None:
        """The wheel."""
        self.move(2)

    def on_mouse_scroll_up(self) -> None:
        """The wheel."""
        self.move(-2)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """As much as there is room for; what follows is said."""
        if self._comparison is None:
            return ()
        lines = list(_lines(self._comparison, width))
        self._first = max(min(self._first, len(lines) - height), 0)
        lines = lines[self._first :]
        if len(lines) > height:
            more = TextRun(f" … {len(lines) - height + 1} more lines: ↓", "muted")
            lines = [*lines[: height - 1], (more,)]
        return lines


def _lines(comparison: Comparison, width: int) -> Iterator[Line]:
    for pair in comparison.pairs:
        load = load_sentence(pair)
        for doubt in ([load] if load else []) + list(pair.cautions):
            yield from _wrapped(f"! {doubt}", width)
    yield ruled((TextRun("set up differently", "strong"),), (), width)
    names = [each.name for each in comparison.sessions]
    size = max((width - NAME - 1) // len(names), 6)
    if comparison.settings:
        heads = [cells(name, size, "accent") for name in names]
        yield (cells(" setting", NAME, "muted"), *heads)
    for setting in comparison.settings:
        values = [UNKNOWN if each is None else each for each in setting.values]
        yield (
            cells(f" {setting.name}", NAME),
            *(cells(value, size) for value in values),
        )
    if not comparison.settings:
        yield (TextRun(" in nothing that the record knows"),)
    yield ruled((TextRun("what is compared", "strong"),), (), width)
    peaks = [text for pair in comparison.pairs if (text := peak_text(pair))]
    for text in (*map(window_text, comparison.sessions), *peaks, NOT_RECORDED):
        yield from _wrapped(text, width)
    yield ruled((TextRun("how it is judged", "strong"),), (), width)
    for text in (method_text(comparison), MORE):
        yield from _wrapped(text, width)


def _wrapped(text: str, width: int) -> Iterator[Line]:
    for line in wrap(text, max(width - 2, 10), subsequent_indent="  "):
        yield (TextRun(f" {line}"),)
