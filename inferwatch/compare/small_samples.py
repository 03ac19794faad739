"""How much wider an interval from few blocks must be than one from many.

Student's t by its normal deviate: z = t (1 - 1/4v) / sqrt(1 + t^2/2v), off by less than
a thousandth from ten degrees of freedom on (Abramowitz and Stegun, Handbook of
Mathematical Functions, 26.7.8); it can be solved for t, so both ways are one line.
"""

import math
from statistics import NormalDist

NORMAL = NormalDist()


def t_of_normal(z: float, freedom: float) -> float:
    """The t that is as unusual as z is in a normal."""
    squared = (1 - 1 / (4 * freedom)) ** 2 - z * z / (2 * freedom)
    return z / math.sqrt(squared) if squared > 0 else math.copysign(math.inf, z)


def normal_of_t(t: float, freedom: float) -> float:
    """The normal deviate that is as unusual as t."""
    if math.isinf(t):
        return t
    return t * (1 - 1 / (4 * freedom)) / math.sqrt(1 + t * t / (2 * freedom))


def freedom_of(variances: tuple[float, float], blocks: tuple[int, int]) -> float:
    """Welch's degrees of freedom of a difference (Welch 1947)."""
    parts = [v / (b - 1) * v for v, b in zip(variances, blocks, strict=True)]
    together = sum(variances)
    return together * together / sum(parts) if sum(parts) > 0 else sum(blocks) - 2.0


def widening(variances: tuple[float, float], blocks: tuple[int, int]) -> float:
    """Resampling b blocks makes 1 - 1/b of the variance: what makes up for it."""
    together = sum(variances)
    if together <= 0:
        return 1.0
    whole = sum(v * b / (b - 1) for v, b in zip(variances, blocks, strict=True))
    return math.sqrt(whole / together)
