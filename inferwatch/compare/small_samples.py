"""How much wider an interval from few blocks must be than one from many: Student's t.

Its distribution is a finite sum for whole degrees of freedom (Abramowitz and Stegun,
Handbook of Mathematical Functions, 26.7.3 and 26.7.4); others are rounded down, which
errs to the wide side. It is all that we would have scipy for.
"""

import math
from functools import lru_cache

FARTHEST = 1e6
HALVINGS = 60


def beyond_t(t: float, freedom: float) -> float:
    """How often chance goes as far as t, on either side."""
    whole = max(int(freedom), 1)
    if math.isinf(t):
        return 0.0
    angle = math.atan(abs(t) / math.sqrt(whole))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = sine * (cosine if whole % 2 else 1.0)
    within = 0.0 if whole == 1 else term
    for k in range(3 if whole % 2 else 2, whole - 1, 2):
        term *= (k - 1) / k * cosine**2
        within += term
    if whole % 2:
        within = 2 / math.pi * (angle + within)
    return max(1 - within, 0.0)


@lru_cache(maxsize=4096)
def t_beyond(share: float, freedom: float) -> float:
    """The t that chance goes beyond so often, on either side."""
    low, high = 0.0, FARTHEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if beyond_t(middle, freedom) > share:
            low = middle
        else:
            high = middle
    return high


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
