"""Finds the period in which two sides differed from the rest of the time.

All periods are searched, and chance finds one as well: what counts is how rarely the
best period stands out as much when blocks of time are put in random order (Good 2005,
Permutation, Parametric and Bootstrap Tests of Hypotheses; periods as by Olshen et al.
2004, Circular binary segmentation, Biostatistics 5). The autocorrelation time is
measured inside and outside of the period separately, so that the step itself does not
count as memory.
"""

from dataclasses import dataclass

import numpy as np

from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.reading.pairing import Truths
from inferwatch.studies.compare.statistics.resampling import (
    BINS,
    PIECES,
    Floats,
    blocks_for,
    memories,
)
from inferwatch.studies.compare.where.measure import Measure

LEAST_BLOCKS = 3
"""Fewest blocks of a period and of the rest; fewer have no spread."""
FIRST_LEAST = 9
"""Fewest pieces of a period, before the autocorrelation time is known."""
ORDERS = 4000
FEW_ORDERS, MOST_BEYOND = 200, 20
TWO_ENDS = 12.0
"""A period with two ends must be better than one with one end by this many variances.
"""


@dataclass(frozen=True, slots=True)
class Onset:
    """A period of the compared span, in pieces."""

    begin: int
    end: int
    blocks: int
    """The number of blocks in the whole span."""
    p_value: float

    @property
    def inside(self) -> Truths:
        places = np.arange(PIECES)
        return np.asarray((places >= self.begin) & (places < self.end))


def leanings(rows: Floats, measure: Measure) -> Floats:
    """How far each piece of time is above the overall level; the values add up to 0.

    For a quantile: how many values are beyond it, compared with the expected number.
    This works even where a piece is too short for a quantile of its own, and a side
    that is slower everywhere gives 0.
    """
    n = rows @ measure.below
    whole = float(n.sum())
    if not whole:
        return np.zeros(len(rows))
    if measure.share is None:
        amount = rows @ measure.above
    else:
        amount = rows[:, measure.above > measure.of(rows)].sum(axis=1)
    level = float(amount.sum()) / whole
    return np.asarray((amount - level * n) / (level * whole)) if level else n * 0.0


def onset(leaning: Floats, log_ratios: Floats, seed: int) -> Onset | None:
    """The period that stands out most; None if the span is too short for one.

    Args:
        leaning: How far B exceeds A in each piece; adds up to 0.
        log_ratios: Log ratios of the sides' means per bin; NaN if unknown.
        seed: The seed of the random orders of blocks.
    """
    long = memories(_levelled(log_ratios, *_first_estimate(log_ratios)))
    blocks = blocks_for(long)
    if blocks < 2 * LEAST_BLOCKS + 1:
        return None
    each = PIECES // blocks
    begin, end = _best_period(leaning, LEAST_BLOCKS * each, max(PIECES / long, 1.0))
    together = leaning.reshape(blocks, each).sum(axis=1)
    random = np.random.default_rng((seed, blocks))
    reached = _most(together[None, :])[0] * (1 - 1e-9)
    tries = beyond = 0
    for orders in (FEW_ORDERS, ORDERS - FEW_ORDERS):
        some = random.permuted(np.tile(together, (orders, 1)), axis=1)
        tries, beyond = tries + orders, beyond + int((_most(some) >= reached).sum())
        if beyond > MOST_BEYOND:
            break  # more orders would not change that it does not stand out
    return Onset(begin, end, blocks, (beyond + 1) / (tries + 1))


def _first_estimate(log_ratios: Floats) -> tuple[int, int]:
    """A first estimate of the period, for measuring the autocorrelation time."""
    known = np.isfinite(log_ratios)
    if not known.any():
        return 0, FIRST_LEAST
    level = log_ratios[known].mean()
    deviations = np.where(known, log_ratios - level, 0.0)
    return _best_period(deviations.reshape(PIECES, -1).sum(axis=1), FIRST_LEAST, 1.0)


def _levelled(log_ratios: Floats, begin: int, end: int) -> Floats:
    known = np.isfinite(log_ratios)
    piece = np.arange(BINS) // (BINS // PIECES)
    inside = (piece >= begin) & (piece < end)
    levelled = np.where(known, log_ratios, np.nan)
    for these in (inside, ~inside):
        if (these & known).any():
            levelled[these] -= log_ratios[these & known].mean()
    return levelled


def _stretches(length: int, least: int) -> tuple[Ints, Ints]:
    """Begins and ends of all periods that leave enough inside and outside."""
    begin, end = np.triu_indices(length + 1, least)
    fits = end - begin <= length - least
    return begin[fits], end[fits]


def _distances(upto: Floats, begin: Ints, end: Ints, length: int) -> Floats:
    """How far the sum of each period is from its expectation."""
    size = end - begin
    deviation = upto[..., end] - upto[..., begin] - upto[..., -1:] * (size / length)
    return np.asarray(np.abs(deviation) / np.sqrt(size * (length - size) / length))


def _upto(values: Floats) -> Floats:
    nothing = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([nothing, np.cumsum(values, axis=-1)], axis=-1)


def _most(orders: Floats) -> Floats:
    length = orders.shape[-1]
    begin, end = _stretches(length, LEAST_BLOCKS)
    return np.asarray(_distances(_upto(orders), begin, end, length).max(axis=-1))


def _best_period(leaning: Floats, least: int, memory: float) -> tuple[int, int]:
    """The period that stands out most.

    One with both ends inside the span is taken only if it stands out much more than
    one that begins or ends with the span.
    """
    length = len(leaning)
    begin, end = _stretches(length, least)
    distances = _distances(_upto(leaning), begin, end, length)
    one_end = (begin == 0) | (end == length)
    best = int(np.argmax(distances))
    edge = int(np.argmax(np.where(one_end, distances, -1.0)))
    inside = np.zeros(length, bool)
    inside[begin[best] : end[best]] = True
    spread = leaning.astype(float)
    for these in (inside, ~inside):
        spread[these] -= spread[these].mean()
    gained = distances[best] ** 2 - distances[edge] ** 2
    if gained < TWO_ENDS * memory * spread.var():
        best = edge
    return int(begin[best]), int(end[best])
