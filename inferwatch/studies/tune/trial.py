"""One measurement of one point: which point, how it ended, and its numbers.

A trial's stored record (:class:`TrialRecord`) contains no numbers: they are read from
its session each time, so that a metric corrected later is right for old tunes as well.
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
    """The engine did not start with these flags; this is a result, with a cause."""
    FAILED = "failed"
    """The engine died, or no request was answered."""
    LEFT_OUT = "left out"
    """Not measured, as the what-if model predicts that it cannot win."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """The stored record of a trial."""

    number: int
    """Counts from 1, in the order of measurement."""
    point: Point
    repeat: int
    """Counts from 0 for each point."""
    outcome: TrialOutcome
    session: str | None = None
    """The session's id; None if nothing was recorded."""
    cause: str | None = None
    """Why the outcome is not MEASURED, in words."""
    live: bool = False
    """Whether limits of a running engine were changed, rather than an engine started.
    """
    life: int = 0
    """The number of the engine start within this tune."""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialNumbers:
    """The numbers from a trial's session; unknown values are None."""

    requests: int
    failed: int = 0
    requests_per_s: float | None = None
    tokens_per_s: float | None = None
    goodput_per_s: float | None = None
    good_share: float | None = None
    knee_per_s: float | None = None
    cost: float | None = None
    """Price of a million good output tokens."""
    latencies: dict[str, Estimate] = field(default_factory=dict)
    """The client's latencies in seconds: ``ttft_s``, ``tpot_s``, ``itl_s``, ``e2el_s``.
    """
    kv_peak_usage: float | None = None
    """Peak share of KV cache blocks in use, 0-1."""
    preemptions: int | None = None
    bound_share: dict[str, float] = field(default_factory=dict)
    """Share of step time by what kept the head of the queue waiting."""
    memory_bytes: int | None = None
    """Device memory, or the engine processes' memory if there is no device."""
    scenario: str | None = None
    """The finding of a stress scenario."""
    answers: AnswerHashes | None = None
    """Hashes of the answers to fixed prompts, if they were sent."""
    doubts: tuple[str, ...] = ()
    """Reasons to doubt the numbers, such as a slow client, throttling or lost readings.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The stored record of a trial, with the numbers from its session."""

    record: TrialRecord
    numbers: TrialNumbers | None = None
    """None unless the outcome is MEASURED."""

    @property
    def point(self) -> Point:
        return self.record.point

    def score(self, goal: Goal) -> float | None:
        """The goal's value; None if unknown."""
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
