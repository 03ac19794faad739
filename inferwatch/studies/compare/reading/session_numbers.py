"""The numbers of one session that a comparison needs, by bin of time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, geometric_mean

import numpy as np

from collectors.contract.readings import Vantage
from inferwatch.metrics.load.client_verdict import ClientState, ClientVerdict
from inferwatch.record.sessions.sessions import SessionRow
from inferwatch.studies.compare.metrics import MEAN, JudgedMetric
from inferwatch.studies.compare.reading.conditions import Conditions
from inferwatch.studies.compare.reading.configuration import Configuration
from inferwatch.studies.compare.reading.request_kinds import KindCounts
from inferwatch.studies.compare.reading.span import ComparedSpan
from inferwatch.studies.compare.statistics.resampling import (
    CHANCES,
    CountedValues,
    Draws,
    Floats,
    as_many_blocks,
    left_over,
    memories,
    merged,
)
from inferwatch.studies.compare.statistics.significance import Resampled


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSums:
    """A rate or a mean as sums of numerator and denominator, one per bin."""

    above: Floats
    below: Floats
    n: int
    """The number of requests or steps behind it."""

    @property
    def means(self) -> Floats:
        """One mean per bin; NaN where nothing is known."""
        found = np.full(len(self.above), np.nan)
        np.divide(self.above, self.below, out=found, where=self.below > 0)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFacts:
    """The load that a session got; unknown values are None."""

    requests: int
    per_s: float | None
    prompt_tokens: float | None
    """Mean over the requests that arrived in the span; likewise ``output_tokens``."""
    output_tokens: float | None
    """Mean over those that were answered whole."""
    burstiness: float | None
    """Coefficient of variation of the gaps between arrivals: 1 is Poisson. Uses the
    planned times if nobody else sent requests.
    """
    failed: int
    unended: int = 0
    """Requests in the span that had not ended when the load or the recording did."""
    prompt_tokens_error: float = 0.0
    """The standard error of the mean of prompt tokens."""
    sent_burstiness: float | None = None
    """Burstiness of the actual sends; None if the concurrency limit delayed some."""
    ours: bool = False
    """Whether the load generator sent nearly all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Output tokens per second over time, starting at the span's origin."""

    bin_s: float
    per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Sessions that were sent the same requests at the same times."""

    requests: int
    """How many requests all of them answered."""
    of: int
    """How many requests were due in the compared part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNumbers:
    """All numbers of one session that a comparison needs."""

    row: SessionRow
    span: ComparedSpan
    load: LoadFacts
    configuration: Configuration
    counted: Mapping[str, CountedValues] = field(default_factory=dict)
    sums: Mapping[str, RatioSums] = field(default_factory=dict)
    kinds: Mapping[str, KindCounts] = field(default_factory=dict)
    """The latencies again, by kind of request."""
    kv_peak: float | None = None
    """Peak share of KV cache blocks in use, 0-1."""
    throughput: Throughput | None = None
    client: ClientVerdict = field(default_factory=ClientVerdict)
    """The verdict on the load generator; the worst one if there were several."""
    pairing: Pairing | None = None
    """Equal among paired sessions, whose bins are of the same schedule."""
    label: str | None = None
    """A name that tells it from other sessions with the same name."""
    path: Path | None = None
    """The file that it was read from."""
    conditions: Conditions = field(default_factory=Conditions)
    """The conditions during the measurement."""
    startup_s: Mapping[str, float] = field(default_factory=dict)
    """What each stage of the engine's start took, where a probe told; a fact beside
    the comparison, not judged."""
    currency: str | None = None
    """Of the recorded prices; None if there are none."""
    left_out: str | None = None
    """What does not follow from its readings as these are too many, in words."""

    @property
    def name(self) -> str:
        return self.label or self.row.name or self.row.id

    def client_alone(self, metric: JudgedMetric) -> bool:
        """Whether the number reflects a client that was too slow, not the server."""
        bound = self.client.state is ClientState.CLIENT_BOUND
        return bound and metric.vantage is Vantage.CLIENT

    def n_of(self, metric: JudgedMetric) -> int:
        if metric.statistic is None:
            return self.sums[metric.of].n if metric.of in self.sums else 0
        return self.counted[metric.of].n if metric.of in self.counted else 0

    def value_of(self, metric: JudgedMetric) -> float | None:
        if not self.n_of(metric):
            return None
        if metric.share is not None:
            return self.counted[metric.of].quantile_s(metric.share)
        above, below = self.line(metric)
        return float(above.sum() / below.sum()) if below.sum() else None

    def memories(self, metric: JudgedMetric) -> float:
        """Length of the metric's time series in integrated autocorrelation times."""
        return memories(self.means(metric))

    def means(self, metric: JudgedMetric) -> Floats:
        """The mean of each bin; NaN where nothing is known."""
        of_rate = metric.statistic is None
        return (self.sums if of_rate else self.counted)[metric.of].means

    def drawn(self, metric: JudgedMetric, draws: Draws, long: float) -> Resampled:
        """Resample the value, which must be known.

        Args:
            metric: The number to resample.
            draws: The resamplings of blocks.
            long: The span's length in autocorrelation times.
        """
        value = self.value_of(metric)
        drawn = self._drawn(metric, draws)
        return Resampled(
            value or 0.0,
            drawn,
            self.as_many_blocks(metric, draws.blocks),
            left_over(long, draws.blocks),
        )

    def as_many_blocks(self, metric: JudgedMetric, blocks: int) -> float:
        """The effective number of blocks, allowing for blocks with few values."""
        of_rate = metric.statistic is None
        counts = self.sums[metric.of].below if of_rate else self.counted[metric.of].bins
        return as_many_blocks(merged(counts, blocks))

    def parts(self, metric: JudgedMetric) -> Floats:
        """Each block's contribution to the value, as a share of it.

        For a quantile, the share of values beyond it: Hampel's influence curve.
        """
        if metric.share is not None:
            counted = self.counted[metric.of]
            upto = counted.upto_in(CHANCES)
            below = upto[counted.cell_of(metric.share)]
            return np.asarray((metric.share * upto[-1] - below) / counted.n)
        above, below = (merged(each, CHANCES) for each in self.line(metric))
        whole = above.sum() / below.sum()
        return np.asarray((above - whole * below) / (abs(above.sum()) or 1.0))

    def _drawn(self, metric: JudgedMetric, draws: Draws) -> Floats:
        if metric.share is not None:
            return draws.quantiles(self.counted[metric.of], metric.share)
        lines = (merged(each, draws.blocks) for each in self.line(metric))
        return draws.ratios(*lines)

    def line(self, metric: JudgedMetric) -> tuple[Floats, Floats]:
        """Numerator and denominator of a rate or a mean, per bin."""
        if metric.statistic == MEAN:
            values = self.counted[metric.of]
            return values.sums_s, values.bins
        sums = self.sums[metric.of]
        return sums.above, sums.below


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One side of a comparison: the runs of one setting, often a single one."""

    runs: tuple[SessionNumbers, ...]
    label: str | None = None
    """A common name for the runs."""
    unpaired_because: str | None = None
    """Why it is not compared with the first side request by request."""

    @classmethod
    def of(cls, run: SessionNumbers) -> "ComparedSide":
        return cls(runs=(run,))

    @property
    def name(self) -> str:
        return self.label or self.runs[0].name

    @property
    def first(self) -> SessionNumbers:
        return self.runs[0]

    @property
    def is_repeated(self) -> bool:
        """Whether there are several runs, so that their variation is known."""
        return len(self.runs) > 1

    @property
    def load(self) -> LoadFacts:
        """The load of all runs: counts summed, other values averaged."""
        if not self.is_repeated:
            return self.first.load
        loads = [run.load for run in self.runs]
        return LoadFacts(
            requests=sum(each.requests for each in loads),
            per_s=_mean(each.per_s for each in loads),
            prompt_tokens=_mean(each.prompt_tokens for each in loads),
            output_tokens=_mean(each.output_tokens for each in loads),
            burstiness=_mean(each.burstiness for each in loads),
            failed=sum(each.failed for each in loads),
            unended=sum(each.unended for each in loads),
            prompt_tokens_error=max(each.prompt_tokens_error for each in loads),
            ours=all(each.ours for each in loads),
        )

    @property
    def kv_peak(self) -> float | None:
        peaks = [run.kv_peak for run in self.runs if run.kv_peak is not None]
        return max(peaks) if len(peaks) == len(self.runs) else None

    def n_of(self, metric: JudgedMetric) -> int:
        """The number of values in all runs; 0 if any run has none."""
        counts = [run.n_of(metric) for run in self.runs]
        return sum(counts) if all(counts) else 0

    def value_of(self, metric: JudgedMetric) -> float | None:
        """The metric's value: of several runs their geometric mean; None if unknown."""
        values = [run.value_of(metric) for run in self.runs]
        known = [each for each in values if each is not None]
        if len(known) < len(values):
            return None
        if len(known) > 1 and min(known) > 0:
            return geometric_mean(known)
        return fmean(known)

    def client_alone(self, metric: JudgedMetric) -> bool:
        return any(run.client_alone(metric) for run in self.runs)


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    present = [each for each in known if each is not None]
    return fmean(present) if len(present) == len(known) else None
