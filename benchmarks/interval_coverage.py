"""Checks whether 95% intervals of a load run cover the truth, on simulated series.

    python benchmarks/interval_coverage.py [TRIALS]

The series are first-order autoregressions with coefficient ``rho``: normal ones, and
lognormal ones, as latencies are. A cell shows the share of printed intervals that cover
the truth, and in how many of the trials one was printed; percentiles of few values are
bounded on one side only. The last lines name the lowest cell, and the exit status is 1
if it is below 93%. A cell with intervals in under 2% of the trials is left out: of
those the misses are counted, relative to all trials.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from inferwatch.metrics.series.intervals import Interval, intervals
from inferwatch.metrics.series.quantiles import PERCENTS

Floats = npt.NDArray[np.float64]

LENGTHS = (30, 50, 100, 200, 500, 1_000, 2_000)
RHOS = (0.0, 0.5, 0.8, 0.95, 0.99)
PROMISED = (0.0, 0.5, 0.8, 0.95)
"""The values of rho that must pass; 0.99, whose memory is 199 values, need not."""
SPREAD = 0.5
"""Standard deviation of the logarithms of lognormal values."""
LEAST = 0.93
RARE = 0.02
STATISTICS = ("mean", *PERCENTS)


@dataclass(slots=True)
class Cell:
    """Counts the intervals of one statistic, for one length and one rho."""

    trials: int = 0
    printed: int = 0
    covered: int = 0

    def count(self, interval: Interval, truth: float) -> None:
        """Count an interval of one trial."""
        lower, upper = interval
        self.trials += 1
        if lower is None and upper is None:
            return
        self.printed += 1
        above = lower is None or lower <= truth
        self.covered += above and (upper is None or truth <= upper)

    @property
    def coverage(self) -> float:
        """The share of printed intervals that cover the truth."""
        return self.covered / self.printed if self.printed else math.nan

    @property
    def printed_share(self) -> float:
        """The share of trials in which an interval was printed."""
        return self.printed / self.trials

    @property
    def missed(self) -> float:
        """The share of trials whose printed interval does not cover the truth."""
        return (self.printed - self.covered) / self.trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The parameters of the simulated series."""

    n: int
    rho: float
    lognormal: bool
    trials: int
    seed: int = 0

    def draw(self) -> Iterator[Floats]:
        """Yield the series, each stationary from the first value on."""
        random = np.random.default_rng([self.seed, self.n, round(100 * self.rho)])
        values = random.standard_normal((self.trials, self.n))
        values[:, 1:] *= math.sqrt(1 - self.rho**2)
        for place in range(1, self.n):
            values[:, place] += self.rho * values[:, place - 1]
        yield from np.exp(SPREAD * values) if self.lognormal else values

    def truths(self) -> Mapping[str, float]:
        """Return the true statistics of the distribution."""
        normal = NormalDist(sigma=SPREAD if self.lognormal else 1.0)
        percentiles = {name: normal.inv_cdf(p / 100) for name, p in PERCENTS.items()}
        if not self.lognormal:
            return {"mean": 0.0, **percentiles}
        percentiles = {name: math.exp(value) for name, value in percentiles.items()}
        return {"mean": math.exp(SPREAD**2 / 2), **percentiles}


@dataclass(slots=True)
class Coverage:
    """The cells of one case, by statistic."""

    case: Case
    cells: dict[str, Cell] = field(
        default_factory=lambda: {name: Cell() for name in STATISTICS}
    )


def covered(case: Case) -> Coverage:
    """Simulate all trials of a case, and count the intervals."""
    coverage, truths = Coverage(case), case.truths()
    for values in case.draw():
        printed = intervals(values)
        for name, cell in coverage.cells.items():
            cell.count(printed[name], truths[name])
    return coverage


def main(trials: int) -> int:
    """Print the tables; return the exit status."""
    with ProcessPoolExecutor() as pool:
        kinds = {"normal": False, "lognormal": True}
        make = partial(Case, trials=trials)
        cases = [
            make(n=n, rho=rho, lognormal=kind)
            for kind, n, rho in product(kinds.values(), LENGTHS, RHOS)
        ]
        coverages = list(pool.map(covered, cases))
    print(f"{trials} trials a cell: covered / printed, in percent")
    for (kind, lognormal), name in product(kinds.items(), STATISTICS):
        print(f"\n{name}, {kind}\n{'n':>6}" + "".join(f"{r:>15}" for r in RHOS))
        for n in LENGTHS:
            row = [
                each.cells[name]
                for each in coverages
                if each.case.n == n and each.case.lognormal is lognormal
            ]
            cells = (
                f"{100 * c.coverage:7.1f} / {100 * c.printed_share:5.1f}" for c in row
            )
            print(f"{n:>6}" + "".join(cells))
    promised = [
        (each, name, cell)
        for each in coverages
        for name, cell in each.cells.items()
        if each.case.rho in PROMISED
    ]
    each, name, low = min(
        (entry for entry in promised if entry[2].printed_share >= RARE),
        key=lambda entry: entry[2].coverage,
    )
    rare = max(cell.missed for _, _, cell in promised if cell.printed_share < RARE)
    print(
        f"\nlowest up to rho {PROMISED[-1]}: {low.coverage:.1%}, {name} at "
        f"n = {each.case.n}, rho = {each.case.rho}"
        f"\nwhere under {RARE:.0%} is printed: at most {rare:.2%} of all trials miss"
    )
    return 0 if low.coverage >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000))
