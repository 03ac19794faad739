"""What a diagnosis is: when it holds, what it costs, what it says and advises."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.findings.facts import Facts
from inferwatch.metrics.findings.finding import Effort, Evidence, Finding, Knob


@dataclass(frozen=True, slots=True)
class Lasting:
    """It begins after having held for so long, and ends after so long without."""

    least_s: float = 10
    of_s: float = 15
    """It is looked for in the last so many seconds."""
    gone_s: float = 15


@dataclass(frozen=True, slots=True)
class FindingCost:
    """What a finding costs, as a share, and of what that is a share."""

    share: float
    """From 0 to 1."""
    text: str


class Diagnosis(ABC):
    """Judges one tick; whoever follows ticks decides when it is a finding."""

    NAME: ClassVar[str]
    TITLE: ClassVar[str]
    MANY: ClassVar[str]
    """What several servers do that have it, such as *wait for KV blocks*."""
    LASTING: ClassVar[Lasting] = Lasting()
    MISSES: ClassVar[tuple[str, ...]] = ()
    """Objectives that it makes requests miss: while these are met it is no finding."""
    FALLBACK: ClassVar[bool] = False
    """It is told only where nothing else explains what is wrong."""

    @abstractmethod
    def holds(self, facts: Facts) -> FindingCost | None:
        """What it costs now; None where it does not hold."""

    @abstractmethod
    def sentence(self, facts: Facts) -> str:
        """What is wrong, with its numbers."""

    @abstractmethod
    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        """What was seen; one piece at least."""

    @abstractmethod
    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        """What may be done about it, what needs no restart first."""

    def judge(self, facts: Facts) -> FindingCost | None:
        """As ``holds``, and priced by the objectives where there are any."""
        cost = self.holds(facts)
        slo = facts.around.slo
        if cost is None or slo is None or not self.MISSES or not slo.judged:
            return cost
        missed = slo.missed or {}
        bad = min(max(missed.get(each, 0) for each in self.MISSES), slo.judged)
        if not bad:
            return None
        share = bad / slo.judged
        return FindingCost(
            share * cost.share,
            f"{share:.0%} of requests miss {slo.slo}; {cost.text}",
        )

    def finding(self, facts: Facts, cost: FindingCost, since_ns: int) -> Finding:
        return Finding(
            name=self.NAME,
            title=self.TITLE,
            sentence=self.sentence(facts),
            since_ns=since_ns,
            cost=min(max(cost.share, 0.0), 1.0),
            cost_text=cost.text,
            evidence=self.evidence(facts),
            knobs=tuple(sorted(self.knobs(facts), key=_is_no_key_away)),
        )


def _is_no_key_away(knob: Knob) -> bool:
    """What can be turned here and now goes first."""
    return knob.flag is None or Effort.NOW not in knob.effort


def ago_ns(facts: Facts, seconds: float) -> int:
    """A moment before now, never before the session."""
    return max(facts.now_ns - round(seconds * NS_PER_S), 0)
