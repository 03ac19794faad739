"""The text panes of a comparison: its quality and the settings of its sides."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from inferwatch.formatting import UNKNOWN
from inferwatch.studies.compare.comparison import Comparison, SessionPair
from inferwatch.studies.compare.report import (
    MORE,
    method_text,
    not_compared,
    pairing_sentence,
    peak_text,
    window_text,
)
from inferwatch.ui.compare.styles import QUALITY_LOOKS
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells, ruled, wrapped

NAME = 30
SUBJECT = 16


class ReadingList(Panel):
    """A scrollable list of lines."""

    DEFAULT_CSS = """
    ReadingList { height: 1fr; }
    """

    _first = 0
    """Index of the top line."""

    def lines(self, width: int) -> Iterable[Line]:
        """Return all lines for a width."""
        del width
        return ()

    def from_the_top(self) -> None:
        self._first = 0
        self.redraw()

    def move(self, lines: int) -> None:
        self._first += lines
        self.redraw()

    def on_mouse_scroll_down(self) -> None:
        self.move(2)

    def on_mouse_scroll_up(self) -> None:
        self.move(-2)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw what fits; the last row says how much follows."""
        lines = list(self.lines(width))
        self._first = max(min(self._first, len(lines) - height), 0)
        lines = lines[self._first :]
        if len(lines) > height:
            more = TextRun(f" … {len(lines) - height + 1} more lines: ↓", "muted")
            lines = [*lines[: height - 1], (more,)]
        return lines


class CompareQuality(ReadingList):
    """Checks of whether two sides are comparable, the gravest first."""

    _pair: SessionPair | None = None

    def show(self, pair: SessionPair) -> None:
        self._pair = pair
        self.from_the_top()

    def lines(self, width: int) -> Iterator[Line]:
        pair = self._pair
        if pair is None:
            return
        yield ruled((TextRun("can they be compared?", "strong"),), (), width)
        if not pair.is_repeated:
            yield from wrapped(f"{pairing_sentence(pair)}.", width)
        yield from wrapped(f"{pair.about_runs}.", width)
        for quality, (glyph, ink) in QUALITY_LOOKS.items():
            for check in pair.quality:
                if check.quality is quality:
                    head = (
                        TextRun(f" {glyph} ", ink),
                        cells(check.subject, SUBJECT, "strong"),
                    )
                    yield from _beside(head, check.sentence, width)


class CompareSetup(ReadingList):
    """Settings that differ, then what is compared and how."""

    _comparison: Comparison | None = None

    def show(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self.from_the_top()

    def lines(self, width: int) -> Iterable[Line]:
        return () if self._comparison is None else _settings(self._comparison, width)


def _settings(comparison: Comparison, width: int) -> Iterator[Line]:
    yield ruled((TextRun("settings that differ", "strong"),), (), width)
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
        yield (TextRun(" none of the recorded ones"),)
    yield ruled((TextRun("what is compared", "strong"),), (), width)
    peaks = [text for pair in comparison.pairs if (text := peak_text(pair))]
    missing = not_compared(comparison)
    for text in (*map(window_text, comparison.sessions), *peaks, missing):
        yield from wrapped(text, width)
    yield ruled((TextRun("how it is judged", "strong"),), (), width)
    for text in (method_text(comparison), MORE):
        yield from wrapped(text, width)


def _beside(head: Line, text: str, width: int) -> Iterator[Line]:
    """Wrap a text beside its head."""
    indent = sum(len(run.text) for run in head)
    for number, line in enumerate(wrap(text, max(width - indent - 1, 10))):
        yield (*(head if not number else (TextRun(" " * indent),)), TextRun(line))
