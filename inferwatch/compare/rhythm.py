"""How long what happens in a session remembers, and the blocks that are longer.

A block must be long against the memory of the series, or blocks are not independent;
few long blocks cost little, as ten to thirty batches say nearly all there is to say
(Schmeiser 1982, Batch size effects in the analysis of simulation output; Law and
Kelton, Simulation Modeling and Analysis, "batch means"). The memory is the integrated
autocorrelation time, summed over the initial positive sequence (Geyer 1992, Practical
Markov chain Monte Carlo).
"""

from collections.abc import Iterable

import numpy as np

from inferwatch.compare.counted import Floats

BINS = 200
MOST_BLOCKS, FEWEST_BLOCKS = 20, 8
MEMORIES_A_BLOCK = 10
FEWEST_MEMORIES = 60
"""A window that is shorter says too little of what may happen."""


def blocks_for(series: Iterable[Floats]) -> tuple[int, float]:
    """How many blocks to cut the window into, and how many times as long it should be.

    Each series covers the window in BINS bins; the one that remembers longest counts.
    """
    memory_bins = max((memory(each) for each in series), default=1.0)
    wanted = int(BINS / (MEMORIES_A_BLOCK * memory_bins))
    blocks = min(max(wanted, FEWEST_BLOCKS), MOST_BLOCKS)
    return blocks, memory_bins * FEWEST_MEMORIES / BINS


def memory(values: Floats) -> float:
    """The integrated autocorrelation time in bins; 1 when bins are independent."""
    known = np.isfinite(values)
    if known.sum() < 10:
        return 1.0
    filled = np.interp(np.arange(len(values)), np.flatnonzero(known), values[known])
    centred = filled - filled.mean()
    n = len(centred)
    spectrum = np.fft.rfft(centred, 2 * n)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[:n] / n
    if covariance[0] <= 0:
        return 1.0
    correlation = covariance / covariance[0]
    pairs = correlation[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    positive = pairs[: ends[0]] if len(ends) else pairs
    return max(2 * float(positive.sum()) - 1, 1.0)
