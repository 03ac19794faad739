"""What screens know of the objectives."""

from dataclasses import dataclass

from collectors.contract.readings import Vantage


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassState:
    """The same of one class of requests."""

    name: str
    slo: str
    judged: int = 0
    good: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SloState:
    """How requests that ended in the window stand to the objectives."""

    slo: str
    """As it is written."""
    target: float
    """Share of requests that must be good, 0-1."""
    vantage: Vantage
    """Who measured what they are judged by."""
    judged: int = 0
    good: int = 0
    """That held every objective at once."""
    good_tokens: int | None = 0
    """Output tokens of these; None where those of one of them are unknown."""
    ended_tokens: int = 0
    """Output tokens of all that ended, good or not, as far as they were told."""
    undetermined: int = 0
    """Ended, and nobody can tell: the client left, or what would tell was not seen."""
    goodput_per_s: float | None = None
    missed: dict[str, int] | None = None
    """By metric, ``failed`` included; a request may miss several."""
    burn: float | None = None
    """Error budget: share of bad requests / share allowed; above 1 it runs out."""
    burn_long: float | None = None
    """The same over an hour, or the whole session where that is shorter."""
    budget_left: float | None = None
    """Of the session, 0-1; below 0 it is spent."""
    missed_since_ns: int | None = None
    """Since when the share is below the target; None while it is met."""
    classes: tuple[ClassState, ...] = ()

    @property
    def share(self) -> float | None:
        """Good / judged."""
        return self.good / self.judged if self.judged else None

    @property
    def met(self) -> bool | None:
        """The share reaches the target; None before anything was judged."""
        share = self.share
        return None if share is None else share >= self.target
