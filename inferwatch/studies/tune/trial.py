"""One point measured once: which, how it went, and what came of it.

What is kept of a trial (:class:`TrialRecord`) holds no result: its numbers are read
again from its session, so that a metric corrected later is right for tunes of today.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from collectors.contract.readings import AnswerHashes
from inferwatch.metrics.series.intervals import Estimate
from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.space import Point


class TrialOutcome(StrEnum):
    """How a trial ended."""

    MEASURED = "measured"
    NOT_STARTED = "did not start"
    """The engine did not come up with these flags: a result, with its cause."""
    FAILED = "failed"
    """The engine died, or answered nobody."""
    LEFT_OUT = "left out"
    """It was not measured: the what-if model says that it cannot win."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """What is kept of a trial."""

    number: int
    """Counts from 1, in the order they were measured."""
    point: Point
    repeat: int
    """Counts from 0 for each point."""
    outcome: TrialOutcome
    session: str | None = None
    """Its id; None where nothing was recorded."""
    cause: str | None = None
    """Of anything but MEASURED, fit to show."""
    live: bool = False
    """Turned in a running engine; else it was started with these flags."""
    life: int = 0
    """Counts the starts of an engine in this tune."""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialNumbers:
    """What a trial's session says; None is unknown."""

    requests: int
    failed: int = 0
    requests_per_s: float | None = None
    tokens_per_s: float | None = None
    goodput_per_s: float | None = None
    good_share: float | None = None
    knee_per_s: float | None = None
    cost: float | None = None
    """Of a million good output tokens."""
    latencies: dict[str, Estimate] = field(default_factory=dict)
    """By ``ttft_s``, ``tpot_s``, ``itl_s``, ``e2el_s``: the client's, in seconds."""
    kv_peak_usage: float | None = None
    """0-1."""
    preemptions: int | None = None
    bound_share: dict[str, float] = field(default_factory=dict)
    """Of the time in steps, by what kept the head of the queue waiting."""
    memory_bytes: int | None = None
    """Of the device, or of the engine's processes where there is none."""
    scenario: str | None = None
    """The sentence of a stress scenario's run."""
    answers: AnswerHashes | None = None
    """Of fixed prompts, where they were asked."""
    doubts: tuple[str, ...] = ()
    """Why these numbers may not be the engine's: client-bound, throttled, lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is kept of a trial, and what its session says."""

    record: TrialRecord
    numbers: TrialNumbers | None = None
    """None of anything but MEASURED."""

    @property
    def point(self) -> Point:
        """What was measured."""
        return self.record.point

    def score(self, goal: Goal) -> float | None:
        """What it is ranked by; None where that is unknown."""
        if self.numbers is None:
            return None
        ttft = self.numbers.latencies.get("ttft_s")
        return {
            Goal.GOODPUT: self.numbers.goodput_per_s,
            Goal.TOKENS: self.numbers.tokens_per_s,
            Goal.LATENCY: ttft.quantiles.p99 if ttft else None,
            Goal.COST: self.numbers.cost,
            Goal.KNEE: self.numbers.knee_per_s,
        }[goal]
