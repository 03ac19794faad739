"""The base class of diagnoses: when one holds, and what it reports."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.findings.facts import Facts
from inferwatch.metrics.findings.finding import Effort, Evidence, Finding, Knob, Subject


@dataclass(frozen=True, slots=True)
class Lasting:
    """How long a condition must hold to become a finding, and when a finding ends."""

    least_s: float = 10
    of_s: float = 15
    """Length of the window in which that time is added up, in seconds."""
    gone_s: float = 15


@dataclass(frozen=True, slots=True)
class FindingCost:
    """What a finding costs, as a share, and a text that says a share of what."""

    share: float
    """From 0 to 1."""
    text: str


class Diagnosis(ABC):
    """A condition judged at each tick; FindingTracker decides when it is a finding."""

    NAME: ClassVar[str]
    SUBJECT: ClassVar[Subject]
    TITLE: ClassVar[str]
    MANY: ClassVar[str]
    """What several affected servers do, such as *wait for KV blocks*."""
    LASTING: ClassVar[Lasting] = Lasting()
    MISSES: ClassVar[tuple[str, ...]] = ()
    """Objectives this condition makes requests miss; no finding while they are met."""
    FALLBACK: ClassVar[bool] = False
    """Whether it is shown only when no other finding explains the problem."""

    EXPLAINS: ClassVar[tuple[Cause, ...]] = ()
    """Causes of slow requests that it has knobs for."""

    def subject(self, facts: Facts) -> Subject:
        """Return whose trouble this is, where that depends on the facts."""
        del facts
        return self.SUBJECT

    @abstractmethod
    def holds(self, facts: Facts) -> FindingCost | None:
        """Return what the problem costs now; None where there is no such problem."""

    @abstractmethod
    def sentence(self, facts: Facts) -> str:
        """Return a sentence that says what is wrong, with numbers."""

    @abstractmethod
    def evidence(self, facts: Facts) -> tuple[Evidence, ...]:
        """Return what was observed; at least one piece."""

    @abstractmethod
    def knobs(self, facts: Facts) -> tuple[Knob, ...]:
        """Return what to do about the problem; what needs no restart comes first."""

    def judge(self, facts: Facts) -> FindingCost | None:
        """Return the cost as in ``holds``, scaled by the share of missed objectives."""
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

    def usual_s(self, facts: Facts, since_ns: int) -> Mapping[int, float]:
        """Return median decode steps by batch size from before, if it compares them."""
        del facts, since_ns
        return {}

    def finding(
        self,
        facts: Facts,
        cost: FindingCost,
        since_ns: int,
        usual_s: Mapping[int, float],
    ) -> Finding:
        """Return the finding as of now; ``usual_s`` is from before it began."""
        del usual_s
        return Finding(
            name=self.NAME,
            title=self.TITLE,
            sentence=self.sentence(facts),
            since_ns=since_ns,
            cost=min(max(cost.share, 0.0), 1.0),
            cost_text=cost.text,
            evidence=self.evidence(facts),
            knobs=tuple(sorted(self.knobs(facts), key=_is_not_live)),
            subject=self.subject(facts),
        )


def _is_not_live(knob: Knob) -> bool:
    """Return whether a knob cannot be turned live; as a sort key it puts them last."""
    return knob.flag is None or Effort.NOW not in knob.effort


def ago_ns(facts: Facts, seconds: float) -> int:
    """Return the moment ``seconds`` before now, at least 0."""
    return max(facts.now_ns - round(seconds * NS_PER_S), 0)
