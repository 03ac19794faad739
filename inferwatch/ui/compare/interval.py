"""An interval of ratios over its scale, with zero and the change that matters."""

import math
from collections.abc import Callable

from inferwatch.studies.compare.statistics.far_tail import FARTHEST
from inferwatch.ui.kit.renderables.plot import nice_ceiling, tick_text
from inferwatch.ui.kit.renderables.text import Line, TextRun

Span = tuple[float, float]
SHADE, ZERO, POINT, BAR = "░", "┃", "●", "━"
ON_LEFT, ON_RIGHT = "◀", "▶"
"""At an end that is not known."""
MORE_ROOM = 3.0
"""Times as far as all that is known, where an end is not."""
LARGE = 10_000


def interval_lines(
    ratio: float, span: Span, matters: float, width: int
) -> tuple[Line, Line]:
    """The interval over its scale, which is one of ratios: halved is as far as doubled.

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
    """The ratio at the right end; its inverse is at the left."""
    known = [each for each in (ratio, *span) if 0 < each < FARTHEST]
    farthest = max([1 + 2 * matters, *known, *(1 / each for each in known)])
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
    text = [" "] * width
    for ratio in (1 / edge, 1 / math.sqrt(edge), 1.0, math.sqrt(edge), edge):
        label = _label(ratio)
        start = min(max(at(ratio) - len(label) // 2, 0), width - len(label))
        text[start : start + len(label)] = label
    return "".join(text)


def _label(ratio: float) -> str:
    if ratio == 1:
        return "0"
    times = max(ratio, 1 / ratio)
    if times < 3:
        return f"{(ratio - 1) * 100:+.0f}%"
    text = f"{times:,.0f}" if times < LARGE else tick_text(times)
    return f"{'×' if ratio > 1 else '÷'}{text}"
