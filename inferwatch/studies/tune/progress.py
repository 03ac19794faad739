"""The state of a running tune, as an immutable snapshot for screen and log."""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.result.tune_result import TuneResult
from inferwatch.studies.tune.search.race import NextTrial
from inferwatch.studies.tune.space import Space
from inferwatch.studies.tune.trial import Trial


class TuneStage(StrEnum):
    """What the tune is doing now."""

    STARTING = "starting the engine"
    TURNING = "turning the limits"
    WARMING = "warming up"
    LOADING = "loading"
    JUDGING = "judging"
    CHECKING = "comparing answers"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneProgress:
    """A tune at one moment."""

    tune_id: str
    model: str
    goal: Goal
    slo: str | None
    space: Space
    trials: tuple[Trial, ...]
    now: NextTrial | None
    stage: TuneStage
    stage_s: float
    """How long the stage has lasted."""
    stage_share: float | None
    """Completed share of the stage, 0-1; None if its length is unknown."""
    elapsed_s: float
    left_s: float | None
    """Estimated time left; None before anything was measured."""
    budget_s: float | None
    result: TuneResult | None
    """The result so far."""
    said: tuple[str, ...] = ()
    """The latest messages, oldest first."""
    rate_per_s: float | None = None
    """The request rate being tried, while the goal is the highest rate."""
    earlier: int = 0
    """Trials up to this number were measured before the tune was resumed."""


class TuneEnded(Protocol):
    """A tune that can be shown, but not run."""

    @property
    def progress(self) -> TuneProgress: ...

    @property
    def plan(self) -> TunePlan:
        """The plan; its present setting is complete once the engine has reported it."""
        ...

    @property
    def outcome(self) -> str:
        """``done``, ``out of time``, ``interrupted`` or ``failed``."""
        ...


class TuneTask(TuneEnded, Protocol):
    """A tune as the screen and the log use it."""

    async def run(self, stop: asyncio.Event) -> TuneResult: ...
