"""Steps that servers publish themselves: what is told of them, without members."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from collectors.contract.readings import Step
from inferwatch.metrics.series.history import (
    STEP_COLUMNS,
    Bin,
    EndedStep,
    History,
    SavedHistory,
)
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.steps.counter import StepCounter, StepTotals, ratio

COLUMNS = (
    "batch_prefill",
    "batch_decode",
    "batch_max",
    "step_mean_s",
    "step_max_s",
    "step_heat",
    "slowest_step",
)
"""Columns of a timeline that published steps fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSteps:
    """The steps of a window that servers published."""

    totals: StepTotals
    """Only what is told of such steps."""
    start_ns: int
    bin_ns: int
    bins: Sequence[Bin | None]
    latest: Step

    def added_to(self, line: Timeline) -> Timeline:
        """Return the timeline of a server's counts with the columns of its steps."""
        bins: list[Bin | None] = [None] * len(line.steps)
        for place, part in enumerate(self.bins):
            t_ns = self.start_ns + place * self.bin_ns
            at = (t_ns - line.start_ns) // line.bin_ns
            if part is not None and part.steps and 0 <= at < len(bins):
                held = bins[at] = bins[at] or Bin()
                held.merge(part)
        columns: dict[str, Any] = {
            name: tuple(None if b is None else STEP_COLUMNS[name](b) for b in bins)
            for name in COLUMNS
        }
        steps = tuple(0 if each is None else each.steps for each in bins)
        return replace(line, steps=steps, **columns)

    def added_to_totals(self, counted: StepTotals) -> StepTotals:
        """Return a server's counts with those of its steps."""
        return replace(
            counted,
            count=self.totals.count,
            batch_mean=self.totals.batch_mean,
            batch_max=self.totals.batch_max,
            duration_s=self.totals.duration_s,
            prefill_tokens=self.totals.prefill_tokens,
        )


class SavedServerSteps(msgspec.Struct, array_like=True):
    """ServerSteps as checkpoints keep them, without rows."""

    history: SavedHistory
    latest: Step | None


class ServerSteps:
    """Counts the steps that servers publish, apart from those of probes."""

    def __init__(self) -> None:
        self.counter = StepCounter()
        self._history = History()
        self._latest: Step | None = None

    def take(self, step: Step) -> None:
        ended = EndedStep(step, 0, (None, None, None), 0, None, None)
        self.counter.add(ended)
        self._history.add_step(ended)
        self._latest = step

    def shown(self, now_ns: int, window: Window) -> PublishedSteps | None:
        """Return the steps of a window; None if no server ever published one."""
        if self._latest is None:
            return None
        total = self.counter.over(now_ns, window)
        start_ns, bin_ns, bins = self._history.columns(now_ns, window)
        return PublishedSteps(
            totals=StepTotals(
                count=total.rows,
                batch_mean=ratio(total.sums["batch"], total.rows),
                batch_max=total.maxima["batch"] if total.rows else None,
                duration_s=self.counter.durations(now_ns, window),
                prefill_tokens=total.sums["prefill_tokens"],
            ),
            start_ns=start_ns,
            bin_ns=bin_ns,
            bins=bins,
            latest=self._latest,
        )

    def saved(self, parts: Parts) -> SavedServerSteps:
        """Return the state for a checkpoint; its rows are saved by their names."""
        return SavedServerSteps(self._history.saved(parts), self._latest)

    def restore(self, saved: SavedServerSteps, parts: WrittenParts) -> None:
        self._history.restore(saved.history, parts)
        self._latest = saved.latest
