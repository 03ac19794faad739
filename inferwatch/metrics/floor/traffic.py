"""Memory traffic over time, as derived from steps."""

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import EngineInfo, RequestEvent, Step
from inferwatch.metrics.floor.derived import (
    DerivedTraffic,
    EngineTraffic,
    RankTraffic,
    StepTraffic,
)
from inferwatch.metrics.series.curves import Grid
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.spans import SavedSpans, Spans, told_of
from inferwatch.metrics.series.window import Window

GATHERED_NS = 100_000_000
"""Longest time of steps gathered before they are added to bins together."""


class Gathered(msgspec.Struct, array_like=True):
    """Steps not yet in bins: their time span and the bytes they read."""

    begin_ns: int
    end_ns: int
    weight_bytes: float = 0
    kv_bytes: float = 0


class SavedTraffic(msgspec.Struct, array_like=True):
    """A TrafficTracker as checkpoints keep it."""

    engines: dict[str, EngineTraffic]
    gathered: Gathered | None
    end_ns: int
    spans: SavedSpans


class TrafficTracker:
    """Folds the bytes that each step read, as computed for the floors."""

    def __init__(self) -> None:
        self._derived = DerivedTraffic()
        self._spans = Spans(2)
        """Rates of weight bytes and of KV bytes."""
        self._gathered: Gathered | None = None
        self._end_ns = 0
        """End of the data in bins."""

    def info(self, info: EngineInfo) -> None:
        self._derived.info(info)

    def event(self, event: RequestEvent) -> None:
        self._derived.event(event)

    def lost(self, source: str) -> None:
        self._derived.lost(source)

    def windowed(
        self, source: str, rank: int, window: int | None, *, chunked: bool = False
    ) -> None:
        self._derived.windowed(source, rank, window, chunked=chunked)

    def step(self, step: Step) -> RankTraffic | None:
        """Return the context of the step's members; None where it is not known."""
        return self._derived.step(step)

    def moved(self, step: Step, traffic: StepTraffic) -> None:
        """Add the bytes that a step moved, spread over its duration."""
        begin_ns, held = step.end_ns - max(step.duration_ns, 1), self._gathered
        if held is not None and not (
            held.begin_ns <= step.end_ns <= held.begin_ns + GATHERED_NS
        ):
            self._put(held)
            held = None
        if held is None:
            held = self._gathered = Gathered(begin_ns, step.end_ns)
        held.begin_ns = min(held.begin_ns, begin_ns)
        held.end_ns = max(held.end_ns, step.end_ns)
        held.weight_bytes += traffic.weight_bytes
        held.kv_bytes += traffic.kv_bytes

    def rates(self, window: Window, grid: Grid) -> tuple[float | None, ...]:
        """Return the bytes per second in each bin; empty where none are derived."""
        if not self._end_ns:
            return ()
        weights, kv = self._spans.columns(window, grid).T
        begun_ns = np.clip(self._end_ns - grid.edges_ns()[:-1], 1, grid.bin_ns)
        read = weights + kv
        return told_of(np.where(read > 0, read * NS_PER_S / begun_ns, np.nan))

    def over(
        self, end_ns: int, window: Window, covered_ns: int
    ) -> tuple[float | None, float | None]:
        """Return bytes per second, and the weights' share of them; None if unknown."""
        if not self._end_ns:
            return None, None
        sums = self._spans.over(end_ns, window)
        total = float(sums.sum())
        rate = total * NS_PER_S / covered_ns if covered_ns else None
        return rate, float(sums[0]) / total if total else None

    def saved(self, parts: Parts) -> SavedTraffic:
        """Return the state for a checkpoint; encode it before the next reading."""
        return SavedTraffic(
            self._derived.saved(),
            self._gathered,
            self._end_ns,
            self._spans.saved(parts),
        )

    def restore(self, saved: SavedTraffic, parts: WrittenParts) -> None:
        self._derived.restore(saved.engines)
        self._gathered, self._end_ns = saved.gathered, saved.end_ns
        self._spans.restore(saved.spans, parts)

    def _put(self, gathered: Gathered) -> None:
        """Add gathered steps to the bins, where they become visible."""
        took_ns = gathered.end_ns - gathered.begin_ns
        read = np.array([gathered.weight_bytes, gathered.kv_bytes], np.float64)
        self._spans.add(gathered.begin_ns, gathered.end_ns, read / took_ns)
        self._end_ns = max(self._end_ns, gathered.end_ns)
