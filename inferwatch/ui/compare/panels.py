"""The panels of a comparison: its verdict, one metric, how the sessions were set up."""

import math
from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap

from inferwatch.compare.comparison import Comparison, MetricResult, SessionPair
from inferwatch.compare.quality import doubts
from inferwatch.compare.report import (
    MORE,
    change_text,
    method_text,
    not_compared,
    peak_text,
    sentence,
    span_text,
    title,
    values_text,
    window_text,
)
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.formatting import UNKNOWN, format_count
from inferwatch.metrics.catalog import Better
from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.ui.compare.table import INKS
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.plot import nice_ceiling
from inferwatch.ui.shared.renderables.text import (
    Line,
    TextRun,
    cells,
    fit,
    join_whole,
    ruled,
    spread,
)


class CompareHead(Panel):
    """The verdict of a comparison under a title; doubts come first, marked ``!``."""

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
            said = f"   … {more} more lines: tab to settings"
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
        said = wrap(f"{sentence(pair)}.", width - 2)
        rows = [
            fit((TextRun(_mark(pair, line), _ink(pair)), TextRun(each)), width + 2)
            for line, each in enumerate(said)
        ]
        for doubt in doubts(pair.quality):
            rows += [
                (
                    TextRun(" ! " if not line else "   ", "warn bold"),
                    TextRun(each, "warn"),
                )
                for line, each in enumerate(wrap(doubt.sentence, width - 2))
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


class CompareDetail(Panel):
    """The metric under the table's cursor: its interval, what its verdict rests on."""

    DEFAULT_CSS = """
    CompareDetail { height: 6; background: $surface; }
    """

    _result: MetricResult | None = None
    _matters = 0.1

    def show(self, result: MetricResult, matters: float) -> None:
        """Take a metric, and the change that matters."""
        self._result, self._matters = result, matters
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Heading, interval, reasons."""
        del height
        result = self._result
        if result is None:
            return ()
        heading = (
            TextRun(title(result), "strong"),
            TextRun(f" {result.metric.key}", "faint"),
        )
        drawn: Sequence[Line] = ((), (TextRun("  no interval", "faint"),))
        if result.ratio is not None and result.ratio_span is not None:
            drawn = interval_lines(
                result.ratio, result.ratio_span, self._matters, max(width - 4, 10)
            )
        return [
            ruled(heading, _values(result), width),
            *(fit((TextRun("  "), *line), width) for line in drawn),
            *(
                (TextRun("  "), *join_whole(parts, width - 2, " · "))
                for parts in (_verdict(result), _basis(result))
            ),
        ]


def _values(result: MetricResult) -> Line:
    before, after = (text.strip() for text in values_text(result))
    return (
        TextRun(f"{before} → {after} ", "strong"),
        TextRun(f"{change_text(result.ratio)} "),
        TextRun(f"({span_text(result.ratio_span)})", "muted"),
    )


def _verdict(result: MetricResult) -> Sequence[Line]:
    said: list[Line] = [(TextRun(str(result.verdict), INKS[result.verdict]),)]
    if result.why:
        said.append((TextRun(result.why),))
    if result.verdict is MetricVerdict.OPEN and result.more_requests:
        more = format_count(result.more_requests).strip()
        said.append((TextRun(f"about {more} more requests would settle it"),))
    return said


def _basis(result: MetricResult) -> Sequence[Line]:
    counts = (format_count(n).strip() for n in (result.n_a, result.n_b))
    way = f"{result.metric.better} is better"
    if result.metric.better is Better.NEITHER:
        way = "neither direction is better in itself"
    said: list[Line] = [
        (TextRun(f"n {' and '.join(counts)}", "muted"),),
        (TextRun(f"seen by {result.metric.vantage}", "muted"),),
        (TextRun(way, "muted"),),
    ]
    if result.adjusted_p is not None:
        if result.p_value is not None:
            said.append((TextRun(f"p {result.p_value:.2g}", "muted"),))
        shared = f"{result.adjusted_p:.2g} over all metrics"
        said.append((TextRun(f"{shared}, significant up to {ALPHA:g}", "muted"),))
    return said


NAME = 30


class CompareSetup(Panel):
    """The settings that differ between sessions, then what is compared and how."""

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
        for doubt in doubts(pair.quality):
            yield from _wrapped(f"! {doubt.sentence}", width)
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
        yield from _wrapped(text, width)
    yield ruled((TextRun("how it is judged", "strong"),), (), width)
    for text in (method_text(comparison), MORE):
        yield from _wrapped(text, width)


def _wrapped(text: str, width: int) -> Iterator[Line]:
    for line in wrap(text, max(width - 2, 10), subsequent_indent="  "):
        yield (TextRun(f" {line}"),)


Span = tuple[float, float]
SHADE, ZERO, POINT, BAR = "░", "┃", "●", "━"


def interval_lines(
    ratio: float, span: Span, matters: float, width: int
) -> tuple[Line, Line]:
    """The interval over its scale, which is one of ratios: halved is as far as doubled.

    >>> lines = interval_lines(1.2, (1.1, 1.3), 0.1, 41)
    >>> print("".join(run.text for run in lines[0]).strip())
    ░░░░░┃░░░░━━━━●━━━━
    """
    edge = _edge(span, matters)
    at = _columns(edge, width)
    row, inks = [" "] * width, [""] * width
    _paint(row, inks, range(at(1 / (1 + matters)), at(1 + matters) + 1), SHADE, "rule")
    _paint(row, inks, range(at(span[0]), at(span[1]) + 1), BAR, "accent")
    _paint(row, inks, range(at(1.0), at(1.0) + 1), ZERO, "strong")
    _paint(row, inks, range(at(ratio), at(ratio) + 1), POINT, "strong")
    line = tuple(TextRun(glyph, ink) for glyph, ink in zip(row, inks, strict=True))
    return line, (TextRun(_labels(edge, at, width), "muted"),)


def _edge(span: Span, matters: float) -> float:
    """The ratio at the right end; its inverse is at the left."""
    farthest = max(span[1], 1 / max(span[0], 1e-3), 1 + 2 * matters)
    if farthest < 3:
        return 1 + nice_ceiling(farthest - 1)
    return nice_ceiling(farthest)


def _columns(edge: float, width: int) -> Callable[[float], int]:
    reach = math.log(edge)

    def at(ratio: float) -> int:
        place = (math.log(max(ratio, 1e-9)) / reach + 1) / 2
        return min(max(round(place * (width - 1)), 0), width - 1)

    return at


def _paint(
    row: list[str], inks: list[str], columns: range, glyph: str, ink: str
) -> None:
    for column in columns:
        row[column], inks[column] = glyph, ink


def _labels(edge: float, at: Callable[[float], int], width: int) -> str:
    text = [" "] * width
    for ratio in (1 / edge, 1 / math.sqrt(edge), 1.0, math.sqrt(edge), edge):
        label = _label(ratio)
        start = min(max(at(ratio) - len(label) // 2, 0), width - len(label))
        text[start : start + len(label)] = label
    return "".join(text)


def _label(ratio: float) -> str:
    if ratio == 1:
        return "0"
    return f"×{ratio:,.0f}" if ratio >= 3 else f"{(ratio - 1) * 100:+.0f}%"
