"""Sessions as they might have been: blocks of time drawn again, with replacement.

Requests of one run share a queue and a batch, so they cannot be drawn one by one; what
happened in a stretch of time stays together (Carlstein 1986, The use of subseries
values; Künsch 1989, The jackknife and the bootstrap for general stationary
observations; Lahiri 2003, Resampling Methods for Dependent Data).
"""

from dataclasses import dataclass

import numpy as np

from inferwatch.compare.counted import Counted
from inferwatch.compare.rhythm import Floats, merged

DRAWS = 4000
NEAR = 6.0
"""A quantile of a draw lies within so many standard errors of the session's."""
FINEST = 256
"""Values that are tried for the quantile of a draw."""


@dataclass(frozen=True, slots=True)
class Draws:
    """How often each block of a session was drawn."""

    weights: Floats
    """Draws by blocks."""

    @property
    def blocks(self) -> int:
        """Of the session."""
        return int(self.weights.shape[1])

    @classmethod
    def make(cls, blocks: int, seed: tuple[int, ...], draws: int = DRAWS) -> "Draws":
        """Always the same for a seed."""
        random = np.random.default_rng(seed)
        equal = np.full(blocks, 1 / blocks)
        return cls(random.multinomial(blocks, equal, size=draws).astype(np.float64))

    def ratios(self, above: Floats, below: Floats) -> Floats:
        """Of sums over blocks: a mean, or a rate; unknown where below is nothing."""
        divisor = self.weights @ below
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((self.weights @ above) / divisor, np.float64)

    def quantiles(self, values: Counted, share: float) -> Floats:
        """One for each draw, nearest rank."""
        upto = np.cumsum(merged(values.counts.astype(float), self.blocks), axis=1)
        low, high = _near(upto, share)
        tried = np.unique(np.linspace(low, high, FINEST).round().astype(np.int64))
        ranks = np.ceil(share * (self.weights @ upto[:, -1]) - 1e-6)
        reached = self.weights @ upto[:, tried]
        first = (reached < ranks[:, None]).sum(axis=1)
        found = tried[np.minimum(first, len(tried) - 1)]
        return np.asarray(values.values_s[found], np.float64)


def _near(upto: Floats, share: float) -> tuple[int, int]:
    """The cells between which the quantiles of draws will lie."""
    whole = upto.sum(axis=0)
    n = whole[-1]
    cell = int(np.searchsorted(whole, share * n))
    spread = upto[:, cell] - share * upto[:, -1]
    off = NEAR * float(np.sqrt((spread**2).sum())) + 2
    low, high = np.searchsorted(whole, [share * n - off, share * n + off])
    return max(int(low) - 1, 0), min(int(high) + 1, len(whole) - 1)
