"""From when to when two sides differed: one stretch of time against all the rest.

A stretch is looked for everywhere, and chance finds one, too: what counts is how seldom
the best of the stretches stands out as much when blocks of time are put in any order
(Good 2005, Permutation, Parametric and Bootstrap Tests of Hypotheses; stretches as by
Olshen et al. 2004, Circular binary segmentation, Biostatistics 5). What lasts is
measured first, stretch by stretch, so that the step itself is not taken for memory.
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
"""Of a stretch and of the rest: fewer have no spread."""
FIRST_LEAST = 9
"""Pieces of a stretch, before the memory is known."""
ORDERS = 4000
FEW_ORDERS, MOST_BEYOND = 200, 20
TWO_ENDS = 12.0
"""By so many variances a stretch with two ends must be the better one."""


@dataclass(frozen=True, slots=True)
class Onset:
    """A stretch of the pieces of a span."""

    begin: int
    end: int
    blocks: int
    """Of the whole span."""
    p_value: float

    @property
    def inside(self) -> Truths:
        places = np.arange(PIECES)
        return np.asarray((places >= self.begin) & (places < self.end))


def leanings(rows: Floats, measure: Measure) -> Floats:
    """By how much each piece is above what the whole is; together nothing.

    Of a quantile: values beyond it, against as many as there should be. So it is told
    even where a piece is too short for a quantile of its own, and a side that is
    slower everywhere leans nowhere.
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
    """The stretch that stands out most; None where the span is too short for one.

    Args:
        leaning: By how much each piece leans to the other side.
        log_ratios: Of the means of the sides, one a bin, where known.
        seed: Of the orders that are tried.
    """
    long = memories(_levelled(log_ratios, *_first(log_ratios)))
    blocks = blocks_for(long)
    if blocks < 2 * LEAST_BLOCKS + 1:
        return None
    each = PIECES // blocks
    begin, end = _best(leaning, LEAST_BLOCKS * each, max(PIECES / long, 1.0))
    together = leaning.reshape(blocks, each).sum(axis=1)
    random = np.random.default_rng((seed, blocks))
    reached = _most(together[None, :])[0] * (1 - 1e-9)
    tried = beyond = 0
    for orders in (FEW_ORDERS, ORDERS - FEW_ORDERS):
        some = random.permuted(np.tile(together, (orders, 1)), axis=1)
        tried, beyond = tried + orders, beyond + int((_most(some) >= reached).sum())
        if beyond > MOST_BEYOND:
            break  # it does not stand out, however often one tries
    return Onset(begin, end, blocks, (beyond + 1) / (tried + 1))


def _first(log_ratios: Floats) -> tuple[int, int]:
    """The stretch of the means, by which their memory is measured."""
    known = np.isfinite(log_ratios)
    if not known.any():
        return 0, FIRST_LEAST
    level = log_ratios[known].mean()
    apart = np.where(known, log_ratios - level, 0.0)
    return _best(apart.reshape(PIECES, -1).sum(axis=1), FIRST_LEAST, 1.0)


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
    """Where each begins and ends: neither it nor the rest is too short."""
    begin, end = np.triu_indices(length + 1, least)
    fits = end - begin <= length - least
    return begin[fits], end[fits]


def _standing(upto: Floats, begin: Ints, end: Ints, length: int) -> Floats:
    """How far the sum of each stretch is from what it would be by chance."""
    size = end - begin
    apart = upto[..., end] - upto[..., begin] - upto[..., -1:] * (size / length)
    return np.asarray(np.abs(apart) / np.sqrt(size * (length - size) / length))


def _upto(values: Floats) -> Floats:
    nothing = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([nothing, np.cumsum(values, axis=-1)], axis=-1)


def _most(orders: Floats) -> Floats:
    length = orders.shape[-1]
    begin, end = _stretches(length, LEAST_BLOCKS)
    return np.asarray(_standing(_upto(orders), begin, end, length).max(axis=-1))


def _best(leaning: Floats, least: int, memory: float) -> tuple[int, int]:
    """The best one; with two ends only if that is far better than with one."""
    length = len(leaning)
    begin, end = _stretches(length, least)
    found = _standing(_upto(leaning), begin, end, length)
    one_end = (begin == 0) | (end == length)
    best = int(np.argmax(found))
    edge = int(np.argmax(np.where(one_end, found, -1.0)))
    inside = np.zeros(length, bool)
    inside[begin[best] : end[best]] = True
    spread = leaning.astype(float)
    for these in (inside, ~inside):
        spread[these] -= spread[these].mean()
    gained = found[best] ** 2 - found[edge] ** 2
    if gained < TWO_ENDS * memory * spread.var():
        best = edge
    return int(begin[best]), int(end[best])
