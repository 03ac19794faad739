"""A plot axis that covers values and their intervals, with its ticks."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferwatch.formatting import format_count, format_rate, format_round_duration

LOG_FROM = 6.0
"""Ratio of highest to lowest value from which an axis may be logarithmic."""
BEYOND = 0.5
"""How far intervals may extend an axis, as a share of the values' range."""
LEAST_EXTENT = 0.1
"""Smallest range of an axis, relative to its value, so that small differences look
small.
"""
PAD = 0.05
ROUND = (1.0, 2.0, 5.0)
"""Allowed tick values, times a power of ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotAxis:
    """An axis from one value to another."""

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def of(
        cls,
        values: Sequence[tuple[float, tuple[float, float] | None]],
        *,
        may_be_log: bool = False,
    ) -> "PlotAxis":
        """An axis that covers all values, and their intervals within limits."""
        least, most = (f(value for value, _ in values) for f in (min, max))
        is_log = may_be_log and least > 0 and most / least >= LOG_FROM
        into, back = (math.log, math.exp) if is_log else (float, float)
        ends = [into(max(end, 1e-12)) for _, span in values for end in span or ()]
        low, high = into(least), into(most)
        extent = max(high - low, LEAST_EXTENT * (1 if is_log else abs(high) or 1.0))
        short = (extent - (high - low)) / 2
        low, high = low - short, high + short
        low = max(min([*ends, low]), low - BEYOND * extent) - PAD * extent
        high = min(max([*ends, high]), high + BEYOND * extent) + PAD * extent
        if not is_log and least >= 0:
            low = max(low, 0.0)
        return cls(low=back(low), high=back(high), is_log=is_log)

    def share(self, value: float) -> float:
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low)

    def value(self, share: float) -> float:
        """Return the value at a share of the axis, the reverse of `share`."""
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            return math.exp(low + share * (high - low))
        return self.low + share * (self.high - self.low)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def counts(self, most: int) -> list[tuple[float, str]]:
        """Ticks of an axis of counts or rates: position and label."""
        return [(value, _count(value)) for value in self._marks(most)]

    def durations(self, most: int) -> list[tuple[float, str]]:
        return [(value, format_round_duration(value)) for value in self._marks(most)]

    def _marks(self, most: int) -> list[float]:
        """Round tick values: at most ``most``, but at least two where possible."""
        inside: list[float] = []
        for marks in self._candidates():
            inside = [each for each in marks if self.holds(each)]
            if 2 <= len(inside) <= max(most, 2):
                return inside
        return inside[: max(most, 2)]

    def _candidates(self) -> Iterator[list[float]]:
        """Lists of tick values, from many to few."""
        if self.is_log:
            decades = range(
                math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1
            )
            for steps in ((1.0, 2.0, 3.0, 5.0), ROUND, (1.0, 3.0), (1.0,)):
                yield [
                    float(f"{step:g}e{power}") for power in decades for step in steps
                ]
        first = math.floor(math.log10(self.high - self.low)) - 1
        for power in range(first, first + 3):
            for step in ROUND:
                yield _multiples(step * 10.0**power, self.low, self.high)


def _multiples(step: float, low: float, high: float) -> list[float]:
    """Multiples of ``step``, rounded so that none is 0.30000000000000004."""
    digits = 2 - math.floor(math.log10(step))
    upto = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [round(n * step, digits) for n in upto]


def _count(value: float) -> str:
    whole = value == round(value)
    return (format_count(value) if whole else format_rate(value)).strip()
