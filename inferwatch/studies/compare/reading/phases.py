"""The time of each request by phase, whose sum is its E2EL to the nanosecond.

It is split as in the breakdown of all requests, by the same trackers that follow the
same readings: ``compare`` and ``why --all`` tell the same of the same requests.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    Note,
    NoteKind,
    RequestEvent,
    Step,
    Tick,
    Totals,
)
from inferwatch.metrics.breakdown.split import e2el_spent, span_of
from inferwatch.metrics.breakdown.tracker import PLACES, BreakdownTracker
from inferwatch.metrics.breakdown.view import BreakdownPhase
from inferwatch.metrics.causes.cause import E2EL_CAUSES
from inferwatch.metrics.requests.outcomes import Outcomes
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_index import RequestIndex
from inferwatch.metrics.requests.request_tracker import RequestTracker
from inferwatch.metrics.series.quantiles import Ints
from inferwatch.studies.compare.metrics import PHASE_KEYS
from inferwatch.studies.compare.reading.session_numbers import RatioSums
from inferwatch.studies.compare.reading.span import ComparedSpan
from inferwatch.studies.compare.statistics.resampling import BINS, Floats

AFTER_ALL_NS = 1 << 62
"""Later than any request ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPhases:
    """The phases of a session's requests that ended, in any way."""

    came_ns: Ints
    finished: npt.NDArray[np.bool_]
    """Which of them have an E2EL: they ended normally, at a front end."""
    spent_ns: dict[BreakdownPhase, Ints]
    """In the order of ``came_ns``; 0 where a phase is unknown, which UNKNOWN has."""

    def sums(self, span: ComparedSpan) -> dict[str, RatioSums]:
        """Mean seconds a request in each phase, by when requests came."""
        place = np.where(self.finished, span.bin_of(self.came_ns), -1)
        inside = place >= 0
        counts = np.bincount(place[inside], minlength=BINS).astype(np.float64)
        n = int(counts.sum())
        if not n:
            return {}
        return {
            PHASE_KEYS[phase]: RatioSums(
                above=_binned_s(each, place), below=counts, n=n
            )
            for phase, each in self.spent_ns.items()
        }


class PhaseTracker:
    """Follows requests as the Model does, and keeps how each one's time was spent."""

    def __init__(self) -> None:
        requests = RequestIndex()
        self._breakdown = BreakdownTracker(requests, lambda _: None, self._ended)
        self._breakdown.rows.release()
        self._tracker = RequestTracker(
            requests, _NoLatencies(), Outcomes(), self._breakdown
        )
        self._rows: list[tuple[int, ...]] = []
        """Of each ended request: when it came, whether it has an E2EL, its causes."""

    def take(self, reading: AnyReading) -> None:
        """Take a reading in order of receipt."""
        if isinstance(reading, Step):
            if not reading.memberless:
                self._tracker.step(reading)
        elif isinstance(reading, RequestEvent):
            self._tracker.event(reading)
        elif isinstance(reading, Totals):
            self._tracker.totals(reading)
        elif isinstance(reading, Tick):
            self._breakdown.tick(reading.t_ns)
        elif isinstance(reading, Note):
            self._note(reading)

    def _note(self, note: Note) -> None:
        if note.kind is NoteKind.DROPPED:
            self._tracker.dropped(note)
        elif note.kind is NoteKind.LOST:
            self._tracker.lost(note)

    def phases(self) -> RequestPhases:
        """The phases of the requests that have ended by now."""
        self._breakdown.tick(AFTER_ALL_NS)
        rows = np.array(self._rows, np.int64).reshape(-1, 2 + len(E2EL_CAUSES)).T
        return RequestPhases(
            came_ns=rows[0],
            finished=rows[1] == 1,
            spent_ns={
                phase: np.asarray(rows[2:][places].sum(axis=0), np.int64)
                for phase, places in PLACES.items()
            },
        )

    def _ended(self, request: Request, _: int) -> None:
        span = span_of(request)
        if span is not None:
            has_e2el = int(request.e2el_ns is not None)
            self._rows.append((span[0], has_e2el, *e2el_spent(request, *span)))


class _NoLatencies:
    """Takes latencies, which are read from the table of requests instead."""

    def add(self, metric: str, t_ns: int, value_ns: int, weight: int = 1) -> None:
        """Forget it."""


def _binned_s(spent_ns: Ints, place: Ints) -> Floats:
    inside = place >= 0
    sums = np.bincount(place[inside], spent_ns[inside], minlength=BINS)
    return np.asarray(sums / NS_PER_S, np.float64)
