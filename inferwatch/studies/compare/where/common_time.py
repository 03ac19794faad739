"""All runs of two sides on one clock: seconds since the load began.

Spans need not be the same: a run that settled later is compared from later on. What is
said of a moment must be of all of them, so only what they share is looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import format_clock
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.reading.pairing import Truths
from inferwatch.studies.compare.reading.session_numbers import SessionNumbers
from inferwatch.studies.compare.reading.span import ComparedSpan
from inferwatch.studies.compare.statistics.resampling import BINS, PIECES, Floats
from inferwatch.studies.compare.where.measure import Measure, explained
from inferwatch.studies.compare.where.onset import LEAST_BLOCKS
from inferwatch.studies.compare.where.split import Split

LEAST_SHARED = 0.5
"""Of the longest span."""


@dataclass(frozen=True, slots=True)
class CommonTime:
    """The seconds that all spans share."""

    from_s: float
    to_s: float

    @classmethod
    def of(cls, runs: Sequence[SessionNumbers]) -> "CommonTime | None":
        """None where they share too little."""
        spans = [run.span for run in runs]
        found = cls(max(s.from_s for s in spans), min(s.to_s for s in spans))
        longest = max(s.length_s for s in spans)
        return found if found.to_s - found.from_s >= LEAST_SHARED * longest else None

    def name_of(self, inside: Truths) -> str:
        """``from 00:40``, ``until 00:25``, ``between 00:20 and 00:40``."""
        turns = np.flatnonzero(np.diff(inside.astype(int))) + 1
        moments = [self._clock(int(piece)) for piece in turns]
        if len(moments) == 1:
            return f"{'until' if inside[0] else 'from'} {moments[0]}"
        begin, end = moments
        if inside[0]:
            return f"before {begin} and after {end}"
        return f"between {begin} and {end}"

    def _clock(self, piece: int) -> str:
        """Hours only where there are some."""
        at_s = self.from_s + (self.to_s - self.from_s) * piece / PIECES
        return format_clock(round(at_s) * NS_PER_S).strip().removeprefix("00:")

    def blocks_in(self, span: ComparedSpan, inside: Truths, blocks: int) -> Ints:
        """In which block of a stretch each piece of a run lies; -1 in none."""
        rank = np.cumsum(inside) - 1
        block = np.where(inside, rank * blocks // int(inside.sum()), -1)
        places = np.array(self._places(span, PIECES))
        return np.where(places >= 0, block[places], -1)

    def _places(self, span: ComparedSpan, parts: int) -> "list[int]":
        """In which of as many common parts each of a run's lies; -1 in none."""
        middles = span.from_s + span.length_s * (np.arange(parts) + 0.5) / parts
        share = (middles - self.from_s) / (self.to_s - self.from_s)
        place = np.floor(share * parts).astype(int)
        return [int(p) if 0 <= p < parts else -1 for p in place]

    def means(self, runs: Sequence[SessionNumbers], of: str) -> Floats:
        """Of a side, one a bin; not a number where nothing is known."""
        above, below = np.zeros(BINS), np.zeros(BINS)
        for run in runs:
            places = np.array(self._places(run.span, BINS))
            known = places >= 0
            for summed, parts in zip((above, below), _lines(run, of), strict=True):
                np.add.at(summed, places[known], parts[known])
        found = np.full(BINS, np.nan)
        np.divide(above, below, out=found, where=below > 0)
        return found

    def rates(self, runs: Sequence[SessionNumbers], of: str) -> Floats:
        """Sums above and below the line, by piece."""
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
    """One distribution, or one rate, of both sides by piece of common time."""

    a: Floats
    b: Floats
    above: Floats
    below: Floats
    log_ratios: Floats
    """Of the means, one a bin."""
    is_rate: bool

    @classmethod
    def of(
        cls,
        name: str,
        time: CommonTime,
        sides: tuple[Sequence[SessionNumbers], Sequence[SessionNumbers]],
    ) -> "TimedRows | None":
        """None where it is not known of all runs."""
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
    """Each of the two in about as long blocks, and how many those are."""
    found, numbers = [], []
    for these in (inside, ~inside):
        many = max(round(int(these.sum()) * blocks / PIECES), LEAST_BLOCKS)
        begins = np.arange(many) * int(these.sum()) // many
        numbers.append(many)
        found += [
            np.add.reduceat(side[these], begins, axis=0) for side in (rows.a, rows.b)
        ]
    part_a, part_b, rest_a, rest_b = found
    parts = [each.sum(axis=0)[None] for each in (part_a, part_b)]
    whole = [side.sum(axis=0)[None] for side in (rows.a, rows.b)]
    share = float(explained(own, (parts[0], parts[1]), (whole[0], whole[1]))[0])
    split = Split(part_a, rest_a, part_b, rest_b, own, share)
    return split, (numbers[0], numbers[1])
