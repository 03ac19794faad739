"""Follows diagnoses from tick to tick, and decides when findings begin and end."""

from collections.abc import Iterable, Mapping

import msgspec

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.causes.cause import QUEUE_CAUSES, Cause
from inferwatch.metrics.findings.diagnosis import Diagnosis, Lasting
from inferwatch.metrics.findings.every import DIAGNOSES, EXPLAINED_OTHERWISE
from inferwatch.metrics.findings.facts import Facts
from inferwatch.metrics.findings.finding import (
    RESUMES_NS,
    SLIGHT,
    Finding,
    PastFinding,
    Subject,
)

MOST_SHOWN = 3
LONGEST_NS = 2 * NS_PER_S
"""Longest time that one tick may stand for."""
MOST_ENDED = 200
BY_NAME = {each.NAME: each for each in DIAGNOSES}
LIMITS = frozenset(QUEUE_CAUSES) - {Cause.QUEUE_STEP}
"""Causes of queueing for one of the scheduler's limits."""


class Watched(msgspec.Struct, array_like=True):
    """The recent history of one diagnosis; saved in checkpoints."""

    held: list[tuple[int, int]] = []
    """End and length of each interval between ticks in which the diagnosis held."""
    last_ns: int = 0
    """When the diagnosis last held."""
    shown: Finding | None = None
    """The finding as last shown; None while there is none."""
    usual_s: Mapping[int, float] = {}
    """Median decode steps by batch size before it began, where it compares them."""

    def take(self, now_ns: int, span_ns: int, lasting: Lasting, *, holds: bool) -> None:
        """Record whether the diagnosis held in the ``span_ns`` before this tick."""
        if holds:
            self.held.append((now_ns, span_ns))
            self.last_ns = now_ns
        if self.held:
            since_ns = now_ns - round(lasting.of_s * NS_PER_S)
            self.held = [each for each in self.held if each[0] > since_ns]

    @property
    def since_ns(self) -> int:
        return self.held[0][0] - self.held[0][1]

    def lasts(self, lasting: Lasting) -> bool:
        """Return whether the diagnosis has held long enough to become a finding."""
        held_ns = sum(length for _, length in self.held)
        return bool(self.held) and held_ns >= lasting.least_s * NS_PER_S


class SavedFindings(msgspec.Struct, array_like=True):
    """A FindingTracker as checkpoints keep it."""

    watched: dict[str, Watched]
    ended: list[PastFinding]
    tick_ns: int | None


class FindingTracker:
    """Judges diagnoses at each tick, and keeps the findings that hold."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}
        self._ended: list[PastFinding] = []
        self._tick_ns: int | None = None
        self.untrue: set[str] = set()
        """Findings that were taken back and not shown again; not saved."""

    def tick(self, facts: Facts, diagnoses: Iterable[Diagnosis]) -> None:
        """Judge these diagnoses by the facts of a tick, and forget all others."""
        now_ns, before_ns = facts.now_ns, self._tick_ns
        if before_ns is not None and now_ns <= before_ns:
            return
        span_ns = min(now_ns - (before_ns or 0), LONGEST_NS)
        self._tick_ns = now_ns
        by_name = {each.NAME: each for each in diagnoses}
        for name in [each for each in self._watched if each not in by_name]:
            del self._watched[name]  # of a single server; now there are several
        for diagnosis in by_name.values():
            cost = diagnosis.judge(facts)
            if cost is None and diagnosis.NAME not in self._watched:
                continue
            watched = self._watched.setdefault(diagnosis.NAME, Watched())
            watched.take(now_ns, span_ns, diagnosis.LASTING, holds=cost is not None)
            if cost is not None and (watched.shown or watched.lasts(diagnosis.LASTING)):
                since_ns = self._since_ns(diagnosis, watched, facts)
                watched.shown = diagnosis.finding(
                    facts, cost, since_ns, watched.usual_s
                )
                self.untrue.discard(diagnosis.NAME)
            elif watched.shown is not None and self._is_over(
                diagnosis, watched, now_ns
            ):
                self._end(watched.shown, watched.last_ns)
                watched.shown = None
            if watched.shown is None and not watched.held:
                del self._watched[diagnosis.NAME]

    def take_back(self, name: str) -> None:
        """Forget a finding that turned out to be untrue."""
        self._watched.pop(name, None)
        self.untrue.add(name)

    def all(self) -> tuple[Finding, ...]:
        """Return present findings, costliest first; fallbacks if no others hold."""
        findings = [each.shown for each in self._watched.values() if each.shown]
        fallbacks = {each.NAME for each in DIAGNOSES if each.FALLBACK}
        telling = {
            each.name
            for each in findings
            if each.name not in fallbacks
            and each.subject is not Subject.MEASURING
            and each.cost >= SLIGHT
        }
        explained = {
            cause
            for name in telling - EXPLAINED_OTHERWISE
            if name in BY_NAME
            for cause in BY_NAME[name].EXPLAINS
        }
        return ranked(
            each
            for each in findings
            if not (telling and each.name in fallbacks)
            and not (
                each.name in EXPLAINED_OTHERWISE
                and explained.issuperset(BY_NAME[each.name].EXPLAINS)
            )
        )

    @property
    def watches(self) -> bool:
        """Whether a diagnosis holds or has just held, and must be judged to its end."""
        return bool(self._watched)

    @property
    def ended(self) -> tuple[PastFinding, ...]:
        """The latest 200 findings that ended, in the order in which they ended."""
        return tuple(self._ended)

    def saved(self) -> SavedFindings:
        return SavedFindings(self._watched, self._ended, self._tick_ns)

    def restore(self, saved: SavedFindings) -> None:
        self._watched, self._ended = saved.watched, saved.ended
        self._tick_ns = saved.tick_ns

    def _since_ns(self, diagnosis: Diagnosis, watched: Watched, facts: Facts) -> int:
        """Return since when a finding holds; one that begins now looks back first."""
        if watched.shown:
            return watched.shown.since_ns
        since_ns = self._resumed(diagnosis.NAME, watched.since_ns)
        watched.usual_s = diagnosis.usual_s(facts, since_ns)
        return since_ns

    def _is_over(self, diagnosis: Diagnosis, watched: Watched, now_ns: int) -> bool:
        return now_ns - watched.last_ns >= diagnosis.LASTING.gone_s * NS_PER_S

    def _resumed(self, name: str, since_ns: int) -> int:
        """Return since when a finding holds; one that ended just before goes on."""
        for at, past in enumerate(self._ended):
            if past.name == name and since_ns - past.until_ns <= RESUMES_NS:
                del self._ended[at]
                return past.since_ns
        return since_ns

    def _end(self, finding: Finding, until_ns: int) -> None:
        shown = [each.shown for each in self._watched.values() if each.shown]
        if is_told_otherwise(finding, [*self._ended, *shown]):
            return
        over = PastFinding(
            name=finding.name,
            title=finding.title,
            sentence=finding.sentence,
            since_ns=finding.since_ns,
            until_ns=until_ns,
            cost=finding.cost,
            subject=finding.subject,
            knobs=finding.knobs,
        )
        self._ended.append(over)
        del self._ended[:-MOST_ENDED]


def explains_queue(name: str) -> bool:
    """Return whether a finding says which limit requests queue for."""
    return name in BY_NAME and not LIMITS.isdisjoint(BY_NAME[name].EXPLAINS)


def is_told_otherwise(
    finding: Finding, others: Iterable[Finding | PastFinding]
) -> bool:
    """Return whether another finding of that time or the minute before explains it."""
    if finding.name not in EXPLAINED_OTHERWISE:
        return False
    causes = BY_NAME[finding.name].EXPLAINS
    return any(
        each.name in BY_NAME
        and each.name not in EXPLAINED_OTHERWISE
        and set(causes) <= set(BY_NAME[each.name].EXPLAINS)
        and (
            not isinstance(each, PastFinding)
            or each.until_ns > finding.since_ns - RESUMES_NS
        )
        for each in others
    )


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with the costliest first; ties by start."""
    return tuple(
        sorted(findings, key=lambda each: (-each.cost, each.since_ns, each.name))
    )
