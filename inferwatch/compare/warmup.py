"""Where a session settles: what comes before is the warm-up.

MSER-5: means of five observations, and the cut that makes the standard error of the
mean of the rest the smallest (White 1997, An effective truncation heuristic for bias
reduction in simulation output; White, Cobb and Spratt 2000, A comparison of five
steady-state truncation heuristics for simulation). The observations are ranked first,
so that one burst does not decide; a best cut near the middle means that no part is
steady.
"""

from collections.abc import Iterable

import numpy as np

from inferwatch.compare.latencies import Timed
from inferwatch.compare.rhythm import Floats

BATCH = 5
FEWEST = 10 * BATCH
LATEST = 0.5
"""Of the batches: a cut beyond is no warm-up."""
AT_THE_END = 0.4
"""From here on the cut runs into the limit: still changing."""


def settled_ns(series: Iterable[Timed], start_ns: int) -> int | None:
    """The moment from which on every series is steady; None when one never is."""
    settled = start_ns
    for each in series:
        order = np.argsort(each.at_ns, kind="stable")
        at_ns = each.at_ns[order]
        if len(at_ns) < FEWEST:
            continue
        batches = mser5(each.values_ns[order].astype(np.float64))
        if batches is None:
            return None
        if batches:
            settled = max(settled, int(at_ns[batches * BATCH - 1]))
    return settled


def mser5(values: Floats) -> int | None:
    """How many batches of five to cut; None when the best cut is none."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    count = len(values) // BATCH
    means = ranks[: count * BATCH].reshape(count, BATCH).mean(axis=1)
    most = int(count * LATEST)
    left = np.arange(count, count - most, -1)
    sums = means.sum() - np.concatenate(([0.0], np.cumsum(means)[: most - 1]))
    squares = (means**2).sum()
    squares = squares - np.concatenate(([0.0], np.cumsum(means**2)[: most - 1]))
    errors = (squares - sums**2 / left) / left**2
    cut = int(np.argmin(errors))
    return None if cut >= AT_THE_END * count else cut
