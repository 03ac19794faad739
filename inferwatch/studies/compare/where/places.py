"""Finds for which requests, and when, the metrics of two sides changed most.

A part is reported only if its change differs from that of the rest, at a level that all
examined parts share (Bonferroni), and if it explains most of the change: of a hundred
parts, five would stand out by chance.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import format_change, format_clock
from inferwatch.metrics.series.intervals import ALPHA
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.metrics import JudgedMetric
from inferwatch.studies.compare.reading.between_runs import may_be_why
from inferwatch.studies.compare.reading.pairing import Truths
from inferwatch.studies.compare.reading.request_kinds import (
    ChangedPart,
    Cut,
    KindCounts,
    middle_of_coarse,
)
from inferwatch.studies.compare.reading.session_numbers import (
    ComparedSide,
    SessionNumbers,
)
from inferwatch.studies.compare.reading.span import ComparedSpan
from inferwatch.studies.compare.statistics.resampling import (
    BINS,
    CHOICES,
    MEMORIES_A_BLOCK,
    PIECES,
    Draws,
    Floats,
    blocks_for,
    memories,
)
from inferwatch.studies.compare.verdicts import MetricVerdict
from inferwatch.studies.compare.where.kind_groups import Groups, KindPart, groups_of
from inferwatch.studies.compare.where.measure import Measure, explained
from inferwatch.studies.compare.where.onset import LEAST_BLOCKS, leanings, onset
from inferwatch.studies.compare.where.split import (
    GroupChange,
    Judged,
    Split,
    across,
    in_turn,
    standing_out,
)

# All runs of two sides on one clock: seconds since the load began.
#
# Spans may differ, as a run that settled later is compared from later on. A
# statement about a time must hold for all runs, so only their shared time is used.

LEAST_SHARED = 0.5
"""Least shared time, as a share of the longest span."""


@dataclass(frozen=True, slots=True)
class CommonTime:
    """The seconds since load start that all runs' compared spans share."""

    from_s: float
    to_s: float

    @classmethod
    def of(cls, runs: Sequence[SessionNumbers]) -> "CommonTime | None":
        """The time that all runs cover; None if it is too short."""
        spans = [run.span for run in runs]
        common = cls(max(s.from_s for s in spans), min(s.to_s for s in spans))
        longest = max(s.length_s for s in spans)
        return common if common.to_s - common.from_s >= LEAST_SHARED * longest else None

    def name_of(self, inside: Truths) -> str:
        """The time ``inside`` as text, such as ``between 00:20 and 00:40``."""
        turns = np.flatnonzero(np.diff(inside.astype(int))) + 1
        moments = [self._clock(int(piece)) for piece in turns]
        if len(moments) == 1:
            return f"{'until' if inside[0] else 'from'} {moments[0]}"
        begin, end = moments
        if inside[0]:
            return f"before {begin} and after {end}"
        return f"between {begin} and {end}"

    def _clock(self, piece: int) -> str:
        """The time of a piece as text, with hours only if there are any."""
        at_s = self.from_s + (self.to_s - self.from_s) * piece / PIECES
        return format_clock(round(at_s) * NS_PER_S).strip().removeprefix("00:")

    def blocks_in(self, span: ComparedSpan, inside: Truths, blocks: int) -> Ints:
        """The block in which each of a run's pieces lies; -1 for none."""
        rank = np.cumsum(inside) - 1
        block = np.where(inside, rank * blocks // int(inside.sum()), -1)
        places = np.array(self._places(span, PIECES))
        return np.where(places >= 0, block[places], -1)

    def _places(self, span: ComparedSpan, parts: int) -> "list[int]":
        """The part of the common time in which each part of a run lies; -1 for none."""
        middles = span.from_s + span.length_s * (np.arange(parts) + 0.5) / parts
        share = (middles - self.from_s) / (self.to_s - self.from_s)
        place = np.floor(share * parts).astype(int)
        return [int(p) if 0 <= p < parts else -1 for p in place]

    def means(self, runs: Sequence[SessionNumbers], of: str) -> Floats:
        """A side's means, one per bin; NaN where nothing is known."""
        above, below = np.zeros(BINS), np.zeros(BINS)
        for run in runs:
            places = np.array(self._places(run.span, BINS))
            known = places >= 0
            for summed, parts in zip((above, below), _lines(run, of), strict=True):
                np.add.at(summed, places[known], parts[known])
        means = np.full(BINS, np.nan)
        np.divide(above, below, out=means, where=below > 0)
        return means

    def rates(self, runs: Sequence[SessionNumbers], of: str) -> Floats:
        """Numerator and denominator of a rate, by piece."""
        rows = np.zeros((PIECES, 2))
        for run in runs:
            lines = np.stack(_lines(run, of), axis=1)
            pieces = lines.reshape(PIECES, BINS // PIECES, 2).sum(axis=1)
            for place, row in zip(self._places(run.span, PIECES), pieces, strict=True):
                if place >= 0:
                    rows[place] += row
        return rows

    def counts(
        self, runs: Sequence[SessionNumbers], of: str, values_s: Floats
    ) -> Floats:
        rows = np.zeros((PIECES, len(values_s)))
        for run in runs:
            values = run.counted[of]
            columns = np.searchsorted(values_s, values.values_s)
            places = self._places(run.span, PIECES)
            for place, row in zip(places, values.counts, strict=True):
                if place >= 0:
                    rows[place, columns] += row
        return rows


def _lines(run: SessionNumbers, of: str) -> tuple[Floats, Floats]:
    if of in run.sums:
        return run.sums[of].above, run.sums[of].below
    return run.counted[of].sums_s, run.counted[of].bins


@dataclass(frozen=True, slots=True)
class TimedRows:
    """One distribution or rate of both sides, by piece of common time."""

    a: Floats
    b: Floats
    above: Floats
    below: Floats
    log_ratios: Floats
    """Logarithms of the ratio of means, one per bin."""
    is_rate: bool

    @classmethod
    def of(
        cls,
        name: str,
        time: CommonTime,
        sides: tuple[Sequence[SessionNumbers], Sequence[SessionNumbers]],
    ) -> "TimedRows | None":
        """A distribution or rate over time, as rows; None if any run lacks it."""
        runs = [run for side in sides for run in side]
        is_rate = all(name in run.sums for run in runs)
        if not is_rate and not all(name in run.counted for run in runs):
            return None
        means = [time.means(side, name) for side in sides]
        with np.errstate(divide="ignore", invalid="ignore"):
            log_ratios = np.log(means[1] / means[0])
        if is_rate:
            above, below = np.array([1.0, 0.0]), np.array([0.0, 1.0])
            rows = [time.rates(side, name) for side in sides]
        else:
            above = np.unique(np.concatenate([r.counted[name].values_s for r in runs]))
            below = np.ones(len(above))
            rows = [time.counts(side, name, above) for side in sides]
        return cls(rows[0], rows[1], above, below, log_ratios, is_rate)

    def measure(self, share: float | None) -> Measure:
        return Measure(self.above, self.below, share)


def in_blocks(
    rows: TimedRows, own: Measure, inside: Truths, blocks: int
) -> tuple[Split, tuple[int, int]]:
    """Split rows into those ``inside`` a time and the rest, summed by block.

    Also returns the number of blocks of each.
    """
    rows_in_blocks, numbers = [], []
    for these in (inside, ~inside):
        many = max(round(int(these.sum()) * blocks / PIECES), LEAST_BLOCKS)
        begins = np.arange(many) * int(these.sum()) // many
        numbers.append(many)
        rows_in_blocks += [
            np.add.reduceat(side[these], begins, axis=0) for side in (rows.a, rows.b)
        ]
    part_a, part_b, rest_a, rest_b = rows_in_blocks
    parts = [each.sum(axis=0)[None] for each in (part_a, part_b)]
    whole = [side.sum(axis=0)[None] for side in (rows.a, rows.b)]
    share = float(explained(own, (parts[0], parts[1]), (whole[0], whole[1]))[0])
    split = Split(part_a, rest_a, part_b, rest_b, own, share)
    return split, (numbers[0], numbers[1])


KINDS = (Cut.PROMPT, Cut.CLASS, Cut.TURN)
PRESENT = 0.6
"""Share of the blocks that must contain the part; otherwise it is rather a period."""


class KindTable:
    """One latency of both sides, by group of requests, block of time and size."""

    def __init__(
        self, runs: Sequence[KindCounts], first: int, blocks: int, long: float
    ) -> None:
        """The first ``first`` runs are side A's; their pieces are already blocks."""
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
        every = (groups_of(cut, self._a, self._b) for cut in KINDS)
        return [each for each in every if each is not None]

    def explaining(
        self, metric: JudgedMetric, groups: Groups, most: float
    ) -> list[tuple[KindPart, float]]:
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
        self, metric: JudgedMetric, groups: Groups, part: KindPart, share: float
    ) -> Split | None:
        """Split the counts into those of a part and the rest.

        The statistic is the metric's, or one that needs fewer values; None if all
        need more.
        """
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
        """Counts by group, block and cell, with the runs one after the other."""
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


DRAWS = 1000
"""Enough for an interval; fewer than for verdicts, as many parts are examined."""
MOST = 2 / 3
"""Least share of the change that a reported part explains."""
CHANGED = frozenset(MetricVerdict) - {MetricVerdict.SAME, MetricVerdict.OPEN}
RATES = frozenset(("output_tokens_per_s", "client.output_tokens_per_s"))
"""Only these rates are examined, but all distributions."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A period of common time: the pieces inside it, and the number of blocks."""

    inside: Truths
    blocks: int


class PlaceFinder:
    """Finds where one pair of sides changed most; resamplings are made once."""

    def __init__(
        self, a: ComparedSide, b: ComparedSide, seed: int, allowed: float = 0.0
    ) -> None:
        """``allowed`` is the relative change that other work on hosts may explain."""
        self._a, self._b = a.runs, b.runs
        self._seed, self._allowed = seed, allowed
        pairing = None if a.is_repeated or b.is_repeated else a.first.pairing
        self._paired = pairing is not None and pairing == b.first.pairing
        self._draws: dict[tuple[int, int], Draws] = {}
        self._tables: dict[str, KindTable] = {}
        self._time = CommonTime.of([*a.runs, *b.runs])
        self._rows_of = ""
        self._rows: TimedRows | None = None

    def places(
        self,
        changed: Sequence[JudgedMetric],
        unclear: Sequence[JudgedMetric] = (),
        matters: float = 0.0,
    ) -> Iterator[ChangedPart]:
        """Yield the part in which each metric changed most, if any.

        Args:
            changed: Metrics with a certain or probable difference.
            unclear: Inconclusive metrics, which may differ for some of the time.
                They are reported only if that difference surely matters.
            matters: The smallest relative difference that matters.
        """
        metrics = [*changed, *unclear]
        alpha = ALPHA / max(len({each.of for each in metrics}), 1)
        for metric in metrics:
            stretch, when = self._when(metric, alpha) or (None, None)
            least = matters if metric in unclear else 0.0
            if when and may_be_why(when.ratio_span, max(least, self._allowed)):
                stretch = when = None
            whom = self._for_whom(metric, alpha) if metric in changed else None
            if whom is None and stretch is not None:
                whom = self._for_whom(metric, alpha, stretch)
            if whom and may_be_why(whom.ratio_span, self._allowed):
                whom = None
            place = replace(whom, also=when) if whom else when
            if place is not None:
                yield replace(place, sentence=sentence(place))

    def _when(
        self, metric: JudgedMetric, alpha: float
    ) -> tuple[Stretch, ChangedPart] | None:
        if metric.statistic is None and metric.of not in RATES:
            return None
        rows = self._timed_rows(metric.of)
        if self._time is None or rows is None:
            return None
        own = rows.measure(metric.share)
        leaning = leanings(rows.b, own) - leanings(rows.a, own)
        period = onset(leaning, rows.log_ratios, self._seed)
        if period is None or period.p_value > alpha:
            return None
        for inside in (period.inside, ~period.inside):
            split, parts = in_blocks(rows, own, inside, period.blocks)
            judged = self._judge_stretch(rows, split, parts)
            if (
                judged is not None
                and judged.split.explained >= MOST
                and judged.is_apart(ALPHA)
                and abs(judged.change) > metric.negligible
            ):
                part = self._time.name_of(inside)
                place = place_of(metric, Cut.TIME, part, judged)
                return Stretch(inside, parts[0]), place
        return None

    def _judge_stretch(
        self, rows: TimedRows, split: Split, parts: tuple[int, int]
    ) -> Judged | None:
        if not rows.is_rate:
            measure = split.measure.fit_for(min(split.counts))
            if measure is None:
                return None
            split = replace(split, measure=measure)
        other = 0 if self._paired else 1
        draws = [
            (self._drawn(place, n), self._drawn(place + other, n))
            for place, n in zip((2, 4), parts, strict=True)
        ]
        return in_turn(split, (draws[0], draws[1]), paired=self._paired)

    def _timed_rows(self, of: str) -> TimedRows | None:
        """The rows of a distribution or rate, cached for its further statistics."""
        if self._rows_of != of and self._time is not None:
            self._rows_of = of
            self._rows = TimedRows.of(of, self._time, (self._a, self._b))
        return self._rows

    def _for_whom(
        self, metric: JudgedMetric, alpha: float, stretch: Stretch | None = None
    ) -> ChangedPart | None:
        table = self._table(metric.of, stretch)
        if table is None or not table.groups:
            return None
        parts = sum(len(each.parts) for each in table.groups)
        best_parts = [self._best_part(metric, table, groups) for groups in table.groups]
        ranked = [each for each in best_parts if each is not None]
        ranked.sort(key=lambda each: each[0], reverse=True)
        for _, groups, part, split in ranked:
            judged = self._judge(split, table)
            beyond = abs(judged.change) > metric.negligible
            if beyond and judged.is_apart(alpha / parts):
                return place_of(metric, groups.cut, part.name, judged)
        return None

    def _best_part(
        self, metric: JudgedMetric, table: KindTable, groups: Groups
    ) -> tuple[float, Groups, KindPart, Split] | None:
        """The part most different from the rest, of those that explain the change."""
        splits = table.explaining(metric, groups, MOST)
        if not splits:
            return None
        changes = table.changes(metric, groups, paired=self._paired)
        scored = [(standing_out(changes, part.groups), part, s) for part, s in splits]
        score, part, share = max(scored, key=lambda each: each[0])
        split = table.split(metric, groups, part, share)
        return None if split is None else (score, groups, part, split)

    def _judge(self, split: Split, table: KindTable) -> Judged:
        blocks = len(split.part_a), len(split.part_b)
        draws_a = self._drawn(0, blocks[0])
        draws_b = self._drawn(0 if self._paired else 1, blocks[1])
        return across(split, (draws_a, draws_b), table.long, paired=self._paired)

    def _drawn(self, side: int, blocks: int) -> Draws:
        key = side, blocks
        if key not in self._draws:
            self._draws[key] = Draws.make(blocks, (self._seed, *key), DRAWS)
        return self._draws[key]

    def _table(self, of: str, stretch: Stretch | None) -> KindTable | None:
        runs = (*self._a, *self._b)
        if not all(of in run.kinds and of in run.counted for run in runs):
            return None
        if stretch is not None:
            return self._table_of(of, stretch)
        if of not in self._tables:
            long = self._memories(of)
            blocks = blocks_for(long)
            block_of = np.arange(PIECES) * blocks // PIECES
            kinds = [run.kinds[of].in_blocks(block_of) for run in runs]
            self._tables[of] = KindTable(kinds, len(self._a), blocks, long)
        return self._tables[of]

    def _table_of(self, of: str, stretch: Stretch) -> KindTable | None:
        if self._time is None or stretch.blocks < CHOICES[-1]:
            return None
        kinds = [
            run.kinds[of].in_blocks(
                self._time.blocks_in(run.span, stretch.inside, stretch.blocks)
            )
            for run in (*self._a, *self._b)
        ]
        long = stretch.blocks * float(MEMORIES_A_BLOCK)
        return KindTable(kinds, len(self._a), stretch.blocks, long)

    def _memories(self, of: str) -> float:
        """Length of the shortest session in autocorrelation times of a latency.

        If requests are paired, the autocorrelation is that of their ratios.
        """
        means = [[run.counted[of].means for run in runs] for runs in (self._a, self._b)]
        if not self._paired:
            return min(memories(each) for side in means for each in side)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(means[1][0] / means[0][0])
        return memories(np.where(np.isfinite(ratios), ratios, np.nan))


def place_of(metric: JudgedMetric, cut: Cut, part: str, judged: Judged) -> ChangedPart:
    n_a, n_b, *_ = judged.split.counts
    return ChangedPart(
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


def sentence(place: ChangedPart) -> str:
    """The part as text: ``all of it in prompts over 1k (+340%, elsewhere +2%)``."""
    many = "all of it" if place.is_all else "mostly"
    where = f"{WHERE.get(place.cut, '')}{place.part}"
    text = f"{many} {where} ({_figures(place)})"
    if place.also is None:
        return text
    return f"{text}, {'' if place.also.is_all else 'mostly '}{place.also.part}"


def _figures(place: ChangedPart) -> str:
    its = f"{place.statistic} " if place.statistic else ""
    here, elsewhere = map(format_change, (place.ratio, place.rest_ratio))
    word = place.part.split(" ", 1)[0] if place.cut is Cut.TIME else ""
    other = {"from": "before", "until": "afterwards"}.get(word, "elsewhere")
    return f"{its}{here}, {other} {elsewhere}"
