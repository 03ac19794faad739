"""``--fail-if`` conditions, which make a comparison fail in CI.

    ttft_p99_s > +5%

A condition is a metric, ``>`` or ``<``, and a signed change of B against A: in percent,
or in the metric's own unit (``ttft_p99_s > +20ms``, ``goodput_per_s < -0.5``). It fails
only if the whole interval of the change lies beyond the threshold. All conditions
together have a 5% chance of a false alarm.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from inferwatch.errors import UsageError
from inferwatch.metrics.number import Unit
from inferwatch.quantities import TIME_UNIT, TIME_UNITS, in_seconds
from inferwatch.studies.compare.metrics import KEYS, JudgedMetric
from inferwatch.studies.compare.statistics.significance import AnyDifference

_CONDITION = re.compile(
    rf"\s*([A-Za-z_][\w.]*)\s*([<>])\s*([+-])\s*(\d+\.?\d*|\.\d+)\s*(%|{TIME_UNIT})?\s*"
)


class ConditionOutcome(StrEnum):
    """Whether a condition failed the comparison, held, or cannot be decided."""

    FAILED = "failed"
    """The whole interval is beyond the threshold."""
    HELD = "held"
    """The whole interval is within the threshold."""
    OPEN = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A ``--fail-if`` condition: a metric, a direction and a threshold."""

    text: str
    metric: JudgedMetric
    above: bool
    """Whether it fails above the threshold rather than below."""
    change: float
    relative: bool
    """Whether the change is a share of A's value rather than in the metric's unit."""

    def outcome(
        self, difference: AnyDifference | None, alpha: float
    ) -> ConditionOutcome:
        """Decide by the interval at level ``alpha``; open if no difference is known."""
        if difference is None:
            return ConditionOutcome.OPEN
        span, threshold = difference.span(alpha), self.change
        if self.relative:
            ratio_span = difference.ratio_span(alpha)
            if ratio_span is None:
                return ConditionOutcome.OPEN
            span, threshold = ratio_span, 1 + self.change
        low, high = span
        beyond, within = low > threshold, high <= threshold
        if not self.above:
            beyond, within = high < threshold, low >= threshold
        if beyond:
            return ConditionOutcome.FAILED
        return ConditionOutcome.HELD if within else ConditionOutcome.OPEN


def parse_condition(text: str) -> Condition:
    """Parse a condition such as ``ttft_p99_s > +5%``.

    Raises:
        UsageError: the text is invalid; the message shows valid forms.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(_explain(text, "cannot be read"))
    name, sign, direction, number, unit = match.groups()
    name = f"{name}_s" if f"{name}_s" in KEYS else name
    if name not in KEYS:
        raise UsageError(_explain(text, f"{name!r} is not a metric"))
    metric = KEYS[name]
    if unit in TIME_UNITS and metric.unit is not Unit.SECONDS:
        raise UsageError(_explain(text, f"{name} is not measured in seconds"))
    size = float(number)
    size = size * 0.01 if unit == "%" else in_seconds(size, unit or "")
    return Condition(
        text=text.strip(),
        metric=metric,
        above=sign == ">",
        change=size if direction == "+" else -size,
        relative=unit == "%",
    )


def _explain(text: str, what: str) -> str:
    names = list(KEYS)
    rows = ["  " + "  ".join(names[at : at + 4]) for at in range(0, len(names), 4)]
    listed = "\n".join(rows)
    return (
        f"--fail-if {text!r}: {what}. Write METRIC > +CHANGE or METRIC < -CHANGE, as "
        f"in 'ttft_p99_s > +5%' or 'itl_p99_s > +2ms'; the metrics are\n{listed}"
    )
