"""What is known of a tune while it goes on: one frozen picture for screen and log."""

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
    """What goes on now."""

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
    """For so long."""
    stage_share: float | None
    """0-1 of the stage; None where nobody knows how long it takes."""
    elapsed_s: float
    left_s: float | None
    """About so much more; None before there is anything to go by."""
    budget_s: float | None
    result: TuneResult | None
    """As it stands."""
    said: tuple[str, ...] = ()
    """The latest sentences about it, oldest first."""
    rate_per_s: float | None = None
    """Requests per second that are tried now, where a rate is looked for."""
    earlier: int = 0
    """Trials up to this number were measured before it was taken up again."""


class TuneEnded(Protocol):
    """A tune that goes on no more, or of which nobody asks that it does."""

    @property
    def progress(self) -> TuneProgress: ...

    @property
    def plan(self) -> TunePlan:
        """What was asked for; its present setting is complete once it is known."""
        ...

    @property
    def outcome(self) -> str:
        """How it ended: ``done``, ``out of time``, ``interrupted`` or ``failed``."""
        ...


class TuneTask(TuneEnded, Protocol):
    """A tune as screen and log see it."""

    async def run(self, stop: asyncio.Event) -> TuneResult: ...
