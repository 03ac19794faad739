"""The evidence for scenario findings, and means over few events.

Long prompts, bursts and hang-ups are far apart, so a few of them are taken to be
independent; for many, intervals are those of correlated values, as elsewhere.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    EventKind,
    RequestEvent,
    RequestRecord,
    Step,
    Vantage,
)
from inferwatch.formatting import TimeUnit, format_duration, format_in, shared_unit
from inferwatch.metrics.load.book import LoadBook
from inferwatch.metrics.requests.outcomes import client_id
from inferwatch.metrics.series.intervals import (
    FEWEST,
    Interval,
    Numbers,
    binomial_ranks,
    intervals,
    student_t,
)
from inferwatch.metrics.series.quantiles import Ints

FEWEST_EVENTS = 5
"""Fewest events for a finding."""


@dataclass(slots=True, kw_only=True)
class EngineRequest:
    """A request as reported by the engine."""

    ordinal: int | None = None
    added_ns: int | None = None
    scheduled_ns: int | None = None
    finished_ns: int | None = None
    reason: str | None = None
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache when it was first scheduled."""


class EngineTrail:
    """Keeps the requests and steps that the server's probe reports."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], EngineRequest] = {}
        self._named: dict[str, EngineRequest] = {}
        """Requests by the client's id."""
        self._token_ends: dict[tuple[str, int], array[int]] = {}
        """By source and ordinal: end of each step with tokens, and how many,
        alternating.
        """
        self.step_starts_ns: array[int] = array("q")
        self.waiting: array[int] = array("q")
        """Waiting requests after each step was scheduled."""
        self.ranks: set[tuple[str, int]] = set()
        """Source and rank; each has its own queue."""
        self._sources: dict[int, str] = {}

    def fold(self, reading: AnyReading) -> None:
        if isinstance(reading, RequestEvent):
            self._event(reading)
        elif isinstance(reading, Step) and not reading.memberless:
            self._step(reading)

    def request(self, record: RequestRecord) -> EngineRequest | None:
        """Return the engine's report on a client's request; None without one."""
        return self._named.get(record.external_id)

    def tokens_of(self, request: EngineRequest) -> list[tuple[int, int]]:
        """Return the end of each step with tokens of a request, and how many."""
        source = self._sources.get(id(request), "")
        flat = self._token_ends.get((source, request.ordinal or 0), array("q"))
        return list(zip(flat[::2], flat[1::2], strict=True))

    def _event(self, event: RequestEvent) -> None:
        key = event.source, event.request_id
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = EngineRequest()
            self._sources[id(request)] = event.source
        if event.external_id is not None:
            self._named[client_id(event.external_id)] = request
        if event.vantage is not Vantage.ENGINE:
            return
        request.ordinal = event.ordinal
        if event.kind is EventKind.ADDED:
            request.added_ns = event.t_ns
        elif event.kind is EventKind.SCHEDULED:
            request.scheduled_ns = event.t_ns
            request.cached_tokens = event.cached_tokens
        elif event.kind is EventKind.FINISHED:
            request.finished_ns, request.reason = event.t_ns, event.reason

    def _step(self, step: Step) -> None:
        self.step_starts_ns.append(step.start_ns)
        self.ranks.add((step.source, step.rank))
        self.waiting.append(step.waiting)
        for ordinal, tokens in zip(step.members, step.produced, strict=False):
            if tokens:
                came = self._token_ends.setdefault((step.source, ordinal), array("q"))
                came.extend((step.end_ns, tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioEvidence:
    """The readings of a scenario's run, from client and server."""

    book: LoadBook
    trail: EngineTrail | None = None
    """None without a probe in the server."""
    before: Mapping[str, float] = field(default_factory=dict)
    """The server's counters before the run; empty without any."""
    after: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFinding:
    """The result of a scenario's run: a sentence and its numbers."""

    name: str
    sentence: str
    """The result with its confidence and number of events, or why there is none."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Names have units; None where unknown."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sentence": self.sentence,
            "numbers": dict(self.numbers),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMean:
    """Mean and median of a duration over events, with intervals."""

    n: int
    mean_s: float | None = None
    ci95: Interval = (None, None)
    median_s: float | None = None
    median_ci95: Interval = (None, None)
    worst_s: float | None = None

    @property
    def excludes_zero(self) -> bool:
        return _leaves_out_zero(self.ci95)

    @property
    def median_excludes_zero(self) -> bool:
        return _leaves_out_zero(self.median_ci95)

    def text(self, of: str) -> str:
        """Return the mean as text: ``62 ms (95%: 55 to 70 ms, 48 long prompts)``."""
        return _with_interval(self.mean_s, self.ci95, of)

    def median_text(self, of: str) -> str:
        """Return the median as text; outliers affect it little."""
        return _with_interval(self.median_s, self.median_ci95, of)

    def as_json(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "mean_s": self.mean_s,
            "ci95_s": list(self.ci95),
            "median_s": self.median_s,
            "median_ci95_s": list(self.median_ci95),
            "worst_s": self.worst_s,
        }


def event_mean(
    values_ns: Sequence[float] | Numbers | Ints, *, signed: bool = False
) -> EventMean:
    """Return mean and median of durations, which are in order of time.

    An interval does not go below zero unless these are differences (``signed``).
    """
    values = np.asarray(values_ns, float) / NS_PER_S
    n = len(values)
    if not n:
        return EventMean(n=0)
    many = intervals(values) if n >= FEWEST else None
    of_mean = many["mean"] if many else _students(values)
    return EventMean(
        n=n,
        mean_s=float(values.mean()),
        ci95=_from_zero(of_mean, signed=signed),
        median_s=float(np.median(values)),
        median_ci95=many["p50"] if many else _between_ranks(values),
        worst_s=float(values.max()),
    )


def _from_zero(interval: Interval, *, signed: bool) -> Interval:
    low, high = interval
    return interval if signed or low is None else (max(low, 0.0), high)


def _students(values: Numbers) -> Interval:
    n = len(values)
    if n < FEWEST_EVENTS:
        return None, None
    middle = float(values.mean())
    half = student_t(n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return middle - half, middle + half


def _between_ranks(values: Numbers) -> Interval:
    n, ordered = len(values), np.sort(values)
    lower, upper = binomial_ranks(n, 0.5)
    if lower < 1 or upper > n:
        return None, None
    return float(ordered[lower - 1]), float(ordered[upper - 1])


def _leaves_out_zero(interval: Interval) -> bool:
    low, high = interval
    return low is not None and high is not None and (low > 0 or high < 0)


def _with_interval(value_s: float | None, interval: Interval, of: str) -> str:
    low, high = interval
    if low is None or high is None:
        return f"{short(value_s)} ({of})"
    unit = shared_unit([abs(low), abs(high)])
    ends = " to ".join(_signed(unit, end) for end in (low, high))
    return f"{short(value_s)} (95%: {ends} {unit.name}, {of})"


def _signed(unit: TimeUnit, duration_s: float) -> str:
    sign = "-" if duration_s < 0 else ""
    return sign + format_in(unit, abs(duration_s)).strip()


def short(duration_s: float | None) -> str:
    """Return a duration as text; it may be negative."""
    if duration_s is not None and duration_s < 0:
        return f"-{format_duration(-duration_s).strip()}"
    return format_duration(duration_s).strip()


def too_few(what: str, n: int, book: LoadBook, needed: int = FEWEST_EVENTS) -> str:
    """Return advice such as ``too few long prompts: 3; run it for 60 s``."""
    text = f"too few {what} to tell: {n}"
    if not n or not book.span_s:
        return f"{text}; run it for longer"
    wanted_s = math.ceil(book.span_s * needed / n * 1.2 / 10) * 10
    return f"{text}; run it for {wanted_s:,} s"
