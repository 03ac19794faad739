"""One session, ready to be compared: everything by block of time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from collectors.readings import Vantage
from inferwatch.compare.configuration import Configuration
from inferwatch.compare.metrics import MEAN, JudgedMetric
from inferwatch.compare.resampling import (
    CountedValues,
    Draws,
    Floats,
    blocks_for,
    left_over,
    memories,
    merged,
    too_short,
)
from inferwatch.compare.significance import Resampled
from inferwatch.compare.span import ComparedSpan
from inferwatch.metrics.load.client_verdict import ClientState, ClientVerdict
from inferwatch.storage.sessions.sessions import SessionRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSums:
    """A rate or a mean: sums above and below the line, one a bin."""

    above: Floats
    below: Floats
    n: int
    """How many requests or steps it stands on."""

    @property
    def memories(self) -> float:
        """How many times its own memory the span is long."""
        found = np.full(len(self.above), np.nan)
        np.divide(self.above, self.below, out=found, where=self.below > 0)
        return memories(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFacts:
    """The load that a session got; None is unknown."""

    requests: int
    per_s: float | None
    prompt_tokens: float | None
    """Mean, of the requests that came in the span; as is the next."""
    output_tokens: float | None
    burstiness: float | None
    """Coefficient of variation of the gaps between arrivals: 1 is Poisson."""
    failed: int
    unended: int = 0
    """Of those that came in the span, when the recording ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Tokens per second over time, from the origin of the span on."""

    bin_s: float
    per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNumbers:
    """All numbers of one session that a comparison needs."""

    row: SessionRow
    span: ComparedSpan
    load: LoadFacts
    configuration: Configuration
    counted: Mapping[str, CountedValues] = field(default_factory=dict)
    sums: Mapping[str, RatioSums] = field(default_factory=dict)
    kv_peak: float | None = None
    """Share of the blocks, 0-1."""
    throughput: Throughput | None = None
    client: ClientVerdict = field(default_factory=ClientVerdict)
    """On its load generator: that of the worst of its runs."""
    label: str | None = None
    """Tells it from another one of its name."""

    @property
    def name(self) -> str:
        """As people call it."""
        return self.label or self.row.name or self.row.id

    def client_alone(self, metric: JudgedMetric) -> bool:
        """The number tells of a client that was too slow, and not of the server."""
        bound = self.client.state is ClientState.CLIENT_BOUND
        return bound and metric.vantage is Vantage.CLIENT

    def n_of(self, metric: JudgedMetric) -> int:
        """On how many values a number stands."""
        if metric.statistic is None:
            return self.sums[metric.of].n if metric.of in self.sums else 0
        return self.counted[metric.of].n if metric.of in self.counted else 0

    def value_of(self, metric: JudgedMetric) -> float | None:
        """The number as it was; None when nothing is known."""
        if not self.n_of(metric):
            return None
        if metric.share is not None:
            return self.counted[metric.of].quantile_s(metric.share)
        above, below = self._line(metric)
        return float(above.sum() / below.sum()) if below.sum() else None

    def too_short(self, metric: JudgedMetric) -> float:
        """How many times as long the span should be; up to 1 it is long enough."""
        return too_short(self._memories(metric), metric.share)

    def drawn(
        self, metric: JudgedMetric, make_draws: Callable[[int], Draws]
    ) -> Resampled:
        """The number as it was and as it might have been; it must be known."""
        long = self._memories(metric)
        blocks = blocks_for(long)
        draws = make_draws(blocks)
        if metric.share is not None:
            drawn = draws.quantiles(self.counted[metric.of], metric.share)
        else:
            above, below = (merged(each, blocks) for each in self._line(metric))
            drawn = draws.ratios(above, below)
        value = self.value_of(metric)
        return Resampled(value or 0.0, drawn, blocks, left_over(long, blocks))

    def _memories(self, metric: JudgedMetric) -> float:
        of_rate = metric.statistic is None
        return (self.sums if of_rate else self.counted)[metric.of].memories

    def _line(self, metric: JudgedMetric) -> tuple[Floats, Floats]:
        if metric.statistic == MEAN:
            values = self.counted[metric.of]
            return values.sums_s, values.bins
        sums = self.sums[metric.of]
        return sums.above, sums.below
