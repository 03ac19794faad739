"""Measures how often a tune's search finds the best setting, and what it costs.

Engines are simulated: a response surface, noise, drift of the machine, and a random
effect of each start. The search is the real one, on random scores.

Promised: in 95% of tunes the best is the true best or not told apart from it, and in at
most 5% a setting as good or better is told apart from it, even if half of the settings
are four or ten times as noisy as the others, or all are by any factor up to that. The
aim is a third of the time of an exhaustive grid with as many repeats: it is met against
a grid that starts an engine for each trial, and from 20 points on against one that
starts each point once. With 5 points each is measured, the present one repeatedly, the
best three times: half of a grid's trials, however clear the result.

    benchmarks/tune_search.py [SIMULATIONS] [PART OF A NAME ...]
"""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.search.race import (
    EngineLife,
    SearchRules,
    life_for,
    next_trial,
)
from inferwatch.studies.tune.search.standings import standings
from inferwatch.studies.tune.space import Point, Space, Variable
from inferwatch.studies.tune.trial import Trial, TrialNumbers, TrialOutcome, TrialRecord

MOST_TRIALS = 2_000
"""Largest number of trials of a tune; with more the search does not end."""
FAR = 0.2
"""Relative difference from which points should be told apart."""
SEQS, TOKENS, DTYPE = "max-num-seqs", "max-num-batched-tokens", "dtype"
Surface = Callable[[Sequence[float]], float]
"""Returns the true score of a point, given each variable's place from 0 to 1."""


def peak(at: Sequence[float]) -> float:
    """Highest near the middle, slightly beside a point."""
    return 100 * float(np.exp(-sum((2 * (x - 0.47)) ** 2 for x in at)))


def rising(at: Sequence[float]) -> float:
    """Higher for larger values."""
    return 40 + 60 * float(np.mean(at))


def plateau(at: Sequence[float]) -> float:
    """Rises for the first third, then stays constant."""
    return 100 * min(1.0, 0.4 + 1.8 * min(at))


def twins(at: Sequence[float]) -> float:
    """Two equally good points, far from each other."""
    away = min(abs(at[0] - 0.25), abs(at[0] - 0.75))
    return 100 * float(np.exp(-((3 * away) ** 2) - sum((x - 0.5) ** 2 for x in at[1:])))


def cliff(at: Sequence[float]) -> float:
    """Rises like a goodput, then drops to almost nothing."""
    x = float(np.mean(at))
    return 40 + 60 * x / 0.7 if x <= 0.7 else max(100 - 900 * (x - 0.7), 0.5)


def flat(at: Sequence[float]) -> float:
    """Constant: all settings are equally good."""
    return 100.0 + 0.0 * len(at)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A simulated engine and its machine."""

    surface: Surface
    sizes: tuple[int, ...] = (5,)
    """Number of values of max-num-seqs, max-num-batched-tokens and a restart flag."""
    noise: float = 0.05
    """Coefficient of variation of a trial."""
    drift: float = 0.10
    """Relative drift of the machine over the tune, up or down."""
    tails: bool = False
    """Whether noise has heavy tails: Student's t, and one trial in fifty loses a third.
    """
    uneven: float = 1.0
    """How many times as noisy half of the settings are as the others."""
    by_degrees: bool = False
    """Whether a setting's noise may be anything between the two extremes."""
    of_start: float = 0.0
    """Spread of the random effect of an engine start."""
    only_restarts: bool = False
    start_s: float = 60.0
    trial_s: float = 60.0

    def space(self, random: np.random.Generator) -> Space:
        """Return the space, with a random point as the present setting."""
        flags = (SEQS, TOKENS, DTYPE)
        if self.only_restarts:
            flags = ("block-size", "swap-space", DTYPE)
        variables = tuple(
            Variable(flag=flag, values=tuple(str(2 ** (n + 1)) for n in range(size)))
            for flag, size in zip(flags, self.sizes, strict=False)
        )
        first = Point(flags=tuple((each.flag, each.values[0]) for each in variables))
        points = Space(variables=variables, present=first).points
        present = points[int(random.integers(len(points)))]
        return Space(variables=variables, present=present)

    def truths(self, space: Space) -> dict[Point, float]:
        """Return the score of each point without noise or drift."""
        places = {
            (each.flag, value): at / max(len(each.values) - 1, 1)
            for each in space.variables
            for at, value in enumerate(each.values)
        }
        return {
            point: self.surface([places[flag] for flag in point.flags])
            for point in space.points
        }

    def noises(
        self, every: Iterable[Point], random: np.random.Generator
    ) -> dict[Point, float]:
        """Return the noise of each point's trials."""
        wild = float(np.sqrt(self.uneven))
        if self.by_degrees:
            return {p: self.noise * wild ** random.uniform(-1, 1) for p in every}
        both = self.noise / wild, self.noise * wild
        return {point: both[int(random.integers(2))] for point in every}


class Machine:
    """Simulates the scores of trials."""

    def __init__(self, world: World, truths: dict[Point, float], seed: int) -> None:
        self._random = np.random.default_rng([3, seed])
        self._world, self._truths = world, truths
        self._phase = self._random.uniform(0, 2 * np.pi)
        self._way = self._random.choice([-1.0, 1.0])
        self._length = max(1.6 * len(truths), 14)
        self._starts: dict[int, float] = {}
        self._noises = world.noises(truths, np.random.default_rng([7, seed]))

    def score(self, point: Point, number: int, life: int) -> float:
        world, random = self._world, self._random
        started = self._starts.setdefault(life, random.normal(0, world.of_start))
        along = number / self._length
        wave = np.sin(self._phase + 2 * np.pi * along) / 3
        drift = world.drift * (self._way * (2 * along - 1) * 2 / 3 + wave)
        own = self._noises[point]
        if world.tails:
            noise = random.standard_t(3) / np.sqrt(3) * own
            noise += np.log(2 / 3) * (random.random() < 1 / 50)
        else:
            noise = random.normal(0, own)
        return float(self._truths[point] * np.exp(noise + drift + started))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The result of one tune, compared with the truth."""

    right: bool
    """Whether its best is the true best, negligibly worse, or not told apart from it.
    """
    best: bool
    """Whether its best is the true best, or negligibly worse."""
    told_apart: list[bool]
    """For each point worse by FAR, whether it is told apart."""
    wrong: bool
    """Whether a point as good or better is told apart from its best."""
    covered: list[bool]
    """For each interval against the present, whether it covers the truth."""
    trials: int
    starts: int
    share: float
    """Trials / trials of the exhaustive grid."""
    time_share: float
    """Time / time of a grid that starts an engine once for each point."""
    per_trial_share: float
    """Time / time of a grid that starts an engine for each trial."""


def tune(world: World, seed: int) -> Ended:
    """Simulate one tune."""
    space = world.space(np.random.default_rng([5, seed]))
    truths = world.truths(space)
    machine = Machine(world, truths, seed)
    rules = SearchRules(
        goal=Goal.TOKENS, seed=seed, start_s=world.start_s, trial_s=world.trial_s
    )
    trials: list[Trial] = []
    life: EngineLife | None = None
    lives = 0
    while (next_one := next_trial(space, rules, trials, life)) is not None:
        if life is None or not life.reaches(next_one.point):
            lives += 1
            start = life_for(space, rules, trials, next_one.point)
            life = EngineLife(start=start, number=lives)
        number = len(trials) + 1
        if number > MOST_TRIALS:
            raise RuntimeError(f"no end: {next_one}")
        trials.append(_trial(next_one.point, number, lives, machine))
    return judged(world, space, rules, trials, lives)


def _trial(point: Point, number: int, life: int, machine: Machine) -> Trial:
    record = TrialRecord(
        number=number,
        point=point,
        repeat=0,
        outcome=TrialOutcome.MEASURED,
        life=life,
    )
    score = machine.score(point, number, life)
    return Trial(record=record, numbers=TrialNumbers(requests=100, tokens_per_s=score))


def judged(
    world: World,
    space: Space,
    rules: SearchRules,
    trials: Sequence[Trial],
    lives: int,
) -> Ended:
    """Compare the result of a tune with the truth."""
    truths = world.truths(space)
    ranking = standings(space, rules, trials)
    best = next(each for each in ranking if each.is_best)
    top = max(truths.values())
    mine = truths[best.point]
    near = mine >= top * (1 - rules.matters)
    alike = {each.point for each in ranking if each.like_best}
    right = near or any(truths[point] == top for point in alike)
    wrong = any(
        truths[each.point] >= mine and not each.is_best and not each.like_best
        for each in ranking
    )
    present = truths[space.present]
    covered = [
        each.against_present[0]
        <= truths[each.point] / present
        <= each.against_present[1]
        for each in ranking
        if each.against_present is not None and each.point != space.present
    ]
    grid = len(truths) * rules.repeats
    took_s = len(trials) * world.trial_s + lives * world.start_s
    return Ended(
        right=right,
        best=near,
        told_apart=[
            not each.is_best and not each.like_best
            for each in ranking
            if truths[each.point] < mine * (1 - FAR)
        ],
        wrong=wrong,
        covered=covered,
        trials=len(trials),
        starts=lives,
        share=len(trials) / grid,
        time_share=took_s / (grid * world.trial_s + len(truths) * world.start_s),
        per_trial_share=took_s / (grid * (world.trial_s + world.start_s)),
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of simulated engine, tuned many times."""

    name: str
    world: World
    found: list[Ended] = field(default_factory=list)

    def run(self, simulations: int) -> None:
        """Simulate the tunes, and print a summary."""
        began_s = time.monotonic()
        self.found.extend(tune(self.world, seed) for seed in range(simulations))
        took_ms = (time.monotonic() - began_s) / simulations * 1e3
        print(f"{self.name:<44}{summary(self.found)}  {took_ms:5.0f} ms", flush=True)


def summary(results: Sequence[Ended]) -> str:
    """Return the results in one line."""

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values))

    covered = [hit for each in results for hit in each.covered]
    hits = [hit for each in results for hit in each.told_apart] or [True]
    return (
        f"right {mean([e.right for e in results]):6.1%}  "
        f"true best {mean([e.best for e in results]):6.1%}  "
        f"wrong {mean([e.wrong for e in results]):5.1%}  "
        f"told {mean(hits):4.0%}  "
        f"covered {mean(covered):5.1%}  "
        f"trials {mean([e.trials for e in results]):5.1f} "
        f"({mean([e.share for e in results]):4.0%})  "
        f"starts {mean([e.starts for e in results]):4.1f}  "
        f"time {mean([e.time_share for e in results]):4.0%}, "
        f"{mean([e.per_trial_share for e in results]):4.0%}"
    )


SURFACES: tuple[Surface, ...] = (peak, rising, plateau, twins, cliff, flat)
SIZES = ((5,), (12,), (5, 4), (10, 6))


def cells() -> list[Cell]:
    return [*_surfaces(), *_machines(), *_uneven(), *_restarts()]


def _surfaces() -> list[Cell]:
    return [
        Cell(f"{surface.__name__} {points(sizes)}", World(surface=surface, sizes=sizes))
        for surface in SURFACES
        for sizes in SIZES
    ]


def _machines() -> list[Cell]:
    cells_of = []
    for surface, sizes in product((peak, plateau), ((5,), (5, 4))):
        world = World(surface=surface, sizes=sizes)
        name = f"{surface.__name__} {points(sizes)}"
        cells_of += [
            Cell(f"{name}, noise 2%", replace(world, noise=0.02)),
            Cell(f"{name}, noise 10%", replace(world, noise=0.10)),
            Cell(f"{name}, steady", replace(world, drift=0.0)),
            Cell(f"{name}, heavy tails", replace(world, tails=True)),
        ]
    return cells_of


def _uneven() -> list[Cell]:
    cells_of = []
    for surface, sizes in product((peak, plateau, flat), ((5,), (12,), (5, 4))):
        world = World(surface=surface, sizes=sizes)
        name = f"{surface.__name__} {points(sizes)}, uneven"
        cells_of += [
            Cell(f"{name} 4x", replace(world, uneven=4.0)),
            Cell(f"{name} 10x", replace(world, uneven=10.0)),
            Cell(f"{name} to 10x", replace(world, uneven=10.0, by_degrees=True)),
        ]
    return cells_of


def _restarts() -> list[Cell]:
    cells_of = []
    for surface, start_s in product((peak, plateau), (20.0, 300.0)):
        half = World(surface=surface, sizes=(4, 3, 3), of_start=0.02, start_s=start_s)
        alone = replace(half, sizes=(4, 3), only_restarts=True)
        cells_of += [
            Cell(f"{surface.__name__} 36 points, 3 lives, start {start_s:.0f} s", half),
            Cell(f"{surface.__name__} 12 points, 12 lives, {start_s:.0f} s", alone),
        ]
    return cells_of


def points(sizes: Sequence[int]) -> str:
    """Return the number of points, and of values by variable."""
    return f"{int(np.prod(sizes))} points" + (f" {sizes}" if len(sizes) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("simulations", nargs="?", type=int, default=300)
    parser.add_argument("cells", nargs="*", help="parts of names; all when none")
    options = parser.parse_args()
    for each in cells():
        if not options.cells or any(part in each.name for part in options.cells):
            each.run(options.simulations)


if __name__ == "__main__":
    main()
