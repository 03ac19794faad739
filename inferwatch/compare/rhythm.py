"""How long what happens in a session remembers, and the blocks that are longer.

A block must be long against the memory of the series, or blocks are not independent;
few long blocks cost little, as ten to thirty batches say nearly all there is to say
(Schmeiser 1982, Batch size effects in the analysis of simulation output; Law and
Kelton, Simulation Modeling and Analysis, "batch means"). The memory is the integrated
autocorrelation time, summed over the initial positive sequence (Geyer 1992, Practical
Markov chain Monte Carlo).
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BINS = 240
"""Of a span: fine enough for its memory, and for a chart."""
PIECES = 60
"""Of a span, by which values are counted; blocks are made of them."""
CHOICES = (20, 15, 12, 10, 6)
"""Blocks of whole pieces."""
MEMORIES_A_BLOCK = 10
LEAST_MEMORIES = {0.99: 60, 0.90: 20}
"""A span of fewer says too little of that quantile."""
LEAST_MEMORIES_ELSE = 10


def memories(values: Floats) -> float:
    """How many times its memory a series is long; unknown bins are passed over."""
    known = np.isfinite(values)
    if known.sum() < 10:
        return float(len(values))
    filled = np.interp(np.arange(len(values)), np.flatnonzero(known), values[known])
    return len(values) / _autocorrelation_time(filled)


def _autocorrelation_time(values: Floats) -> float:
    """In bins; 1 when they are independent."""
    centred = values - values.mean()
    n = len(centred)
    spectrum = np.fft.rfft(centred, 2 * n)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[:n]
    if covariance[0] <= 0:
        return 1.0
    pairs = (covariance / covariance[0]).reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    positive = pairs[: ends[0]] if len(ends) else pairs
    return max(2 * float(positive.sum()) - 1, 1.0)


def blocks_for(long: float) -> int:
    """How many blocks to cut a span into that is so many memories long."""
    return next((n for n in CHOICES if n * MEMORIES_A_BLOCK <= long), CHOICES[-1])


def too_short(long: float, share: float | None) -> float:
    """How many times as long it should be; up to 1 it is long enough."""
    least = LEAST_MEMORIES.get(share or 0.0, LEAST_MEMORIES_ELSE)
    return least / long


def left_over(long: float, blocks: int) -> float:
    """Blocks that still resemble their neighbours vary too little: by this factor.

    Of a first-order process the variance of a block's mean lacks memory / 2 lengths.
    """
    return float(1 / np.sqrt(1 - min(blocks / long / 2, 0.75)))


def merged(pieces: Floats, blocks: int) -> Floats:
    """Pieces, or bins, together as blocks."""
    shape = (blocks, len(pieces) // blocks, *pieces.shape[1:])
    return np.asarray(pieces.reshape(shape).sum(axis=1), np.float64)
