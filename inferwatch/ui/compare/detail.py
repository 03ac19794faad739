"""One metric of a comparison: interval, place of the change, open questions."""

import math
from collections.abc import Callable, Sequence
from textwrap import wrap

from inferwatch.formatting import counted, format_count
from inferwatch.metrics.number import Better
from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.studies.compare.comparison import MetricResult, SessionPair
from inferwatch.studies.compare.reading.request_kinds import ChangedPart
from inferwatch.studies.compare.report import (
    at_another_load,
    change_text,
    meaning,
    nearest_first,
    other_reasons,
    span_text,
    values_text,
    whose,
    would_text,
)
from inferwatch.studies.compare.statistics.far_tail import FARTHEST
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.ui.compare.table import (
    SAYS_SOMETHING,
    CompareRow,
    FoldedRows,
    verdict_ink,
)
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.plot import axis_labels, nice_ceiling, tick_text
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join_whole, ruled

Span = tuple[float, float]
SHADE, ZERO, POINT, BAR = "░", "┃", "●", "━"
ON_LEFT, ON_RIGHT = "◀", "▶"
"""Ends of an unbounded interval."""
MORE_ROOM = 3.0
"""Extra scale for an unbounded interval."""
LARGE = 10_000


def interval_lines(
    ratio: float, span: Span, matters: float, width: int
) -> tuple[Line, Line]:
    """Draw a change with its interval on a scale of ratios, and the scale's axis.

    >>> lines = interval_lines(1.2, (1.1, 1.3), 0.1, 41)
    >>> print("".join(run.text for run in lines[0]).strip())
    ░░░░░┃░░░░━━━━●━━━━
    >>> lines = interval_lines(20.0, (4.0, FARTHEST), 0.1, 41)
    >>> print("".join(run.text for run in lines[0]).strip())
    ┃     ━━━━━━━●━━━━━━▶
    >>> print(lines[1][0].text)
    ÷100     ÷10        0        ×10     ×100
    """
    edge = _edge(ratio, span, matters)
    at = _columns(edge, width)
    row, inks = [" "] * width, [""] * width
    _paint(row, inks, range(at(1 / (1 + matters)), at(1 + matters) + 1), SHADE, "rule")
    _paint(row, inks, range(at(span[0]), at(span[1]) + 1), BAR, "accent")
    _paint(row, inks, range(at(1.0), at(1.0) + 1), ZERO, "strong")
    _paint(row, inks, range(at(ratio), at(ratio) + 1), POINT, "strong")
    if span[0] <= 0:
        _paint(row, inks, range(1), ON_LEFT, "accent")
    if span[1] >= FARTHEST:
        _paint(row, inks, range(width - 1, width), ON_RIGHT, "accent")
    line = tuple(TextRun(glyph, ink) for glyph, ink in zip(row, inks, strict=True))
    return line, (TextRun(_labels(edge, at, width), "muted"),)


def _edge(ratio: float, span: Span, matters: float) -> float:
    """Return the ratio at the scale's right end; its inverse is at the left end."""
    finite = [each for each in (ratio, *span) if 0 < each < FARTHEST]
    farthest = max([1 + 2 * matters, *finite, *(1 / each for each in finite)])
    if span[0] <= 0 or span[1] >= FARTHEST:
        farthest *= MORE_ROOM
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
    ratios = (1 / edge, 1 / math.sqrt(edge), 1.0, math.sqrt(edge), edge)
    return axis_labels([(at(ratio), _label(ratio)) for ratio in ratios], width)


def _label(ratio: float) -> str:
    if ratio == 1:
        return "0"
    times = max(ratio, 1 / ratio)
    if times < 3:
        return f"{(ratio - 1) * 100:+.0f}%"
    text = f"{times:,.0f}" if times < LARGE else tick_text(times)
    return f"{'×' if ratio > 1 else '÷'}{text}"


FIXED = 5
"""Rows besides places: heading, interval, axis, verdict, basis."""


RAREST = 1e-4
"""Smallest p-value that resampling can resolve."""


class CompareDetail(Panel):
    """The selected metric: its interval and the basis of its verdict."""

    DEFAULT_CSS = """
    CompareDetail { height: 6; background: $surface; }
    """

    _row: CompareRow | None = None
    _pair: SessionPair | None = None
    _matters = 0.1

    def show(self, row: CompareRow, pair: SessionPair, matters: float) -> None:
        """Show a metric of a pair; ``matters`` is the smallest change that matters."""
        self._row, self._pair, self._matters = row, pair, matters
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        row, pair = self._row, self._pair
        if row is None or pair is None:
            return ()
        if isinstance(row, FoldedRows):
            return [fit(line, width) for line in _folded(row, pair, width)][:height]
        heading = (
            TextRun(whose(row), "strong"),
            TextRun(f" {row.metric.key}", "faint"),
        )
        drawn: Sequence[Line] = ((), (TextRun("  no interval", "faint"),))
        if row.ratio is not None and row.ratio_span is not None:
            drawn = interval_lines(
                row.ratio, row.ratio_span, self._matters, max(width - 4, 10)
            )
        places = [each for each in pair.places if each.metric.key == row.metric.key]
        room = max(height - FIXED, 1)
        more = [fit(_place(each), width) for each in places]
        left = room - len(more)
        if row.verdict is MetricVerdict.OPEN and row.why and left > 0:
            why = wrap(row.why, max(width - 3, 9), max_lines=left, placeholder=" …")
            more += [(TextRun(f"  {line}"),) for line in why]
        return [
            ruled(heading, _values(row), width),
            *(fit((TextRun("  "), *line), width) for line in drawn),
            _joined(_verdict(row, pair, self._matters), width),
            *more[:room],
            _joined(_basis(row), width),
        ]


def _joined(parts: Sequence[Line], width: int) -> Line:
    return (TextRun("  "), *join_whole(parts, width - 2, " · "))


def _values(result: MetricResult) -> Line:
    before, after = (text.strip() for text in values_text(result))
    if result.ratio is None:
        return (TextRun(f"{before} → {after}", "strong"),)
    return (
        TextRun(f"{before} → {after} ", "strong"),
        TextRun(f"{change_text(result.ratio)} "),
        TextRun(f"({span_text(result.ratio_span)})", "muted"),
    )


def _verdict(result: MetricResult, pair: SessionPair, matters: float) -> Sequence[Line]:
    """Return the verdict on a metric; if it is open, how much data would settle it."""
    word = str(result.verdict)
    if result.verdict in SAYS_SOMETHING and at_another_load(pair):
        word += " at a different load"
    lines: list[Line] = [(TextRun(word, verdict_ink(result.verdict, pair)),)]
    if result.verdict is MetricVerdict.OPEN:
        would = would_text(result, pair)
        lines.append((TextRun(would),) if would else ())
    else:
        lines.append((TextRun(meaning(result.verdict, matters)),))
    return [part for part in lines if part]


def _place(place: ChangedPart) -> Line:
    """Return a line: when, or for which requests, the metric changed most."""
    text = place.sentence or f"{change_text(place.ratio)} {place.part}"
    return (
        TextRun("  ⌖ ", "accent"),
        TextRun(f"{place.cut}: ", "muted"),
        TextRun(text),
    )


def _basis(result: MetricResult) -> Sequence[Line]:
    counts = (format_count(n).strip() for n in (result.n_a, result.n_b))
    way = f"{result.metric.better} is better"
    if result.metric.better is Better.NEITHER:
        way = "neither direction is better in itself"
    lines: list[Line] = [
        (TextRun(f"n {' and '.join(counts)}", "muted"),),
        (TextRun(f"seen by {result.metric.vantage}", "muted"),),
        (TextRun(way, "muted"),),
    ]
    if result.adjusted_p is not None:
        if result.p_value is not None:
            lines.append((TextRun(f"p {_chance(result.p_value)}", "muted"),))
        shared = f"{_chance(result.adjusted_p)} over all metrics"
        lines.append((TextRun(f"{shared}, significant up to {ALPHA:g}", "muted"),))
    return lines


def _chance(p: float) -> str:
    """Format a p-value; a tiny one as ``<`` the least that is shown, never as 0."""
    return f"{p:.2g}" if p >= RAREST else f"< {RAREST:g}"


def _folded(fold: FoldedRows, pair: SessionPair, width: int) -> list[Line]:
    """Return why metrics are inconclusive, and which one is nearest to a verdict."""
    many = counted(len(fold.results), "metric")
    heading = (TextRun(f"{many}: {MetricVerdict.OPEN}", "strong"),)
    lines: list[Line] = [ruled(heading, (), width)]
    told = nearest_first(fold.results)
    if told:
        best, *others = told
        named = TextRun(whose(best), "strong")
        more = f"; more data, {counted(len(others), 'other row')}" if others else ""
        would = TextRun(f", {would_text(best, pair)}{more}")
        lines.append((TextRun("  nearest: ", "muted"), named, would))
    lines += [
        (TextRun(f"  {many:>3} × ", "accent"), TextRun(why))
        for why, many in other_reasons(fold.results)
    ]
    return lines
