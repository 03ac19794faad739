"""Each change as a dot and its interval as a bar, all on one axis of ratios."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from inferwatch.printing.svg import WIDTH, Tick, path, stretch, svg
from inferwatch.studies.compare.comparison import MetricResult
from inferwatch.studies.compare.report import change_text, span_text, verdict_text
from inferwatch.visible import as_html

HEIGHT, MIDDLE = 30, 15
FARTHEST = math.log(2)
"""What lies beyond is an arrow: a change of a tenth must still be seen beside it."""
LEAST = 2.5
"""Times what matters are seen on either side."""
ROOM = 1.1
APART = 0.15
"""Of the axis, between two marks."""
MARKS = (
    *(1.0, 2.0, 0.5, 1.5, 0.75, 1.2, 0.8, 3.0, 0.33),
    *(1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.01, 0.99),
)
"""Ratios, the most telling first."""


@dataclass(frozen=True, slots=True)
class ForestAxis:
    """From one ratio to another, in logarithms, with no change in between."""

    low: float
    high: float
    matters: float
    """So large a change on either side of none is drawn as a band."""

    @classmethod
    def of(cls, results: Iterable[MetricResult], matters: float) -> "ForestAxis":
        """Room for their intervals, as far as that is sensible."""
        ends = [each.ratio_span for each in results if each.ratio_span is not None]
        least = LEAST * math.log1p(matters)
        low = min((_log(low) for low, _ in ends), default=0.0)
        high = max((_log(high) for _, high in ends), default=0.0)
        return cls(
            low=max(min(low * ROOM, -least), -FARTHEST),
            high=min(max(high * ROOM, least), FARTHEST),
            matters=matters,
        )

    def share(self, ratio: float) -> float:
        """Where on the axis, 0 to 1; beyond it, its end."""
        share = (_log(ratio) - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)

    def holds(self, ratio: float) -> bool:
        """It is not beyond an end."""
        return self.low <= _log(ratio) <= self.high

    def ticks(self) -> list[Tick]:
        """Marks that do not touch."""
        found: list[Tick] = []
        for ratio in MARKS:
            share = self.share(ratio)
            inside = 0.04 < share < 0.96
            if inside and all(abs(share - each.at) >= APART for each in found):
                text = "0" if ratio == 1 else change_text(ratio)
                found.append(Tick(share, text.replace(".0%", "%")))
        return sorted(found, key=lambda tick: tick.at)


def forest(axis: ForestAxis, result: MetricResult) -> str:
    """The row of one metric; empty where nothing is known of its change."""
    if result.ratio is None or result.ratio_span is None:
        return ""
    low, high = result.ratio_span
    left, right, dot = (axis.share(each) * WIDTH for each in (low, high, result.ratio))
    less, more = (axis.share(1 + each) for each in (-axis.matters, axis.matters))
    words = as_html(
        f"{change_text(result.ratio)}, 95% interval {span_text(result.ratio_span)}: "
        f"{verdict_text(result)}"
    )
    shapes = [
        f"<title>{words}</title>",
        stretch(less, more, kind="band", height=HEIGHT),
        path("rule", "".join(f"M{t.at * WIDTH:.1f} 0V{HEIGHT}" for t in axis.ticks())),
        path("none", f"M{axis.share(1.0) * WIDTH:.1f} 0V{HEIGHT}"),
        path("bar", f"M{left:.1f} {MIDDLE}H{right:.1f}"),
        _end(axis, low, left),
        _end(axis, high, right),
    ]
    if axis.holds(result.ratio):
        shapes.append(path("dot", f"M{dot:.1f} {MIDDLE}h0"))
    return svg(shapes, words, kind="forest", height=HEIGHT)


def _end(axis: ForestAxis, ratio: float, x: float) -> str:
    """A stroke across where the interval ends, an arrow where the axis does."""
    if axis.holds(ratio):
        return path("tip", f"M{x:.1f} {MIDDLE - 5}v10")
    inward = 12 if _log(ratio) < axis.low else -12
    return path("tip", f"M{x + inward:.1f} {MIDDLE - 5}L{x:.1f} {MIDDLE}l{inward} 5")


def _log(ratio: float) -> float:
    if ratio <= 0:
        return -math.inf
    return math.log(ratio)
