"""Follows diagnoses from tick to tick: when each begins to be a finding, and ends."""

from collections.abc import Iterable

import msgspec

from collectors.contract.clock import NS_PER_S
from inferwatch.metrics.findings.diagnosis import Diagnosis, Lasting
from inferwatch.metrics.findings.every import DIAGNOSES
from inferwatch.metrics.findings.facts import Facts
from inferwatch.metrics.findings.finding import Finding, PastFinding

MOST_SHOWN = 3
LONGEST_NS = 2 * NS_PER_S
"""What one tick stands for at most: nobody looked in between."""
MOST_ENDED = 200


class Watched(msgspec.Struct, array_like=True):
    """One diagnosis, as it was at the latest ticks; saved as it is."""

    held: list[tuple[int, int]] = []
    """End and length of each stretch between two ticks for which it held."""
    last_ns: int = 0
    """When it last held."""
    shown: Finding | None = None
    """As it was then, while it is one."""

    def take(self, now_ns: int, span_ns: int, lasting: Lasting, *, holds: bool) -> None:
        """It held at this tick, or did not, for the time since the one before."""
        if holds:
            self.held.append((now_ns, span_ns))
            self.last_ns = now_ns
        if self.held:
            since_ns = now_ns - round(lasting.of_s * NS_PER_S)
            self.held = [each for each in self.held if each[0] > since_ns]

    @property
    def since_ns(self) -> int:
        """Since when it has held, as far as is remembered."""
        return self.held[0][0] - self.held[0][1]

    def lasts(self, lasting: Lasting) -> bool:
        """Whether it has held long enough to be told."""
        held_ns = sum(length for _, length in self.held)
        return bool(self.held) and held_ns >= lasting.least_s * NS_PER_S


class SavedFindings(msgspec.Struct, array_like=True):
    """All that a FindingTracker keeps."""

    watched: dict[str, Watched]
    ended: list[PastFinding]
    tick_ns: int | None


class FindingTracker:
    """Is told what there is to know at each tick; keeps what holds."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}
        self._ended: list[PastFinding] = []
        self._tick_ns: int | None = None

    def tick(self, facts: Facts, diagnoses: Iterable[Diagnosis]) -> None:
        """Judge this moment by all of these, and forget all others."""
        now_ns, before_ns = facts.now_ns, self._tick_ns
        if before_ns is not None and now_ns <= before_ns:
            return
        span_ns = min(now_ns - (before_ns or 0), LONGEST_NS)
        self._tick_ns = now_ns
        asked = {each.NAME: each for each in diagnoses}
        for name in [each for each in self._watched if each not in asked]:
            del self._watched[name]  # of one server, where there are several now
        for diagnosis in asked.values():
            cost = diagnosis.judge(facts)
            if cost is None and diagnosis.NAME not in self._watched:
                continue
            held = self._watched.setdefault(diagnosis.NAME, Watched())
            held.take(now_ns, span_ns, diagnosis.LASTING, holds=cost is not None)
            if cost is not None and (held.shown or held.lasts(diagnosis.LASTING)):
                since_ns = held.shown.since_ns if held.shown else held.since_ns
                held.shown = diagnosis.finding(facts, cost, since_ns)
            elif held.shown is not None and self._is_over(diagnosis, held, now_ns):
                self._end(held.shown, held.last_ns)
                held.shown = None
            if held.shown is None and not held.held:
                del self._watched[diagnosis.NAME]

    def all(self) -> tuple[Finding, ...]:
        """All that hold, what costs most first; without those that explain nothing."""
        found = [each.shown for each in self._watched.values() if each.shown]
        fallbacks = {each.NAME for each in DIAGNOSES if each.FALLBACK}
        telling = [each for each in found if each.name not in fallbacks]
        return ranked(telling or found)

    @property
    def ended(self) -> tuple[PastFinding, ...]:
        """The latest 200 that are over, in the order of their ends."""
        return tuple(self._ended)

    def saved(self) -> SavedFindings:
        return SavedFindings(self._watched, self._ended, self._tick_ns)

    def restore(self, saved: SavedFindings) -> None:
        self._watched, self._ended = saved.watched, saved.ended
        self._tick_ns = saved.tick_ns

    def _is_over(self, diagnosis: Diagnosis, watched: Watched, now_ns: int) -> bool:
        return now_ns - watched.last_ns >= diagnosis.LASTING.gone_s * NS_PER_S

    def _end(self, finding: Finding, until_ns: int) -> None:
        over = PastFinding(
            name=finding.name,
            title=finding.title,
            sentence=finding.sentence,
            since_ns=finding.since_ns,
            until_ns=until_ns,
            cost=finding.cost,
        )
        self._ended.append(over)
        del self._ended[:-MOST_ENDED]


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """What costs most first; of equals the one that began first."""
    return tuple(
        sorted(findings, key=lambda each: (-each.cost, each.since_ns, each.name))
    )
