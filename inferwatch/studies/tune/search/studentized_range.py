"""The studentized range: how far apart the largest and smallest of equal means fall.

The studentized range of k means is the largest minus the smallest, in standard errors
of one mean that are estimated with some degrees of freedom (Tukey 1953). Given the
standard error, equals span less than w with probability k ∫ φ(z) (Φ(z + w) -
Φ(z))^(k-1) dz, z being the smallest; that is averaged over the distribution of the
standard error, the root of chi-squared divided by its degrees of freedom. Both
integrals are sums over grids, accurate to three digits of the published tables.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STEP = 0.05
"""Grid step of both z and w, so that Φ is needed only at one grid's points."""
WIDEST = 16.0
"""The grid of z is -8 to 8; a wider range of normal numbers does not occur."""
_WIDTHS = np.arange(0.0, WIDEST, STEP)
_PLACES = -WIDEST / 2 + np.arange(2 * len(_WIDTHS)) * STEP
_BELOW = np.array([math.erfc(-z / math.sqrt(2)) / 2 for z in _PLACES])
_DENSITY = np.exp(-(_PLACES**2) / 2) / math.sqrt(2 * math.pi)
_LOG_ERRORS = np.linspace(-9.0, 2.0, 400)
FARTHEST = 1e4
HALVINGS = 50


@lru_cache(maxsize=4096)
def range_beyond(share: float, groups: int, freedom: float) -> float:
    """The critical value of the studentized range for two or more groups."""
    within, weights = _within(groups), _weights(freedom)
    errors = np.exp(_LOG_ERRORS)
    low, high = 0.0, FARTHEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        inside = weights @ np.interp(middle * errors, _WIDTHS, within, right=1.0)
        if 1 - inside > share:
            low = middle
        else:
            high = middle
    return high


@lru_cache(maxsize=16)
def _within(groups: int) -> Floats:
    """The probability that this many normal numbers span less than each width."""
    count = len(_WIDTHS)
    smallest, density = _BELOW[:count], _DENSITY[:count]
    spans = (
        density @ (_BELOW[at : at + count] - smallest) ** (groups - 1)
        for at in range(count)
    )
    return groups * STEP * np.array(list(spans))


@lru_cache(maxsize=256)
def _weights(freedom: float) -> Floats:
    """Weights of standard errors relative to the true one, on a logarithmic grid."""
    logs = freedom * (_LOG_ERRORS - np.exp(2 * _LOG_ERRORS) / 2)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum(), np.float64)
