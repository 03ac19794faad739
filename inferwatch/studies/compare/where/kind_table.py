"""One latency of two sides, by group of requests, block of time, and size."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.metrics import JudgedMetric
from inferwatch.studies.compare.reading.place import Cut
from inferwatch.studies.compare.reading.request_kinds import (
    KindCounts,
    middle_of_coarse,
)
from inferwatch.studies.compare.statistics.resampling import Floats
from inferwatch.studies.compare.where.kind_groups import Groups, Part, groups_of
from inferwatch.studies.compare.where.measure import Measure, explained
from inferwatch.studies.compare.where.split import GroupChange, Split

KINDS = (Cut.PROMPT, Cut.CLASS, Cut.TURN)
PRESENT = 0.6
"""Of the blocks must hold some of a part, or it is rather a time than a kind."""


class KindTable:
    """One latency of both sides: by group, block of time, and size."""

    def __init__(
        self, runs: Sequence[KindCounts], first: int, blocks: int, long: float
    ) -> None:
        """The first so many runs are the one side; pieces are blocks already."""
        self._a, self._b = runs[:first], runs[first:]
        self._blocks, self.long = blocks, long
        self._cells = np.unique(np.concatenate([run.cells for run in runs]))
        self._cell_of = {
            id(run): np.searchsorted(self._cells, run.cells) for run in runs
        }
        self._counts: dict[Cut, tuple[Floats, Floats]] = {}
        self._summed: dict[Cut, tuple[Floats, Floats]] = {}

    @cached_property
    def groups(self) -> list[Groups]:
        """By every cut that tells requests apart."""
        found = (groups_of(cut, self._a, self._b) for cut in KINDS)
        return [each for each in found if each is not None]

    def explaining(
        self, metric: JudgedMetric, groups: Groups, most: float
    ) -> list[tuple[Part, float]]:
        """The parts that explain so much, and how much."""
        a, b = self._sums(groups)
        parts = np.zeros((len(groups.parts), groups.count))
        for place, part in enumerate(groups.parts):
            parts[place, list(part.groups)] = 1.0
        shares = explained(
            self._measure(metric),
            (parts @ a, parts @ b),
            (a.sum(axis=0)[None], b.sum(axis=0)[None]),
        )
        return [
            (groups.parts[place], float(shares[place]))
            for place in np.flatnonzero(shares >= most)
        ]

    def split(
        self, metric: JudgedMetric, groups: Groups, part: Part, share: float
    ) -> Split | None:
        """By the metric's own statistic, or by what so few values can tell."""
        sides = self._counted(groups)
        inside = np.isin(np.arange(groups.count), part.groups)
        part_a, rest_a, part_b, rest_b = rows = [
            side[these].sum(axis=0) for side in sides for these in (inside, ~inside)
        ]
        n = [each.sum(axis=1) for each in rows]
        measure = self._measure(metric).fit_for(min(float(each.sum()) for each in n))
        there = min(float((each > 0).mean()) for each in n)
        if measure is None or there < PRESENT:
            return None
        return Split(part_a, rest_a, part_b, rest_b, measure, share)

    def changes(
        self, metric: JudgedMetric, groups: Groups, *, paired: bool
    ) -> list[GroupChange]:
        """Of each group, all by the same statistic."""
        a, b = self._counted(groups)
        sums = self._sums(groups)
        fewest = min(float(side.sum(axis=1).min()) for side in sums)
        own = self._measure(metric)
        measure = own.fit_for(fewest) or replace(own, share=None)
        return [
            GroupChange.of(*sides, measure, paired=paired)
            for sides in zip(a, b, strict=True)
        ]

    def _measure(self, metric: JudgedMetric) -> Measure:
        values_s = middle_of_coarse(self._cells) / NS_PER_S
        return Measure(values_s, np.ones(len(values_s)), metric.share)

    def _sums(self, groups: Groups) -> tuple[Floats, Floats]:
        """Of each group, whenever it was."""
        if groups.cut not in self._summed:
            a, b = self._counted(groups)
            self._summed[groups.cut] = a.sum(axis=1), b.sum(axis=1)
        return self._summed[groups.cut]

    def _counted(self, groups: Groups) -> tuple[Floats, Floats]:
        if groups.cut not in self._counts:
            runs = list(zip((*self._a, *self._b), groups.group_of, strict=True))
            many = len(self._a)
            self._counts[groups.cut] = (
                self._laid_out(runs[:many], groups),
                self._laid_out(runs[many:], groups),
            )
        return self._counts[groups.cut]

    def _laid_out(
        self, runs: Sequence[tuple[KindCounts, Ints]], groups: Groups
    ) -> Floats:
        """Runs stand one behind the other in time."""
        blocks, cells = self._blocks, len(self._cells)
        parts = []
        for run, group_of in runs:
            group = group_of[run.labels[groups.cut]]
            cell = self._cell_of[id(run)]
            known = group >= 0
            at = ((group * blocks + run.pieces) * cells + cell)[known]
            shape = groups.count, blocks, cells
            counts = np.bincount(at, run.counts[known], minlength=math.prod(shape))
            parts.append(counts.reshape(shape))
        return np.concatenate(parts, axis=1)
