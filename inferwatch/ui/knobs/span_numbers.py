"""Metrics of the seconds before and after a change of limits.

A latency counts when the request got its first token, or its last, as in every window.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from threading import Event

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import LimitChange, Step
from inferwatch.feed import Feed, FeedState, LimitPair, Mark, MarkKind
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.intervals import (
    Interval,
    Numbers,
    intervals,
    mean_interval,
)
from inferwatch.metrics.series.quantiles import of_weighted
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.studies.what_if.prediction import WhatIf, predict
from inferwatch.studies.what_if.recorded import RecordedRun
from inferwatch.studies.what_if.setting import SettingChange
from inferwatch.studies.what_if.shown import run_shown
from inferwatch.ui.kit.dialogs import GivenUpError
from inferwatch.ui.knobs.knob_state import KnobState

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
        """Return True if the two intervals do not overlap, None if that is unknown."""
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
    """Return True if requests that ended in the span may have been evicted."""
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
    """Return the output tokens per second in each whole bin of a span."""
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


LEARN_NS = 300 * NS_PER_S
"""The last minutes are kept in memory."""
SIDE_NS = 30 * NS_PER_S
"""Time before and after a change."""
RUN_HOLDS_NS = 20 * NS_PER_S
"""How long a learnt load is used for predictions."""


class Outlook:
    """Predictions and outcomes for one server, or all."""

    def __init__(self, feed: Feed, source: str | None) -> None:
        self._feed, self._source = feed, source
        self._run: tuple[int, int, RecordedRun] | None = None
        """When the load was learnt, since which change, and the recorded run."""
        self._sides: dict[tuple[int, int], SpanNumbers] = {}
        """Past spans, which do not change."""

    async def prediction(
        self, wanted: LimitPair, state: KnobState, given_up: Event
    ) -> WhatIf:
        """Predict the numbers since the last change, had these limits been set then.

        Raises:
            CannotTellError: too little is known.
            GivenUpError: the dialog was closed.
        """

        def heard(_: int) -> None:
            if given_up.is_set():
                raise GivenUpError

        run = await self._learnt(changed_ns(state) or 0)
        change = SettingChange(
            max_num_seqs=wanted.max_num_seqs,
            max_num_batched_tokens=wanted.max_num_batched_tokens,
        )
        return await asyncio.to_thread(predict, run, [change], heard)

    async def _learnt(self, since_ns: int) -> RecordedRun:
        feed, now_ns = self._feed, self._feed.now_ns()
        if self._run is not None:
            learnt_ns, of_ns, run = self._run
            if of_ns == since_ns and 0 <= now_ns - learnt_ns < RUN_HOLDS_NS:
                return run
        snapshot = feed.snapshot(
            SnapshotQuery(Window.SESSION, client=True, source=self._source)
        )
        begin_ns = max(now_ns - LEARN_NS, since_ns, 0)
        steps = await feed.recall.steps(begin_ns, now_ns, self._source)
        run = await asyncio.to_thread(run_shown, snapshot, steps, self._source)
        self._run = now_ns, since_ns, run
        return run

    async def outcome(self, change_ns: int) -> tuple[SpanNumbers, SpanNumbers | None]:
        """Return numbers before and after a change, None for after until it is over."""
        before = await self._side(self._begin_ns(change_ns), change_ns)
        if self.left_ns(change_ns) > 0:
            return before, None
        return before, await self._side(change_ns, change_ns + SIDE_NS)

    def left_ns(self, change_ns: int) -> int:
        """Return for how long the span after the change still lasts."""
        return max(change_ns + SIDE_NS - self._feed.now_ns(), 0)

    def waits_text(self, change_ns: int) -> str:
        """Return the heading for the span after a change, while it is not over."""
        left_ns, playback = self.left_ns(change_ns), self._feed.playback
        if not left_ns:
            return ""
        if playback is not None and not (playback.at_live or playback.playing):
            return "after: view is held"
        if self._feed.state in {FeedState.LOST, FeedState.ENDED}:
            return "after: engine gone"
        return f"after: in {ceil(left_ns / NS_PER_S)} s"

    def changes(self) -> tuple[Mark, ...]:
        playback, now_ns = self._feed.playback, self._feed.now_ns()
        marks = playback.marks if playback is not None else ()
        return tuple(m for m in marks if m.kind is MarkKind.LIMITS and m.t_ns <= now_ns)

    def _begin_ns(self, change_ns: int) -> int:
        """Return the start of the span before a change, after any previous change."""
        earlier = [m.t_ns for m in self.changes() if m.t_ns < change_ns - NS_PER_S]
        return max([change_ns - SIDE_NS, 0, *earlier])

    async def _side(self, start_ns: int, end_ns: int) -> SpanNumbers:
        span = start_ns, end_ns
        if span not in self._sides:
            feed, source = self._feed, self._source
            snapshot = feed.snapshot(
                SnapshotQuery(Window.SESSION, client=False, source=source)
            )
            steps = await feed.recall.steps(start_ns, end_ns, source)
            made = await asyncio.to_thread(span_numbers, snapshot, steps, *span)
            self._sides[span] = made
        return self._sides[span]


def changed_ns(state: KnobState) -> int | None:
    """Return when the limits in force were set, None if unknown."""
    times_ns = [e.t_ns for e in state.limits if e.change is not LimitChange.START]
    since_ns = max(times_ns, default=0)
    return since_ns if since_ns > 0 and not state.pending else None
