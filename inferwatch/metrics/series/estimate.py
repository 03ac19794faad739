"""A latency of a whole run: its quantiles, and how far off each may be."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collectors.clock import NS_PER_S
from inferwatch.metrics.series.intervals import Interval, at_least, intervals
from inferwatch.metrics.series.quantiles import PERCENTS, Ints, of_weighted
from inferwatch.metrics.snapshot import Quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds."""

    quantiles: Quantiles = field(default_factory=Quantiles)
    ci95: dict[str, Interval] = field(default_factory=dict)
    p99_at_least: float | None = None
    """What a hiccup or two may have made of the p99 left out."""

    def as_json(self) -> dict[str, Any]:
        """One object, as summaries hold it."""
        columns = ("mean", *PERCENTS, "max")
        return {
            "n": self.quantiles.n,
            **{name: getattr(self.quantiles, name) for name in columns},
            "ci95": {name: list(interval) for name, interval in self.ci95.items()},
            "weak": list(self.quantiles.weak),
        }


def estimate(values_ns: Ints) -> Estimate:
    """Of durations in order of time."""
    ones = np.ones(len(values_ns), np.int64)
    values_s = values_ns / NS_PER_S
    return Estimate(
        quantiles=of_weighted(values_ns, ones, NS_PER_S),
        ci95=intervals(values_s),
        p99_at_least=at_least(values_s, 0.99),
    )
