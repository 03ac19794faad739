"""By what rules a search goes."""

from dataclasses import dataclass

from inferwatch.studies.tune.goal import Goal


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRules:
    """How a search goes; the same rules and trials give the same next point."""

    goal: Goal
    repeats: int = 5
    """Of any setting, at most; the present one is measured more often, to see drift."""
    seed: int = 0
    """Of the order within a round."""
    matters: float = 0.02
    """A smaller relative difference is none."""
    trial_s: float = 60.0
    """What a trial takes, as far as is known: with ``start_s`` it decides how often an
    engine is started anew for the present setting's sake."""
    start_s: float = 60.0
    """What a start of the engine takes."""
    left_s: float | None = None
    """Time there is still; None: as much as it takes."""
    can_restart: bool = True
    """False where the engine is somebody else's: what live limits cannot reach is not
    measured."""
