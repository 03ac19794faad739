"""Adjusts p-values for many correlated metrics, so that false alarms stay rare.

A table of forty rows shows a few facts in many ways: if TTFT is high by chance, so are
its mean and its p90, at every vantage. Westfall and Young's step-down keeps the chance
of even one false alarm at 5%, and correlated rows cost little (Westfall and Young 1993,
Resampling-Based Multiple Testing, min-P). Correlations are taken from the same blocks
of time: what each block contributes to a row.

The rows people look at first get a larger share of the 5% (weighted min-P; Westfall,
Kropf and Finos 2004, Weighted FWE-controlling methods in high-dimensional situations).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from inferwatch.studies.compare.statistics.resampling import Floats

DRAWS = 12_000
CHUNK = 4_000
"""How many draws are made at a time."""
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class FamilyMember:
    """One row: its own p-value, its weight, and each block's contribution."""

    p_value: float
    weight: float
    parts: Floats | None
    """For every block of every session; None or constant means it is uncorrelated."""


def adjusted(members: Sequence[FamilyMember], seed: int) -> list[float]:
    """p-values adjusted so that any false alarm has at most probability alpha.

    Args:
        members: The rows; all have the same number of parts.
        seed: The seed of the draws.
    """
    if not members:
        return []
    weights = np.array([each.weight for each in members])
    weighted = np.array([each.p_value for each in members]) / weights
    order = np.argsort(weighted, kind="stable")
    beaten = np.zeros(len(members))
    for chances in _chances(members, seed):
        scores = (chances / weights)[:, order]
        # The minimum over a row and all rows after it: each step leaves out the rows
        # that were rejected before.
        least = np.minimum.accumulate(scores[:, ::-1], axis=1)[:, ::-1]
        beaten += (least <= weighted[order]).sum(axis=0)
    steps = np.maximum.accumulate(beaten / DRAWS)
    # Probabilities too small for the number of draws use Bonferroni's bound.
    bound = np.minimum(weighted[order] * weights.sum(), 1.0)
    steps = np.where(steps < 10 / DRAWS, np.maximum.accumulate(bound), steps)
    answer = np.empty(len(members))
    answer[order] = np.minimum(steps, 1.0)
    return [float(each) for each in answer]


def _chances(members: Sequence[FamilyMember], seed: int) -> "list[Floats]":
    """Draws of p-values under the null hypothesis, correlated like the rows."""
    random = np.random.default_rng((seed, len(members)))
    spreads, axes = np.linalg.eigh(_correlations(members))
    mixing = (axes * np.sqrt(np.maximum(spreads, 0.0))).T
    return [
        _tail_probabilities(random.standard_normal((CHUNK, len(members))) @ mixing)
        for _ in range(DRAWS // CHUNK)
    ]


def _correlations(members: Sequence[FamilyMember]) -> Floats:
    """Correlations between rows, shrunk to allow for the few blocks.

    Twenty blocks give unrelated rows a correlation of about 0.2 by chance, which would
    raise too many alarms. The third power reduces that to almost nothing but keeps
    correlations near 1, and the result is still a correlation matrix (Schur 1911).
    """
    most = max((len(e.parts) for e in members if e.parts is not None), default=1)
    parts = np.zeros((most, len(members)))
    for place, each in enumerate(members):
        if each.parts is not None and np.isfinite(each.parts).all():
            parts[:, place] = each.parts
    lengths = np.sqrt((parts**2).sum(axis=0))
    parts /= np.where(lengths > 0, lengths, 1.0)
    correlations = (parts.T @ parts) ** 3
    np.fill_diagonal(correlations, 1.0)
    return np.asarray(correlations, np.float64)


_STEP = 1 / 512
_FARTHEST = 7.0
_BEYOND = np.array(
    [2 * NORMAL.cdf(-at * _STEP) for at in range(int(_FARTHEST / _STEP) + 2)]
)


def _tail_probabilities(deviates: Floats) -> Floats:
    """Two-sided normal tail probabilities, from a fine table."""
    near = np.minimum(np.abs(deviates), _FARTHEST) / _STEP
    return np.asarray(_BEYOND[np.rint(near).astype(np.intp)], np.float64)
