"""What is compared, the verdict, and what to doubt, before any figure."""

from collections.abc import Sequence
from textwrap import wrap

from inferwatch.compare.comparison import Comparison, SessionPair
from inferwatch.compare.report import load_sentence, sentence
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, fit, spread


class CompareHead(Panel):
    """A title row, then the verdict in its lines; doubts come first, marked ``!``."""

    DEFAULT_CSS = """
    CompareHead { height: 3; }
    """

    _names: tuple[str, ...] = ()
    _busy = ""
    _failed = ""
    _place = 0
    _comparison: Comparison | None = None

    def wait(self, names: tuple[str, ...], busy: str) -> None:
        """Say what is being done."""
        self._names, self._busy, self._failed = names, busy, ""
        self.redraw()

    def fail(self, why: str) -> None:
        """Say why there is nothing to see."""
        self._busy, self._failed = "", why
        self.redraw()

    def show(self, comparison: Comparison, place: int) -> None:
        """Take what was found, and which pair is looked at."""
        self._comparison, self._place = comparison, place
        self._busy = self._failed = ""
        self._take_room()
        self.redraw()

    def on_resize(self) -> None:
        """Another width is another height."""
        self._take_room()
        super().on_resize()

    def _take_room(self) -> None:
        """As many rows as it takes, as long as the figures keep most of the screen."""
        if self._comparison is not None and self.size.width:
            needed = 1 + len(self._body(self.size.width - 2))
            most = max(self.screen.size.height // 4, 3)
            self.styles.height = min(needed, most)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The rows."""
        lines = list(self._body(width - 2))
        room = max(height - 1, 1)
        if len(lines) > room:
            more = len(lines) - room + 1
            said = f"   … {more} more lines: tab to set-up"
            lines = [*lines[: room - 1], (TextRun(said, "muted"),)]
        return [self._title(width), *lines]

    def _title(self, width: int) -> Line:
        against = " and ".join(self._names[1:])
        left = (
            TextRun(" Compare ", "chip"),
            TextRun(f" {against}", "strong"),
            TextRun(" against ", "muted"),
            TextRun(self._names[0] if self._names else "", "strong"),
        )
        right: Line = ()
        if self._comparison and len(self._comparison.pairs) > 1:
            count = len(self._comparison.pairs)
            right = (
                TextRun(" ← ", "accent", "screen.pair(-1)"),
                TextRun(f"{self._place + 1} of {count}", "muted"),
                TextRun(" → ", "accent", "screen.pair(1)"),
            )
        return spread(left, right, width)

    def _body(self, width: int) -> Sequence[Line]:
        if self._failed:
            return [(TextRun(f" {line}", "bad"),) for line in wrap(self._failed, width)]
        if self._busy or self._comparison is None:
            return [(TextRun(f" ◌ {self._busy} ...", "accent"),)]
        pair = self._comparison.pairs[self._place]
        doubts = [text for text in (load_sentence(pair), *pair.cautions) if text]
        said = wrap(f"{sentence(pair)}.", width - 2)
        rows = [
            fit((TextRun(_mark(pair, line), _ink(pair)), TextRun(each)), width + 2)
            for line, each in enumerate(said)
        ]
        for doubt in doubts:
            rows += [
                (
                    TextRun(" ! " if not line else "   ", "warn bold"),
                    TextRun(each, "warn"),
                )
                for line, each in enumerate(wrap(doubt, width - 2))
            ]
        return rows


def _mark(pair: SessionPair, line: int) -> str:
    if line:
        return "   "
    if pair.of(MetricVerdict.WORSE):
        return " ▼ "
    if pair.of(MetricVerdict.BETTER):
        return " ▲ "
    return " = " if pair.of(MetricVerdict.SAME) else " ? "


def _ink(pair: SessionPair) -> str:
    if pair.of(MetricVerdict.WORSE):
        return "bad bold"
    return "good bold" if pair.of(MetricVerdict.BETTER) else "muted"
