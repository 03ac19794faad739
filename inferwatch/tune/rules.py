"""By what rules a search goes."""

from dataclasses import dataclass

from inferwatch.tune.goal import Goal


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
