"""The request for a tune, stored when it begins so that it can be resumed."""

from enum import StrEnum

import msgspec

from inferwatch.loadgen.plan.plan import LoadPlan


class Goal(StrEnum):
    """The quantity by which settings are ranked."""

    GOODPUT = "goodput"
    """Requests per second that meet every objective, at the given load."""
    TOKENS = "tokens"
    """Output tokens per second."""
    LATENCY = "latency"
    """TTFT p99 in seconds, at the given load."""
    COST = "cost"
    """Price of a million good output tokens; needs a price."""
    KNEE = "knee"
    """The highest request rate that still meets the objectives, found by a rate search.
    """

    @property
    def lower_is_better(self) -> bool:
        return self in {Goal.LATENCY, Goal.COST}


class TunePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All inputs that decide what is measured; contains no secrets."""

    tune_id: str
    model: str
    """The model as ``vllm serve`` takes it; ``demo`` is that of ``inferwatch demo``."""
    url: str | None = None
    """URL of a running engine whose live limits are changed; None starts own engines.
    """
    engine_flags: tuple[str, ...] = ()
    """Flags for ``vllm serve`` at every point; none of them is varied."""
    vary: tuple[tuple[str, tuple[str, ...]], ...]
    """Flags and their values, as in :class:`inferwatch.studies.tune.space.Variable`."""
    present: tuple[tuple[str, str], ...] = ()
    """Present values of varied flags that the user gave; others have the engine's
    default.
    """
    goal: Goal = Goal.GOODPUT
    load: LoadPlan
    """The load, whose seed gives every point the same requests at the same times. Its
    ``slo`` defines goodput. Each trial sets its own ``run_id`` and ``url``.
    """
    like: str | None = None
    """The session whose recorded requests are repeated, if any."""
    repeats: int = 5
    budget_s: float | None = None
    seed: int = 0
    answers: int = 0
    """The number of fixed prompts sent at temperature 0 to compare answers; 0 for none.
    """
    gpu_hour: float | None = None
    currency: str = "$"
    name: str | None = None
    """A name for the tune."""
