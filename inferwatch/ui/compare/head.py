"""The verdict of a comparison, how it was paired, and how good the measurement is."""

from collections.abc import Iterator, Sequence
from textwrap import wrap

from inferwatch.studies.compare.comparison import Comparison, SessionPair
from inferwatch.studies.compare.quality import Quality, doubts
from inferwatch.studies.compare.report import (
    GLYPHS,
    PROBABLE,
    in_order,
    pairing_sentence,
    sentence,
)
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.ui.compare.words import QUALITY_LOOKS, quality_text, verdict_ink
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, spread

PANES = ("metrics", "charts", "quality", "set-up")
"""What can be looked at, in order."""
NARROWEST = 10
"""Columns of a text: what has fewer is cut."""


class CompareHead(Panel):
    """The verdict of a comparison under a title; doubts are marked ``!``."""

    DEFAULT_CSS = """
    CompareHead { height: 3; }
    """

    _names: tuple[str, ...] = ()
    _busy = ""
    _since = ""
    _failed = ""
    _place = 0
    _pane = PANES[0]
    _comparison: Comparison | None = None

    def wait(self, names: tuple[str, ...], busy: str, since: str = "") -> None:
        """Say what is being done, and for how long."""
        self._names, self._busy, self._failed = names, busy, ""
        self._since = since
        self.redraw()

    def fail(self, why: str) -> None:
        """Say why there is nothing to see."""
        self._busy, self._failed = "", why
        self._take_room()
        self.redraw()

    def show(self, comparison: Comparison, place: int) -> None:
        """Take what was found, and which pair is looked at."""
        self._comparison, self._place = comparison, place
        pair = comparison.pairs[place]
        self._names = pair.a.name, pair.b.name
        self._busy = self._failed = ""
        self._take_room()
        self.redraw()

    def mark(self, pane: str) -> None:
        """That part is shown below."""
        self._pane = pane
        self.redraw()

    def on_resize(self) -> None:
        """Another width is another height."""
        self._take_room()
        super().on_resize()

    def _take_room(self) -> None:
        """As many rows as it takes, as long as the figures keep most of the screen."""
        if self.size.width:
            needed = 1 + len(self._body(self.size.width - 2))
            most = max(self.screen.size.height // 4, 3)
            self.styles.height = max(min(needed, most), 2)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The rows."""
        lines = list(self._body(width - 2))
        room = max(height - 1, 1)
        if len(lines) > room:
            more = len(lines) - room + 1
            said = f"   … {more} more lines: quality"
            action = "screen.look('quality')"
            lines = [*lines[: room - 1], (TextRun(said, "muted", action),)]
        return [self._title(width), *lines]

    def _title(self, width: int) -> Line:
        left = (
            TextRun(" Compare ", "chip"),
            TextRun(f" {' and '.join(self._names[1:])}", "strong"),
            TextRun(" against ", "muted"),
            TextRun(self._names[0] if self._names else "", "strong"),
        )
        return spread(left, tuple(self._right()), width)

    def _right(self) -> Iterator[TextRun]:
        if self._comparison is None:
            return
        if len(self._comparison.pairs) > 1:
            count = len(self._comparison.pairs)
            yield TextRun(" ← ", "accent", "screen.pair(-1)")
            yield TextRun(f"{self._place + 1} of {count}", "muted")
            yield TextRun(" → ", "accent", "screen.pair(1)")
        for pane in PANES:
            chosen = pane == self._pane
            yield TextRun(
                f" {pane} ", "chip" if chosen else "muted", f"screen.look('{pane}')"
            )

    def _body(self, width: int) -> Sequence[Line]:
        if self._failed:
            return [
                (TextRun(f" {line}", "bad"),)
                for line in wrap(self._failed, max(width, NARROWEST))
            ]
        if self._busy or self._comparison is None:
            doing = TextRun(f" ◌ {self._busy} ...  ", "accent")
            return [(doing, TextRun(self._since), TextRun("  esc stops", "faint"))]
        return list(_verdict(self._comparison.pairs[self._place], width))


def _verdict(pair: SessionPair, width: int) -> Iterator[Line]:
    """What it says, how it was paired, how good it is, what is doubtful."""
    glyph, ink = QUALITY_LOOKS[Quality.VOID] if pair.void else _look(pair)
    yield from _marked(f" {glyph} ", ink, f"{sentence(pair)}.", "", width)
    if pair.void:
        return
    mark = "∥" if pair.pairing is not None else "×" if pair.is_repeated else " "
    said = pair.about_runs if pair.is_repeated else pairing_sentence(pair)
    yield fit((TextRun(f" {mark} ", "accent"), TextRun(said, "muted")), width + 2)
    if pair.quality:
        worst = doubts(pair.quality)[:1]
        glyph, ink = QUALITY_LOOKS[worst[0].quality if worst else Quality.GOOD]
        yield fit(
            (
                TextRun(f" {glyph} ", ink),
                TextRun("quality: ", "muted", "screen.look('quality')"),
                TextRun(quality_text(pair), "warn" if glyph == "!" else "muted"),
            ),
            width + 2,
        )


def _marked(mark: str, ink: str, text: str, ink_of_text: str, width: int) -> list[Line]:
    """A text under a mark in the margin."""
    return [
        fit(
            (TextRun("   " if line else mark, ink), TextRun(each, ink_of_text)),
            width + 2,
        )
        for line, each in enumerate(wrap(text, max(width - 2, NARROWEST)))
    ]


def _look(pair: SessionPair) -> tuple[str, str]:
    """The mark of the verdict: that of the first row that says something."""
    verdict = next(iter(in_order(pair)), MetricVerdict.OPEN)
    if verdict in PROBABLE:  # the sentence begins with what is not there
        return GLYPHS[verdict], "muted"
    return GLYPHS[verdict], verdict_ink(verdict, pair)
