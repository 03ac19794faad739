"""The duration of a step, learned from recorded steps.

The expected duration is the sum of: the median of pure decode steps with as many
requests, increasing with the batch size; a cost for each token of context that is read;
and for prompts a curve over their tokens and a cost for each pair of query and key.
Medians are used throughout, so that a few machine pauses do not make it look slow.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferwatch.studies.what_if.recorded_steps import RecordedSteps
from inferwatch.studies.what_if.scheduler import StepLoad

Floats = npt.NDArray[np.float64]

FEWEST_STEPS = 200
"""Fewest steps from which their cost can be learned."""
FEWEST_OF_A_BATCH = 5
FEWEST_PREFILLS = 10
FEWEST_OF_A_BIN = 25
MOST_BINS = 12
ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Curve:
    """Linear interpolation between points, with a fixed slope beyond the last."""

    xs: list[float]
    ys: list[float]
    slope: float

    def at(self, x: float) -> float:
        xs, ys = self.xs, self.ys
        place = bisect_left(xs, x)
        if place == 0:
            return ys[0]
        if place == len(xs):
            return ys[-1] + self.slope * (x - xs[-1])
        low = xs[place - 1]
        share = (x - low) / (xs[place] - low)
        return ys[place - 1] + share * (ys[place] - ys[place - 1])

    def over(self, x: Floats) -> Floats:
        beyond = np.maximum(x - self.xs[-1], 0) * self.slope
        return np.interp(x, self.xs, self.ys) + beyond


class StepCost:
    """The expected duration of steps and of the gaps between them."""

    def __init__(self, steps: RecordedSteps) -> None:
        """Learn from recorded steps, of which there must be at least FEWEST_STEPS."""
        self.most_members = int(steps.members.max())
        self.most_prefill_tokens = int(steps.prefill_tokens.max())
        decode = steps.prefill_tokens == 0
        took = steps.took_ns.astype(float)
        if not decode.any():
            decode = np.ones(len(took), bool)
        self._context = _slope_within(
            steps.members[decode], steps.context[decode], took[decode]
        )
        rest = took - self._context * steps.context
        self._batch = _by_count(steps.members[decode], rest[decode])
        self._learn_prefill(steps, rest)
        has_gap = steps.gap_ns >= 0
        self._gap = _by_count(
            steps.members[has_gap], steps.gap_ns[has_gap].astype(float)
        )
        self.typical_ns = float(np.median(took))
        """The median duration of a step."""
        self.error = _error(self.expected(steps), took)
        """The median relative error of the expected durations."""

    def _learn_prefill(self, steps: RecordedSteps, rest: Floats) -> None:
        self._pairs, self._prefill = 0.0, Curve([0.0], [0.0], 0.0)
        with_prompts = steps.prefill_tokens > 0
        if with_prompts.sum() < FEWEST_PREFILLS:
            return
        tokens = steps.prefill_tokens[with_prompts].astype(float)
        pairs = steps.pairs[with_prompts]
        extra = rest - self._batch.over(steps.members.astype(float))
        extra = extra[with_prompts]
        _, each, self._pairs = _least_deviations(tokens, pairs, extra)
        extra -= self._pairs * pairs
        self._prefill = _binned(tokens, extra, max(each, 0.0))

    def expected(self, steps: RecordedSteps) -> Floats:
        """The expected duration of each of these steps, in ns."""
        expected = self._batch.over(steps.members.astype(float))
        expected += self._context * steps.context
        with_prompts = steps.prefill_tokens > 0
        expected[with_prompts] += (
            self._prefill.over(steps.prefill_tokens[with_prompts].astype(float))
            + self._pairs * steps.pairs[with_prompts]
        )
        return np.maximum(expected, 1.0)

    def expected_ns(self, load: StepLoad) -> float:
        took = self._batch.at(load.decoding + load.prefilling)
        took += self._context * load.context_tokens
        if load.prefill_tokens:
            took += self._prefill.at(load.prefill_tokens) + self._pairs * load.pairs
        return max(took, 1.0)

    def expected_gaps(self, steps: RecordedSteps) -> Floats:
        """The expected gap after each of these steps, in ns."""
        return self._gap.over(steps.members.astype(float))

    def gap_ns(self, members: int) -> float:
        """The expected gap after a step with ``members`` requests, in ns."""
        return self._gap.at(members)


# Curves.


def _by_count(counts: npt.NDArray[np.int64], values: Floats) -> Curve:
    """Fit medians by count, never falling; rare counts are interpolated."""
    if not len(counts):
        return Curve([0.0], [0.0], 0.0)
    distinct, which, sizes = np.unique(counts, return_inverse=True, return_counts=True)
    often = sizes >= min(FEWEST_OF_A_BATCH, sizes.max())
    xs = distinct[often].astype(float)
    ys = np.array([np.median(values[which == n]) for n in np.flatnonzero(often)])
    ys = _rising(ys, sizes[often].astype(float))
    half = len(xs) // 2
    far = xs[-1] - xs[half]
    slope = float((ys[-1] - ys[half]) / far) if far else 0.0
    return Curve(xs.tolist(), ys.tolist(), slope)


def _binned(xs: Floats, ys: Floats, slope: float) -> Curve:
    """Fit medians over bins of about equal size, never falling."""
    bins = int(np.clip(len(xs) // FEWEST_OF_A_BIN, 1, MOST_BINS))
    if bins == 1:
        at = float(np.median(ys - slope * xs))
        return Curve([0.0], [at], slope)
    order = np.argsort(xs, kind="stable")
    parts = np.array_split(order, bins)
    mids = np.array([np.median(xs[part]) for part in parts])
    # Values in a bin follow the slope, so move them to the middle of the bin.
    at_mids = [
        np.median(ys[part] - slope * (xs[part] - mid))
        for part, mid in zip(parts, mids, strict=True)
    ]
    mids, first = np.unique(mids, return_index=True)
    heights = _rising(np.asarray(at_mids)[first], np.ones(len(mids)))
    low = heights[0] - slope * mids[0]
    if low > 0 and mids[0] > 0:
        mids, heights = np.append(0.0, mids), np.append(low, heights)
    return Curve(mids.tolist(), heights.tolist(), slope)


def _rising(ys: Floats, weights: Floats) -> Floats:
    """The closest values that never fall (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for y, weight in zip(ys, weights, strict=True):
        blocks.append([float(y), float(weight), 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            high, more, many = blocks.pop()
            low, weight_low, count = blocks.pop()
            total = weight_low + more
            mean = (low * weight_low + high * more) / total
            blocks.append([mean, total, count + many])
    return np.concatenate([np.full(int(n), y) for y, _, n in blocks])


def _slope_within(
    groups: npt.NDArray[np.int64], xs: npt.NDArray[np.int64], ys: Floats
) -> float:
    """The slope of y over x within groups; 0 if it is unclear or negative."""
    far: list[Floats] = []
    high: list[Floats] = []
    for group in np.unique(groups):
        mine = groups == group
        if mine.sum() >= FEWEST_OF_A_BATCH:
            far.append(xs[mine] - np.median(xs[mine]))
            high.append(ys[mine] - np.median(ys[mine]))
    if not far:
        return 0.0
    x, y = np.concatenate(far), np.concatenate(high)
    weights, slope = np.ones(len(x)), 0.0
    for _ in range(ROUNDS):
        below = float(weights @ (x * x))
        slope = float(weights @ (x * y)) / below if below else 0.0
        weights = 1 / np.maximum(np.abs(y - slope * x), 1.0)
    return max(slope, 0.0)


def _least_deviations(xs: Floats, pairs: Floats, ys: Floats) -> Sequence[float]:
    """Fit a constant and two costs, none negative, by least absolute deviations."""
    columns = np.stack([np.ones(len(xs)), xs, pairs], axis=1)
    active = [0, 1, 2]
    while True:
        part, weights = columns[:, active], np.ones(len(xs))
        solution = np.zeros(len(active))
        for _ in range(ROUNDS):
            root = np.sqrt(weights)[:, None]
            solution = np.linalg.lstsq(part * root, ys * root[:, 0], rcond=None)[0]
            weights = 1 / np.maximum(np.abs(ys - part @ solution), 1.0)
        wrong = [
            n for n, value in zip(active, solution, strict=True) if value < 0 and n
        ]
        if not wrong:
            break
        active.remove(wrong[-1])
    whole = [0.0, 0.0, 0.0]
    for place, value in zip(active, solution, strict=True):
        whole[place] = float(value)
    return whole


def _error(expected: Floats, took: Floats) -> float:
    return float(np.median(np.abs(took - expected) / expected))
