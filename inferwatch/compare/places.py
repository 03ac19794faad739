"""Finds for whom, and when, the metrics of two sides changed the most.

Nothing is said of a part unless its change differs from that of the rest, at a level
that all parts looked at share (Bonferroni), and unless it explains most of the change:
who looks at a hundred corners finds something in five of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from collectors.clock import NS_PER_S
from inferwatch.compare.kind_groups import Groups, Part, groups_of
from inferwatch.compare.metrics import STEP, JudgedMetric
from inferwatch.compare.place import Cut, Place
from inferwatch.compare.request_kinds import KindCounts, middle_of_coarse
from inferwatch.compare.resampling import (
    PIECES,
    Draws,
    Floats,
    blocks_for,
    memories,
)
from inferwatch.compare.session_numbers import Side
from inferwatch.compare.split import (
    GroupChange,
    Judged,
    Measure,
    Split,
    across,
    standing_out,
)
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.formatting import format_change
from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.metrics.series.quantiles import Ints

DRAWS = 1000
"""Enough for one interval; fewer than for verdicts, as there are many parts."""
MOST = 2 / 3
"""Of the change: what explains less is not where it is."""
CHANGED = frozenset(MetricVerdict) - {MetricVerdict.SAME, MetricVerdict.OPEN}
KINDS = (Cut.PROMPT, Cut.CLASS, Cut.TURN)
TIMED = frozenset(
    ("itl_s", "client.itl_s", STEP, "output_tokens_per_s", "client.output_tokens_per_s")
)
"""Of these it is only asked when, as a token has no prompt of its own."""
PRESENT = 0.6
"""Of the blocks must hold some of a part, or it is rather a time than a kind."""


class PlaceFinder:
    """Looks at one pair of sides; draws are made once."""

    def __init__(self, a: Side, b: Side, seed: int, *, paired: bool) -> None:
        self._a, self._b = a.runs, b.runs
        self._seed, self._paired = seed, paired
        self._draws: dict[tuple[int, int], Draws] = {}
        self._tables: dict[str, _Table | None] = {}

    def places(self, metrics: Sequence[JudgedMetric]) -> Iterator[Place]:
        """One at most of each metric."""
        for metric in metrics:
            found = self._for_whom(metric)
            if found is not None:
                yield replace(found, sentence=sentence(found))

    def _for_whom(self, metric: JudgedMetric) -> Place | None:
        table = self._table(metric.of)
        if table is None or not table.groups:
            return None
        looked = sum(len(each.parts) for each in table.groups)
        tried = [self._best(metric, table, groups) for groups in table.groups]
        found = [each for each in tried if each is not None]
        found.sort(key=lambda each: each[0], reverse=True)
        for _, groups, part, split in found:
            judged = self._judge(split, table)
            beyond = abs(judged.change) > metric.negligible
            if beyond and judged.is_apart(ALPHA / looked):
                return place_of(metric, groups.cut, part.name, judged)
        return None

    def _best(
        self, metric: JudgedMetric, table: "_Table", groups: Groups
    ) -> tuple[float, Groups, Part, Split] | None:
        """The part of a cut that stands out most, of those that explain it."""
        changes = table.changes(metric, groups)
        found = []
        for part in groups.parts:
            split = table.split(metric, groups, part)
            if split is not None and split.explained >= MOST:
                score = standing_out(changes, part.groups)
                found.append((score, groups, part, split))
        return max(found, key=lambda each: each[0], default=None)

    def _judge(self, split: Split, table: "_Table") -> Judged:
        blocks = len(split.part_a), len(split.part_b)
        draws_a = self._drawn(0, blocks[0])
        draws_b = self._drawn(0 if self._paired else 1, blocks[1])
        return across(split, (draws_a, draws_b), table.long, paired=self._paired)

    def _drawn(self, side: int, blocks: int) -> Draws:
        key = side, blocks
        if key not in self._draws:
            self._draws[key] = Draws.make(blocks, (self._seed, *key), DRAWS)
        return self._draws[key]

    def _table(self, of: str) -> "_Table | None":
        if of not in self._tables:
            runs = (*self._a, *self._b)
            known = all(of in run.kinds and of in run.counted for run in runs)
            self._tables[of] = None
            if known:
                long = self._memories(of)
                self._tables[of] = _Table(
                    [run.kinds[of] for run in self._a],
                    [run.kinds[of] for run in self._b],
                    long,
                )
        return self._tables[of]

    def _memories(self, of: str) -> float:
        """How many memories it is long; of pairs, that of their ratio."""
        means = [[run.counted[of].means for run in runs] for runs in (self._a, self._b)]
        if not self._paired:
            return min(memories(each) for side in means for each in side)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(means[1][0] / means[0][0])
        return memories(np.where(np.isfinite(ratios), ratios, np.nan))


class _Table:
    """One latency of both sides: by group, block of time, and size."""

    def __init__(
        self, a: Sequence[KindCounts], b: Sequence[KindCounts], long: float
    ) -> None:
        self._a, self._b, self.long = a, b, long
        self._cells = np.unique(np.concatenate([run.cells for run in (*a, *b)]))
        self._counts: dict[Cut, tuple[Floats, Floats]] = {}

    @cached_property
    def groups(self) -> list[Groups]:
        """By every cut that tells requests apart."""
        found = (groups_of(cut, self._a, self._b) for cut in KINDS)
        return [each for each in found if each is not None]

    def split(self, metric: JudgedMetric, groups: Groups, part: Part) -> Split | None:
        """By the metric's own statistic, or by what so few values can tell."""
        a, b = self._counted(groups)
        inside = np.isin(np.arange(groups.count), part.groups)
        own = self._measure(metric)
        split = Split(
            a[inside].sum(axis=0),
            a[~inside].sum(axis=0),
            b[inside].sum(axis=0),
            b[~inside].sum(axis=0),
            own,
        )
        measure = own.fit_for(min(split.counts))
        if measure is None or not self._is_everywhere(split):
            return None
        return split if measure is own else split.with_measure(measure)

    def changes(self, metric: JudgedMetric, groups: Groups) -> list[GroupChange]:
        """Of each group, all by the same statistic."""
        a, b = self._counted(groups)
        fewest = min(float(side.sum(axis=(1, 2)).min()) for side in (a, b))
        own = self._measure(metric)
        measure = own.fit_for(fewest) or replace(own, share=None)
        return [GroupChange.of(*sides, measure) for sides in zip(a, b, strict=True)]

    def _measure(self, metric: JudgedMetric) -> Measure:
        values_s = middle_of_coarse(self._cells) / NS_PER_S
        return Measure(values_s, np.ones(len(values_s)), metric.share)

    def _is_everywhere(self, split: Split) -> bool:
        rows = split.part_a, split.part_b, split.rest_a, split.rest_b
        return all((each.sum(axis=1) > 0).mean() >= PRESENT for each in rows)

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
        blocks, cells = blocks_for(self.long), len(self._cells)
        parts = []
        for run, group_of in runs:
            group = group_of[run.labels[groups.cut]]
            block = run.pieces * blocks // PIECES
            cell = np.searchsorted(self._cells, run.cells)
            known = group >= 0
            at = ((group * blocks + block) * cells + cell)[known]
            shape = groups.count, blocks, cells
            counts = np.bincount(at, run.counts[known], minlength=int(np.prod(shape)))
            parts.append(counts.reshape(shape))
        return np.concatenate(parts, axis=1)


def place_of(metric: JudgedMetric, cut: Cut, part: str, judged: Judged) -> Place:
    """What was found, not yet in words."""
    n_a, n_b, *_ = judged.split.counts
    return Place(
        metric=metric,
        cut=cut,
        part=part,
        a=judged.part.a,
        b=judged.part.b,
        n_a=round(n_a),
        n_b=round(n_b),
        ratio=judged.part.ratio or 0.0,
        ratio_span=judged.part_span,
        rest_ratio=judged.rest.ratio,
        statistic=judged.split.measure.other,
        is_all=judged.is_all(metric.negligible),
    )


WHERE = {Cut.PROMPT: "in prompts ", Cut.CLASS: "in class ", Cut.TURN: "in "}


def sentence(place: Place) -> str:
    """``all of it in prompts over 1k (+340%, elsewhere +2%), from 00:40``."""
    many = "all of it" if place.is_all else "mostly"
    where = f"{WHERE.get(place.cut, '')}{place.part}"
    return f"{many} {where} ({_figures(place)})"


def _figures(place: Place) -> str:
    its = f"{place.statistic} " if place.statistic else ""
    here, elsewhere = map(format_change, (place.ratio, place.rest_ratio))
    return f"{its}{here}, elsewhere {elsewhere}"


def find_places(
    a: Side, b: Side, metrics: Sequence[JudgedMetric], seed: int
) -> tuple[Place, ...]:
    """Of these metrics, which changed.

    Args:
        a: The one side.
        b: The other.
        metrics: In the order of the report.
        seed: Of the draws.
    """
    pairing = a.first.pairing
    alone = not a.is_repeated and not b.is_repeated
    paired = alone and pairing is not None and pairing == b.first.pairing
    return tuple(PlaceFinder(a, b, seed, paired=paired).places(metrics))
