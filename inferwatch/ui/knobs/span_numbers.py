"""Metrics of the seconds before and after a change of limits.

A latency counts when the request got its first token, or its last, as in every window.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.intervals import (
    Interval,
    Numbers,
    intervals,
    mean_interval,
)
from inferwatch.metrics.series.quantiles import of_weighted
from inferwatch.metrics.snapshot import Snapshot

BIN_NS = NS_PER_S // 2
PERCENTS = ("p50", "p99")
LATENCIES = ("ttft_s", "tpot_s")
TOKENS_PER_S, WAITING = "output tokens/s", "requests waiting"
MOST_STEPS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanFigure:
    """A number and its confidence interval."""

    value: float | None = None
    interval: Interval = (None, None)
    weak: bool = False
    """It rests on too few samples."""

    def is_apart(self, other: "SpanFigure") -> bool | None:
        """Return True if the intervals do not overlap, None if that is unknown."""
        (low, high), (lower, higher) = self.interval, other.interval
        ends = (high, lower), (higher, low)
        if any(a is not None and b is not None and a < b for a, b in ends):
            return True
        return None if any(None in pair for pair in ends) else False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanNumbers:
    """Latencies, throughput and queue of one span."""

    start_ns: int
    end_ns: int
    figures: Mapping[str, SpanFigure] = field(default_factory=dict)
    """By ``ttft_s p99``, ``output tokens/s``, ``requests waiting``."""
    forgotten: bool = False
    """Requests of the span were evicted, so latencies are unknown."""

    def of(self, name: str) -> SpanFigure:
        return self.figures.get(name, SpanFigure())


def span_numbers(
    snapshot: Snapshot, steps: Iterable[Step], start_ns: int, end_ns: int
) -> SpanNumbers:
    there = [each for each in steps if start_ns < each.end_ns <= end_ns]
    forgotten = _is_forgotten(snapshot, start_ns)
    figures = {} if forgotten else _latencies(snapshot.requests, start_ns, end_ns)
    if there:
        whole = len(there) < MOST_STEPS
        since_ns = start_ns if whole else min(each.end_ns for each in there)
        figures[TOKENS_PER_S] = _mean(_rates(there, since_ns, end_ns))
        figures[WAITING] = _mean(_waiting(there, since_ns))
    return SpanNumbers(
        start_ns=start_ns, end_ns=end_ns, figures=figures, forgotten=forgotten
    )


def _is_forgotten(snapshot: Snapshot, start_ns: int) -> bool:
    """Return True if rows of the span were evicted."""
    ended = [each.arrived_ns for each in snapshot.requests if not each.state.live]
    return snapshot.requests_evicted > 0 and min(ended, default=start_ns) > start_ns


def _latencies(
    rows: Sequence[RequestRow], start_ns: int, end_ns: int
) -> dict[str, SpanFigure]:
    first: list[tuple[int, float]] = []
    whole: list[tuple[int, float]] = []
    for row in rows:
        if row.ttft_s is not None:
            first.append((row.arrived_ns + round(row.ttft_s * NS_PER_S), row.ttft_s))
        if row.tpot_s is not None and row.e2el_s is not None and not row.state.live:
            whole.append((row.arrived_ns + round(row.e2el_s * NS_PER_S), row.tpot_s))
    figures: dict[str, SpanFigure] = {}
    for metric, samples in zip(LATENCIES, (first, whole), strict=True):
        values = [each for t_ns, each in sorted(samples) if start_ns < t_ns <= end_ns]
        if values:
            figures |= _percentiles(metric, np.array(values, np.float64))
    return figures


def _percentiles(metric: str, values: Numbers) -> dict[str, SpanFigure]:
    in_ns = np.round(values * NS_PER_S).astype(np.int64)
    quantiles = of_weighted(in_ns, np.ones(len(values), np.int64), NS_PER_S)
    spans = intervals(values)
    return {
        f"{metric} {percent}": SpanFigure(
            value=getattr(quantiles, percent),
            interval=spans[percent],
            weak=percent in quantiles.weak,
        )
        for percent in PERCENTS
    }


def _mean(values: Numbers) -> SpanFigure:
    if not len(values):
        return SpanFigure()
    low, high = mean_interval(values)
    return SpanFigure(
        value=float(values.mean()),
        interval=(None if low is None else max(low, 0), high),
    )


def _rates(steps: Iterable[Step], start_ns: int, end_ns: int) -> Numbers:
    """Return tokens per second by whole bins."""
    made = np.zeros(max((end_ns - start_ns) // BIN_NS, 0))
    for step in steps:
        place = (step.end_ns - start_ns - 1) // BIN_NS
        if 0 <= place < len(made):
            made[place] += step.output_tokens
    return np.asarray(made / (BIN_NS / NS_PER_S), np.float64)


def _waiting(steps: Iterable[Step], start_ns: int) -> Numbers:
    """Return the mean queue length of each bin with steps, summed over ranks."""
    queues: dict[int, dict[tuple[str, int], list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for step in steps:
        place = (step.end_ns - start_ns - 1) // BIN_NS
        queues[place][step.source, step.rank].append(step.waiting)
    return np.array(
        [
            sum(sum(each) / len(each) for each in queues[place].values())
            for place in sorted(queues)
        ],
        np.float64,
    )
