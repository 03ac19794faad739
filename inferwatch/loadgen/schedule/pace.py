"""When each arrival is due, at a rate that may be changed on the way.

An arrival has a number, the integral of the rate up to it. What has passed by a change
keeps its time; what was due later is due so much sooner or later as the new rate says.
So there is neither a burst nor a hole at a change, and equal changes at equal moments
make equal times.
"""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.clock import NS_PER_S
from inferwatch.loadgen.plan.rates import Floats, RateSeries, flat


class _Piece(NamedTuple):
    """From one change to the next."""

    since_s: float
    passed: float
    """Arrivals of before."""
    rates: RateSeries

    def passed_by(self, at_s: float) -> float:
        return self.passed + self.rates.passed(at_s - self.since_s)

    def moments(self, arrivals: Floats) -> Floats:
        ahead = self.rates.moments(np.maximum(arrivals - self.passed, 0))
        return np.asarray(self.since_s + ahead, np.float64)


class Pace:
    """A rate by time, with what was changed of it since."""

    def __init__(self, rates: RateSeries) -> None:
        self._pieces = [_Piece(0.0, 0.0, rates)]

    def rate_at(self, at_s: float) -> float:
        """Requests per second, at a moment after the last change."""
        last = self._pieces[-1]
        return last.rates.rate_at(max(at_s - last.since_s, 0.0))

    def change(self, at_s: float, rate_per_s: float) -> None:
        """From this moment on this rate, whatever was to come."""
        last = self._pieces[-1]
        at_s = max(at_s, last.since_s)
        self._pieces.append(_Piece(at_s, last.passed_by(at_s), flat(rate_per_s)))

    def due_ns(self, arrivals: Floats) -> NDArray[np.int64]:
        """When arrivals (ascending) are due; those that never are end it."""
        moments = [np.empty(0)]
        for piece, mine in self._shares(arrivals):
            moments.append(piece.moments(mine))
        return np.rint(np.concatenate(moments) * NS_PER_S).astype(np.int64)

    def _shares(self, arrivals: Floats) -> list[tuple[_Piece, Floats]]:
        """Which of them fall into which piece; of pieces without any, none."""
        if not len(arrivals):
            return []
        starts = [piece.passed for piece in self._pieces]
        first = max(bisect_left(starts, arrivals[0]) - 1, 0)
        pieces = self._pieces[first:]
        cuts = np.searchsorted(arrivals, starts[first + 1 :], side="right")
        return list(zip(pieces, np.split(arrivals, cuts), strict=True))
