"""Bars of block characters in one row: sparklines, gauges, shares, request phases."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isfinite

from inferwatch.ui.kit.renderables.text import Line, TextRun

BARS = "▁▂▃▄▅▆▇"
"""Without the full block, which would join sparklines of neighbouring rows."""


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return values as bars, scaled to their peak; a gap, or infinity, is a space.

    >>> sparkline([0, 1, None, 4, 8], 5), sparkline([1, float("inf")], 2)
    ('▁▁ ▄▇', '▇ ')
    >>> sparkline([-2, -1], 2)
    '▁▁'
    >>> sparkline([1, 9, 2, 8], 2)
    '▇▆'
    """
    if not values or width <= 0:
        return " " * width
    folded = _peaks(values, width)
    peak = max((value for value in folded if value is not None), default=0)
    peak = peak if peak > 0 else 1
    return "".join(_bar(value, peak) for value in folded)


def _bar(value: float | None, peak: float) -> str:
    if value is None:
        return " "
    return BARS[max(round(max(value, 0) / peak * len(BARS)) - 1, 0)]


def _peaks(values: Sequence[float | None], width: int) -> list[float | None]:
    """Split values into ``width`` groups and return the maximum of each."""
    edges = [len(values) * edge // width for edge in range(width + 1)]
    return [_peak(values[low:high]) for low, high in pairwise(edges)]


def _peak(group: Sequence[float | None]) -> float | None:
    known = (value for value in group if value is not None and isfinite(value))
    return max(known, default=None)


PARTS = "▏▎▍▌▋▊▉"
EMPTY, MARK = "░", "│"


def gauge(share: float | None, width: int, ink: str, mark: float | None = None) -> Line:
    """Draw a share as a bar, exact to an eighth of a cell; ``mark`` is drawn over it.

    >>> "".join(run.text for run in gauge(0.5, 9, "")), gauge(None, 3, "")[0].text
    ('████▌░░░░', '···')
    >>> "".join(run.text for run in gauge(1.2, 4, "", mark=0.9))
    '███│'
    """
    if width <= 0:
        return ()
    if share is None:
        return (TextRun("·" * width, "rule"),)
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    whole, part = divmod(eighths, 8)
    filled = "█" * whole + (PARTS[part - 1] if part else "")
    bar = [(filled, ink), (EMPTY * (width - len(filled)), "rule")]
    if mark is not None:
        at = min(int(mark * width), width - 1)
        before, after = bar[0][0][:at], bar[0][0][at + 1 :]
        gap = EMPTY * (at - len(before))
        rest = EMPTY * (width - at - 1 - len(after))
        bar = [(before, ink), (gap, "rule"), (MARK, "marker")]
        bar += [(after, ink), (rest, "rule")]
    return tuple(TextRun(text, name) for text, name in bar if text)


def split_bar(parts: Sequence[tuple[float, str, str]], width: int) -> Line:
    """Return shares (how much, glyph, ink) side by side; the rest is empty.

    >>> "".join(run.text for run in split_bar([(0.5, "█", ""), (0.25, "▒", "")], 8))
    '████▒▒░░'
    """
    ends = list(accumulate((share for share, _, _ in parts), initial=0.0))
    edges = [round(min(end, 1.0) * width) for end in ends]
    drawn = [
        TextRun(glyph * (high - low), ink)
        for (_, glyph, ink), (low, high) in zip(parts, pairwise(edges), strict=True)
        if high > low
    ]
    return (*drawn, TextRun(EMPTY * (width - edges[-1]), "rule"))


Phase = tuple[str, float | None, str]
"""Name, seconds, ink."""


def waterfall(phases: Sequence[Phase], width: int, glyphs: str = "█") -> Line:
    """Draw the known phases one after the other, each as wide as its share of time.

    >>> [run.text for run in waterfall([("a", 1, ""), ("b", 3, "")], 8, "░█")]
    ['░░', '██████']
    """
    ends = list(accumulate((seconds or 0.0 for _, seconds, _ in phases), initial=0.0))
    if not ends[-1]:
        return ()
    edges = [round(end / ends[-1] * width) for end in ends]
    return tuple(
        TextRun(glyphs[index % len(glyphs)] * (high - low), ink)
        for index, ((_, _, ink), (low, high)) in enumerate(
            zip(phases, pairwise(edges), strict=True)
        )
        if high > low
    )
