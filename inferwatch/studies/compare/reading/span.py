"""Which part of a session is compared: by default the part after its warm-up."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import LoadKind
from inferwatch.errors import UsageError
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.reading.requests import TimedValues
from inferwatch.studies.compare.statistics.resampling import BINS, Floats


class WarmupCut(StrEnum):
    """How the start of the compared part was chosen."""

    DETECTED = "detected (MSER-5)"
    UNSETTLED = "none: it never settles (MSER-5)"
    GIVEN = "given"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanChoice:
    """The part of a session to compare, in seconds since its load began."""

    warmup_s: float | None = None
    """How much warm-up to cut; None detects it."""
    from_s: float | None = None
    """Where to begin, regardless of any warm-up."""
    to_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSpan:
    """The compared part of a session, in session time."""

    origin_ns: int
    """When the load began after its own warm-up, else the first arrival."""
    start_ns: int
    end_ns: int
    """Requests that arrived before it count, even if they ended later; steps must end
    before it.
    """
    cut: WarmupCut
    load_runs: int

    @property
    def from_s(self) -> float:
        """Start of the span in seconds since the origin."""
        return (self.start_ns - self.origin_ns) / NS_PER_S

    @property
    def to_s(self) -> float:
        """End of the span in seconds since the origin."""
        return (self.end_ns - self.origin_ns) / NS_PER_S

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S

    def bin_of(self, at_ns: Ints) -> Ints:
        """The bin of each moment, of BINS equal ones; -1 outside the span."""
        length_ns = max(self.end_ns - self.start_ns, 1)
        place = (at_ns - self.start_ns) * BINS // length_ns
        inside = (at_ns >= self.start_ns) & (at_ns < self.end_ns)
        return np.where(inside, place, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTimes:
    """When a session's load began and when it stopped sending."""

    began_ns: int
    ended_ns: int
    runs: int


def load_times(
    connection: sqlite3.Connection, session: int, seen_ns: tuple[int, int]
) -> LoadTimes:
    """When the load ran, by its events, else from first arrival to last end."""
    rows = connection.execute(
        "SELECT t_ns, kind FROM load_events WHERE session = ? ORDER BY ordinal",
        (session,),
    ).fetchall()
    moments = {kind: [t_ns for t_ns, each in rows if each == kind] for kind in LoadKind}
    began = moments[LoadKind.WARMUP_ENDED] or moments[LoadKind.STARTED]
    ended = moments[LoadKind.DRAINING] or moments[LoadKind.STOPPED]
    first_ns, last_ns = seen_ns
    return LoadTimes(
        began_ns=began[0] if began else first_ns,
        ended_ns=ended[-1] if ended else last_ns,
        runs=len(moments[LoadKind.STARTED]),
    )


def span_of(
    load: LoadTimes, choice: SpanChoice, series: list[TimedValues], name: str
) -> ComparedSpan:
    """The part of a session to compare.

    Raises:
        UsageError: the chosen part is empty.
    """
    origin_ns = load.began_ns
    end_ns = load.ended_ns
    if choice.to_s is not None:
        end_ns = origin_ns + round(choice.to_s * NS_PER_S)
    start_ns, cut = _start(origin_ns, end_ns, choice, series)
    if end_ns <= start_ns:
        lasted_s = (load.ended_ns - origin_ns) / NS_PER_S
        raise UsageError(
            f"Nothing of {name} is left to compare: its load lasted "
            f"{lasted_s:.1f} s, and what is "
            f"asked for begins {(start_ns - origin_ns) / NS_PER_S:.1f} s after its "
            "start; choose another window or --warmup none"
        )
    return ComparedSpan(
        origin_ns=origin_ns,
        start_ns=start_ns,
        end_ns=end_ns,
        cut=cut,
        load_runs=load.runs,
    )


def _start(
    origin_ns: int, end_ns: int, choice: SpanChoice, series: list[TimedValues]
) -> tuple[int, WarmupCut]:
    given_s = choice.from_s if choice.from_s is not None else choice.warmup_s
    if given_s is not None:
        cut = WarmupCut.GIVEN if given_s else WarmupCut.NONE
        return origin_ns + round(given_s * NS_PER_S), cut
    kept = [_within(each, origin_ns, end_ns) for each in series]
    settled = settled_ns(kept, origin_ns)
    if settled is None:
        return origin_ns, WarmupCut.UNSETTLED
    return settled, WarmupCut.DETECTED if settled > origin_ns else WarmupCut.NONE


def _within(series: TimedValues, start_ns: int, end_ns: int) -> TimedValues:
    inside = (series.at_ns >= start_ns) & (series.at_ns < end_ns)
    return TimedValues(series.at_ns[inside], series.values_ns[inside])


# Where a session settles: what comes before is the warm-up.
#
# MSER-5: means of five observations, and the cut that makes the standard error of the
# mean of the rest the smallest (White 1997, An effective truncation heuristic for bias
# reduction in simulation output; White, Cobb and Spratt 2000, A comparison of five
# steady-state truncation heuristics for simulation). The observations are ranked first,
# so that one burst does not decide; a best cut near the middle means that no part is
# steady.

BATCH = 5
FEWEST = 10 * BATCH
LATEST = 0.5
"""A cut beyond this share of the batches is not a warm-up."""
AT_THE_END = 0.4
"""A cut beyond this share is near the limit: the series is still changing."""


def settled_ns(series: Iterable[TimedValues], start_ns: int) -> int | None:
    """The moment from which all series are steady; None if one never is."""
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
    """How many batches of five values to cut as warm-up; None if never steady."""
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
