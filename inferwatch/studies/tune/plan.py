"""What a tune was asked to do: kept as it began, so that it can go on."""

from enum import StrEnum

import msgspec

from inferwatch.loadgen.plan.plan import LoadPlan


class Goal(StrEnum):
    """What settings are ranked by; each names what is measured of a trial."""

    GOODPUT = "goodput"
    """Requests per second that meet every objective, at the load asked for."""
    TOKENS = "tokens"
    """Output tokens per second."""
    LATENCY = "latency"
    """TTFT p99 at the load asked for, in seconds."""
    COST = "cost"
    """Price of a million good output tokens; needs a price."""
    KNEE = "knee"
    """The highest rate that still meets the objectives, by a search of its own."""

    @property
    def lower_is_better(self) -> bool:
        """Seconds and money; all else is to be high."""
        return self in {Goal.LATENCY, Goal.COST}


class TunePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that decides what is measured; no secret is in it."""

    tune_id: str
    model: str
    """As ``vllm serve`` takes it; ``demo`` is the tiny model of ``inferwatch demo``."""
    url: str | None = None
    """Of a running engine with control, whose limits alone are turned; None: an
    engine of our own is started, and started again."""
    engine_flags: tuple[str, ...] = ()
    """What ``vllm serve`` gets at every point: no varied flag is among them."""
    vary: tuple[tuple[str, tuple[str, ...]], ...]
    """Flag and values, as :class:`inferwatch.studies.tune.space.Variable` has them."""
    present: tuple[tuple[str, str], ...] = ()
    """Of varied flags: the values that people said the engine has at present. Of the
    others it is the engine's default."""
    goal: Goal = Goal.GOODPUT
    load: LoadPlan
    """The same requests at the same moments for every point: its seed says which. Its
    ``slo`` is what goodput is held to. ``run_id`` and ``url`` are each trial's own."""
    like: str | None = None
    """The session whose requests these are, where they were recorded."""
    repeats: int = 5
    budget_s: float | None = None
    seed: int = 0
    answers: int = 0
    """So many fixed prompts are asked at temperature 0 at each point; 0: none."""
    gpu_hour: float | None = None
    currency: str = "$"
    name: str | None = None
    """What people call it."""
