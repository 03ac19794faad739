"""Which part of a session is compared, and where its time begins: with its load."""

import sqlite3
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collectors.clock import NS_PER_S
from collectors.readings import LoadKind
from inferwatch.compare.latencies import Timed
from inferwatch.compare.rhythm import BINS
from inferwatch.compare.warmup import settled_ns
from inferwatch.errors import UsageError
from inferwatch.metrics.series.quantiles import Ints


class Cut(StrEnum):
    """Why the part begins where it does."""

    DETECTED = "detected (MSER-5)"
    UNSETTLED = "none: it never settles (MSER-5)"
    GIVEN = "given"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was asked for one session; seconds since the load began."""

    warmup_s: float | None = None
    """Cut so much; None: detect it."""
    from_s: float | None = None
    """Begin here, whatever the warm-up."""
    to_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Session time."""

    origin_ns: int
    """When the load began, its own warm-up over; else when the first request came."""
    start_ns: int
    end_ns: int
    cut: Cut
    load_runs: int

    @property
    def from_s(self) -> float:
        """Since the origin, as is the end."""
        return (self.start_ns - self.origin_ns) / NS_PER_S

    @property
    def to_s(self) -> float:
        """When the load stopped sending, unless chosen."""
        return (self.end_ns - self.origin_ns) / NS_PER_S

    @property
    def length_s(self) -> float:
        """How much is compared."""
        return (self.end_ns - self.start_ns) / NS_PER_S

    def bin_of(self, at_ns: Ints) -> Ints:
        """Which of equal bins a moment lies in; -1 outside."""
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
    """By its own events, else by what was seen: first arrival, last end."""
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


def span_of(load: LoadTimes, choice: Choice, series: list[Timed], name: str) -> Span:
    """The part to compare.

    Raises:
        UsageError: nothing is left of the session.
    """
    origin_ns = load.began_ns
    end_ns = load.ended_ns
    if choice.to_s is not None:
        end_ns = origin_ns + round(choice.to_s * NS_PER_S)
    start_ns, cut = _start(origin_ns, end_ns, choice, series)
    if end_ns <= start_ns:
        lasted_s = (load.ended_ns - origin_ns) / NS_PER_S
        raise UsageError(
            f"Nothing is left of {name}: its load lasted {lasted_s:.1f} s, and what is "
            f"asked for begins {(start_ns - origin_ns) / NS_PER_S:.1f} s after its "
            "start; choose another window or --warmup none"
        )
    return Span(
        origin_ns=origin_ns,
        start_ns=start_ns,
        end_ns=end_ns,
        cut=cut,
        load_runs=load.runs,
    )


def _start(
    origin_ns: int, end_ns: int, choice: Choice, series: list[Timed]
) -> tuple[int, Cut]:
    given_s = choice.from_s if choice.from_s is not None else choice.warmup_s
    if given_s is not None:
        cut = Cut.GIVEN if given_s else Cut.NONE
        return origin_ns + round(given_s * NS_PER_S), cut
    kept = [_within(each, origin_ns, end_ns) for each in series]
    settled = settled_ns(kept, origin_ns)
    if settled is None:
        return origin_ns, Cut.UNSETTLED
    return settled, Cut.DETECTED if settled > origin_ns else Cut.NONE


def _within(series: Timed, start_ns: int, end_ns: int) -> Timed:
    inside = (series.at_ns >= start_ns) & (series.at_ns < end_ns)
    return Timed(series.at_ns[inside], series.values_ns[inside])
