"""The frozen facts of a set-up that the lines of a review judge."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import duration_text
from inferwatch.metrics.findings.facts import INFO_FIELDS, Setting
from inferwatch.metrics.findings.finding import Finding, Knob, PastFinding
from inferwatch.metrics.floor.peaks import CPU
from inferwatch.metrics.series.union import union_ns
from inferwatch.metrics.snapshot import Snapshot

WORTH = 0.05
"""Share of the time with work below which a finding changes no set-up, 0-1."""
REPEATS = ("turns", "shared_prefixes")
UNTOLD = ("dataset", "trace", "trace_of", "scenario")
"""Options of a load plan with which prompts begin alike, and with which they may."""


class ReviewUse(StrEnum):
    """What a set-up is for, which decides what matters."""

    INTERACTIVE = "interactive"
    """TTFT and the time between tokens."""
    BATCH = "batch"
    """Tokens per second."""
    AGENTS = "agents"
    """Long contexts that grow from turn to turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A trouble that findings told of, over the whole session."""

    sentence: str
    """What was told of it when it cost most, and how long it lasted."""
    knobs: tuple[Knob, ...]

    def knob(self, *flags: str) -> Knob | None:
        """Return the first knob with one of these flags; None without one."""
        names = {f"--{each.replace('_', '-')}" for each in flags}
        for knob in self.knobs:
            if knob.flag is not None and knob.flag.split()[0] in names:
                return knob
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One server's set-up, and what it did over the whole session."""

    now: Snapshot
    """Over the session, of a single server."""
    use: ReviewUse

    def setting(self, name: str) -> Setting:
        """Return a setting by vLLM's flag, as in force; None if it is not told."""
        place = INFO_FIELDS.get(name)
        if place is not None and self.now.engines:
            value: Setting = getattr(self.now.engines[0], place)
            if value is not None:
                return value
        return self.now.settings.get(name)

    def number(self, name: str) -> float | None:
        """Return a setting that is a number, also of a server that tells texts."""
        value = self.setting(name)
        with suppress(TypeError, ValueError):
            return None if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        return None

    @property
    def covered_s(self) -> float:
        return self.now.covered_ns / NS_PER_S

    @property
    def busy_s(self) -> float:
        """How long there was work; of servers without steps, how long they ran."""
        steps = self.now.steps
        if not self.tells_steps or steps.duration_s.mean is None:
            return self.covered_s
        spent_s = steps.count * steps.duration_s.mean / max(len(self.now.engines), 1)
        return min(spent_s / max(1 - (steps.gap_share or 0.0), WORTH), self.covered_s)

    @property
    def on_cpu(self) -> bool | None:
        """Whether it computes on the CPU; None where the engine does not tell."""
        devices = {each.device for each in self.now.engines}
        return None if devices <= {None} else devices == {CPU}

    @property
    def tells_steps(self) -> bool:
        """Whether a probe told steps: servers only count them."""
        return bool(self.now.engines) and bool(self.now.steps.count)

    def held(self, *names: str) -> Held | None:
        """Return what these findings told; None if none lasted for long."""
        findings: list[Finding | PastFinding] = [
            *(each for each in self.now.findings if each.name in names),
            *(each for each in self.now.past_findings if each.name in names),
        ]
        lasted_s = self._lasted_s(*findings)
        if not findings or lasted_s < WORTH * self.busy_s:
            return None
        worst = max(findings, key=lambda each: each.cost * self._lasted_s(each))
        held, watched = duration_text(lasted_s), duration_text(self.covered_s)
        told = f"{worst.sentence} (for {held} of the {watched} watched)"
        return Held(sentence=told, knobs=worst.knobs)

    @property
    def kv_short(self) -> Held | None:
        """The want of KV blocks: requests waited for them, or were preempted."""
        held = self.held("kv_bound", "preemptions")
        now = self.now
        often = now.flow.finished and now.kv.preemptions >= WORTH * now.flow.finished
        if held is None and not self.tells_steps and often:
            told = (
                f"{now.kv.preemptions:,} preemptions, {now.flow.finished:,} requests "
                "finished"
            )
            return Held(sentence=told, knobs=())
        return held

    @property
    def plans(self) -> Iterator[Mapping[str, Any]]:
        """The plans of our own loads, without options left at their defaults."""
        for view in self.now.client.runs if self.now.client is not None else ():
            if view.run is not None and view.run.plan is not None:
                with suppress(ValueError):
                    plan = json.loads(view.run.plan)
                    yield plan if isinstance(plan, dict) else {}

    @property
    def repeats(self) -> bool | None:
        """Whether prompts begin alike, by the plans of loads; None if not known."""
        plans = list(self.plans)
        if any(name in plan for plan in plans for name in REPEATS):
            return True
        unknown = any(name in plan for plan in plans for name in UNTOLD)
        return None if unknown or not plans else False

    def _lasted_s(self, *findings: Finding | PastFinding) -> float:
        """How long at least one was told, while watched; pauses of work count."""
        now_ns = self.now.now_ns
        spans = [(e.since_ns, getattr(e, "until_ns", now_ns)) for e in findings]
        return union_ns(spans, now_ns - self.now.covered_ns, now_ns) / NS_PER_S
