"""How latencies are distributed: counts in cells a hundredth of their value wide."""

import math

import numpy as np

from inferwatch.metrics.engine.latencies import VANTAGES, LatencySamples
from inferwatch.metrics.series.history import History

PER_OCTAVE = 64
"""Cells between a value and its double."""
CELLS = 64 * PER_OCTAVE
NS_PER_S = 1e9

Points = list[tuple[float, float]]
"""A latency in seconds, and the share of values that are no longer."""


class Distribution:
    """Values in ns, in fixed memory."""

    def __init__(self) -> None:
        self._cells = np.zeros(CELLS, np.int64)

    def add(self, value_ns: int, weight: int = 1) -> None:
        """So many equal values."""
        cell = int(math.log2(max(value_ns, 1)) * PER_OCTAVE)
        self._cells[cell] += weight

    @property
    def n(self) -> int:
        """How many there are."""
        return int(self._cells.sum())

    def points(self) -> Points:
        """The upper edge of each cell that holds something, and the share below it."""
        held = np.flatnonzero(self._cells)
        if not held.size:
            return []
        upto = np.cumsum(self._cells[held]) / self._cells.sum()
        edges = np.exp2((held + 1) / PER_OCTAVE) / NS_PER_S
        start = float(np.exp2(held[0] / PER_OCTAVE) / NS_PER_S)
        return [(start, 0.0), *zip(edges.tolist(), upto.tolist(), strict=True)]


class Distributions(LatencySamples):
    """The samples of the latency table, as distributions instead of a table."""

    def __init__(self) -> None:
        super().__init__(History())
        self.of = {metric: Distribution() for metric in VANTAGES}

    def add(self, metric: str, t_ns: int, value_ns: int, weight: int = 1) -> None:  # noqa: ARG002  when it was does not matter here
        """``weight`` equal samples."""
        self.of[metric].add(value_ns, weight)
