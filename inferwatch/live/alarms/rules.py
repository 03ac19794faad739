"""The rules that ``--record-on`` and ``--alert`` can name.

A rule is judged from a snapshot over the last 60 s. A value that is unknown, or a
percentile of too few samples, leaves its state as it was.
"""

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_type_hints

from inferwatch.errors import UsageError
from inferwatch.formatting import counted, format_figure
from inferwatch.metrics.requests.latencies import LATENCIES
from inferwatch.metrics.series.window import Latency
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.health import Health
from inferwatch.quantities import duration_s

STATISTICS = ("p50", "p90", "p95", "p99", "mean", "max")
LATENCY_NAMES = tuple(LATENCIES)
FLOW_NAMES = tuple(
    name
    for name, kind in get_type_hints(Flow).items()
    if kind in {int, int | None, float | None}
)
BATCH = "batch"
"""Requests in the step that ended last."""
OF_LATENCY = re.compile(r"(\w+)\s*\(\s*(\w+)\s*\)\s*([<>])\s*(\S+)")
OF_FLOW = re.compile(r"(\w+)\s*([<>])\s*(\S+)")
COMPARED: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """Whether a rule holds, and the sentence that reports it."""

    holds: bool | None
    """None when it cannot be known now."""
    sentence: str = ""
    why_unknown: str = ""


UNKNOWN = RuleVerdict(None)


OF_LOST = RuleVerdict(None, why_unknown="its numbers are from before the loss")
"""What rules on numbers say of a lost engine: its window ended with the loss."""


class Rule(ABC):
    """A condition on snapshots.

    Each watch has instances of its own, as they hold state.
    """

    SETTLES = 1
    """How many evaluations in a row must agree before the rule fires."""

    def __init__(self, text: str) -> None:
        self.text = text
        """The rule as the user wrote it."""

    @abstractmethod
    def look(self, now: Snapshot) -> RuleVerdict:
        """Judge a snapshot of the last 60 s; each is later than the previous one."""


class PreemptionRule(Rule):
    """Holds when requests were preempted since the last evaluation."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._before: tuple[int, int] | None = None

    def look(self, now: Snapshot) -> RuleVerdict:
        """Look for a new preemption in the timeline; without steps, in the count."""
        count, columns = now.flow.preemptions, now.timeline.preemptions
        at = next((at for at in reversed(range(len(columns))) if columns[at]), -1)
        latest_ns = now.timeline.start_ns + at * now.timeline.bin_ns if at >= 0 else -1
        before, self._before = self._before, (latest_ns, count)
        if before is None or not count:
            return RuleVerdict(holds=False)
        fresh = latest_ns > before[0] if at >= 0 else count > before[1]
        return RuleVerdict(
            holds=fresh, sentence=f"{counted(count, 'preemption')} in the last 60 s"
        )


class StallRule(Rule):
    """Holds while the engine stalls, and when a new stall was found."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._latest_ns: int | None = None

    def look(self, now: Snapshot) -> RuleVerdict:
        latest = now.stalls[0] if now.stalls else None
        before, ended_ns = self._latest_ns, latest.end_ns if latest else -1
        self._latest_ns = max(ended_ns, -1 if before is None else before)
        if now.verdict.at_present is Health.STALLED:
            return RuleVerdict(holds=True, sentence=now.verdict.sentence)
        if latest is not None and before is not None and ended_ns > before:
            return RuleVerdict(
                holds=True, sentence=f"stall ({latest.kind}): {latest.evidence}"
            )
        return RuleVerdict(holds=False)


class LossRule(Rule):
    """Holds when the engine, or any server of a fleet, no longer answers."""

    def look(self, now: Snapshot) -> RuleVerdict:
        if now.verdict.health is Health.LOST:
            return RuleVerdict(holds=True, sentence=now.verdict.headline)
        silent = [each.source for each in now.servers if each.answers is False]
        if silent:
            return RuleVerdict(holds=True, sentence=f"{', '.join(silent)}: no answer")
        return RuleVerdict(holds=False)


class SloRule(Rule):
    """Holds when too few requests meet the objectives for a while."""

    def look(self, now: Snapshot) -> RuleVerdict:
        slo = now.slo
        if now.verdict.health is Health.LOST:
            return OF_LOST
        if slo is None:
            return RuleVerdict(None, why_unknown="no objective was given: add --slo")
        if slo.met is None or slo.share is None:
            return RuleVerdict(None, why_unknown="no request ended in the last 60 s")
        sentence = (
            f"{slo.share:.1%} of {slo.judged} requests hold {slo.slo}, "
            f"not {slo.target:.1%}"
        )
        return RuleVerdict(holds=slo.missed_since_ns is not None, sentence=sentence)


class FindingRule(Rule):
    """Holds when a finding appears."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._before: set[str] = set()

    def look(self, now: Snapshot) -> RuleVerdict:
        """Look for findings, by name, that were not in the previous snapshot."""
        found = (*now.findings, *now.trust)
        fresh = [each for each in found if each.name not in self._before]
        self._before = {each.name for each in found}
        if not fresh:
            return RuleVerdict(holds=False)
        return RuleVerdict(
            holds=True, sentence="; ".join(each.sentence for each in fresh)
        )


class ThresholdRule(Rule):
    """Holds when a number of the flow is above, or below, a limit."""

    SETTLES = 3

    def __init__(self, text: str, name: str, sign: str, limit: float) -> None:
        super().__init__(text)
        self._name, self._sign, self.limit = name, sign, limit

    def look(self, now: Snapshot) -> RuleVerdict:
        if now.verdict.health is Health.LOST:
            return OF_LOST
        return self._compare(getattr(now.flow, self._name))

    def _compare(self, value: float | None, why_unknown: str = "") -> RuleVerdict:
        if value is None:
            return RuleVerdict(
                None, why_unknown=why_unknown or f"{self._name} is not known"
            )
        sentence = f"{self._what} {_figure(value)} {self._sign} {_figure(self.limit)}"
        holds = COMPARED[self._sign](value, self.limit)
        return RuleVerdict(holds=holds, sentence=sentence)

    @property
    def _what(self) -> str:
        return self._name


class BatchRule(ThresholdRule):
    """Holds when the latest step had more, or fewer, requests than a limit."""

    SETTLES = 1

    def look(self, now: Snapshot) -> RuleVerdict:
        """Compare the requests of the step that ended last; none run: 0."""
        if now.verdict.health is Health.LOST:
            return OF_LOST
        step = now.latest_step
        if step is None:
            return self._compare(None, "no probe tells of steps")
        if not now.flow.running:
            return self._compare(0)
        return self._compare(step.prefill_requests + step.decode_requests)


class LatencyRule(ThresholdRule):
    """Holds when a statistic of a latency is above, or below, a limit."""

    def __init__(
        self, text: str, statistic: str, name: str, sign: str, limit: float
    ) -> None:
        super().__init__(text, name, sign, limit)
        self._statistic = statistic

    def look(self, now: Snapshot) -> RuleVerdict:
        """Compare the value with the limit; in a bucket, the bound that is certain."""
        if now.verdict.health is Health.LOST:
            return OF_LOST
        matches = (each for each in now.latencies if each.metric == self._name)
        latency = next(matches, None)
        if latency is None or not latency.quantiles.n:
            return self._compare(None, f"no {self._name} in the last 60 s")
        if self._statistic in latency.quantiles.weak:
            n = latency.quantiles.n
            return self._compare(
                None,
                f"{self._what} of {n} in 60 s is too few to say: max({self._name}) "
                f"or mean({self._name}) can be told of any",
            )
        return self._compare(self._value(latency))

    def _value(self, latency: Latency) -> float | None:
        value: float | None = getattr(latency.quantiles, self._statistic)
        if value is not None or latency.brackets is None:
            return value
        bracket = getattr(latency.brackets, self._statistic, None)
        if bracket is None:
            return None
        bound: float | None = bracket.low if self._sign == ">" else bracket.high
        return bound

    @property
    def _what(self) -> str:
        return f"{self._statistic}({self._name})"


EVENTS: dict[str, Callable[[str], Rule]] = {
    "slo": SloRule,
    "preemption": PreemptionRule,
    "stall": StallRule,
    "lost": LossRule,
    "finding": FindingRule,
}


def rules_of(text: str) -> list[Rule]:
    """Parse rules that are joined by ``|``.

    Raises:
        UsageError: one cannot be parsed; the message says what can be written.
    """
    parts = [part.strip() for part in text.split("|")]
    return [_rule_of(part) for part in dict.fromkeys(parts)]


def _rule_of(text: str) -> Rule:
    if text in EVENTS:
        return EVENTS[text](text)
    if match := OF_LATENCY.fullmatch(text):
        statistic, name, sign, limit = match.groups()
        if statistic not in STATISTICS:
            raise _wrong(text, f"{statistic!r} is none of {', '.join(STATISTICS)}")
        if name not in LATENCY_NAMES:
            raise _wrong(text, f"{name!r} is none of {', '.join(LATENCY_NAMES)}")
        seconds = duration_s(limit)
        least = _limit(text, limit) if seconds is None else seconds
        return LatencyRule(text, statistic, name, sign, least)
    if flow := OF_FLOW.fullmatch(text):
        return _rule_of_flow(text, *flow.groups())
    raise _wrong(
        text,
        f"write {', '.join(EVENTS)}, p99(ttft_s)>2 or waiting>20, joined by |",
    )


def _rule_of_flow(text: str, name: str, sign: str, limit: str) -> Rule:
    if name in LATENCY_NAMES:
        raise _wrong(text, f"say which {name} is meant, as p99({name}){sign}{limit}")
    if name == BATCH:
        return BatchRule(text, name, sign, _limit(text, limit))
    if name not in FLOW_NAMES:
        known = ", ".join((BATCH, *FLOW_NAMES))
        raise _wrong(text, f"{name!r} is none of {known}")
    return ThresholdRule(text, name, sign, _limit(text, limit))


def _limit(text: str, written: str) -> float:
    try:
        limit = float(written)
    except ValueError:
        limit = float("nan")
    if not abs(limit) < float("inf"):
        raise _wrong(text, f"{written!r} is not a number; seconds are meant by ..._s")
    return limit


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} is not a rule: {why}")


def _figure(value: float) -> str:
    return format_figure(value).strip()
