"""Service level objectives: the limits that a good request must meet, all at once.

    ttft_s<0.5 tpot_s<0.05

Seconds, or with a unit: ``ttft_s<500ms``. TTFT and E2EL are measured from the intended
send: a user waits from then on, whether or not a generator could send.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from collectors.contract.clock import NS_PER_S
from inferwatch.errors import UsageError
from inferwatch.quantities import TIME_UNIT, in_seconds

DEFAULT_SHARE = 0.95
"""Share of requests that must be good, 0-1."""
FAILED = "failed"
"""Listed among the missed objectives of a failed request."""
REFUSED = "refused"
"""Likewise, for requests that never reached the engine."""
UNANSWERED = (FAILED, REFUSED)
"""Misses that no latency explains."""
METRICS = {
    "ttft_s": "time to first token",
    "tpot_s": "mean time per token after the first",
    "itl_s": "longest gap between two tokens of a request",
    "e2el_s": "time to the last token",
}
BETWEEN_TOKENS = frozenset({"tpot_s", "itl_s"})
"""Metrics that a request of a single token does not have."""
_LIMIT = re.compile(
    rf"([A-Za-z_]\w*)\s*(<=?)\s*([0-9.eE+-]+)({TIME_UNIT})?(?=[\s,]|$)[\s,]*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The limit on one metric of a request, such as ``ttft_s<0.5``."""

    metric: str
    below_s: float
    or_equal: bool = False

    def holds(self, value_s: float) -> bool:
        return value_s < self.below_s or (self.or_equal and value_s == self.below_s)

    @property
    def most_ns(self) -> int:
        """The longest duration within the limit, in whole nanoseconds."""
        below_ns = math.ceil(self.below_s * NS_PER_S)
        return below_ns if self.or_equal else below_ns - 1

    def __str__(self) -> str:
        return f"{self.metric}{'<=' if self.or_equal else '<'}{self.below_s:g}"


@dataclass(frozen=True, slots=True)
class Slo:
    """All limits; a good request meets every one."""

    limits: tuple[Limit, ...]

    def missed(
        self, values: Mapping[str, float], unreported: Collection[str], *, failed: bool
    ) -> list[str] | None:
        """Return the metrics whose limits are missed, plus ``failed`` if it failed.

        One missed limit decides. Otherwise None where a limit is on an ``unreported``
        metric. A metric that the request does not have, such as gaps of a single token,
        misses no limit.
        """
        missed = [
            limit.metric
            for limit in self.limits
            if limit.metric in values and not limit.holds(values[limit.metric])
        ]
        if failed:
            missed.append(FAILED)
        if not missed and any(limit.metric in unreported for limit in self.limits):
            return None
        return missed

    def __str__(self) -> str:
        return " ".join(map(str, self.limits))


def unreported(
    values: Mapping[str, float], *, single: bool, all_gaps: bool = True
) -> set[str]:
    """Return the metrics that an answered request has but that were not reported.

    ``all_gaps`` is False where some of its gaps were not seen.
    """
    missing = METRICS.keys() - values.keys()
    if not all_gaps:
        missing.add("itl_s")
    return missing - BETWEEN_TOKENS if single else missing


def parse_slo(text: str) -> Slo:
    """Parse objectives such as ``ttft_s<0.5 tpot_s<50ms``; ``ttft`` is ``ttft_s``.

    Raises:
        UsageError: it cannot be parsed; the message says what is accepted.
    """
    limits, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _LIMIT.match(text, at)
        if match is None:
            raise UsageError(_explain(f"cannot read {text[at:]!r}"))
        limits.append(_limit(*match.groups()))
        at = match.end()
    _refuse_twice(limits)
    return Slo(tuple(limits))


def _limit(metric: str, sign: str, number: str, unit: str | None) -> Limit:
    metric = f"{metric}_s" if f"{metric}_s" in METRICS else metric
    if metric not in METRICS:
        raise UsageError(_explain(f"no metric {metric!r}"))
    try:
        value = float(number)
    except ValueError:
        raise UsageError(_explain(f"{number!r} is not a number")) from None
    if not 0 < value < math.inf:
        raise UsageError(_explain(f"{metric} must be a number above 0"))
    seconds = in_seconds(value, unit or "")
    return Limit(metric=metric, below_s=seconds, or_equal=sign == "<=")


def _refuse_twice(limits: Sequence[Limit]) -> None:
    names = [each.metric for each in limits]
    twice = [name for name in METRICS if names.count(name) > 1]
    if not names or twice:
        raise UsageError(
            _explain(f"{twice[0]} is given twice" if twice else "no limit given")
        )


def _explain(what: str) -> str:
    listed = "\n".join(f"  {name:<8}{meaning}" for name, meaning in METRICS.items())
    return f"--slo: {what}. Write 'ttft_s<0.5 tpot_s<50ms'; the metrics are\n{listed}"
