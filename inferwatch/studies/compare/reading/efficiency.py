"""MBU and MFU of a session, derived from the batch of each step as on Limits.

The same trackers follow the same readings; what each step moved and computed is summed
by bin of time, against what its devices could have done in the time that it took.
"""

import numpy as np

from collectors.contract.readings import (
    AnyReading,
    Endpoint,
    EngineInfo,
    GpuInfo,
    MeasuredPeak,
    ModelConfig,
    Note,
    NoteKind,
    RequestEvent,
    Step,
)
from inferwatch.metrics.floor.tracker import FloorTracker
from inferwatch.metrics.floor.traffic import TrafficTracker
from inferwatch.metrics.steps.engines import Engines
from inferwatch.studies.compare.reading.session_numbers import RatioSums
from inferwatch.studies.compare.reading.span import ComparedSpan
from inferwatch.studies.compare.statistics.resampling import BINS

NS_PER_S = 1e9
ABOUT = (EngineInfo, ModelConfig, MeasuredPeak, GpuInfo, Endpoint)
"""What the cost of a step follows from; all of it is known before the first step."""


class Batches:
    """Follows the context of each step, and sums what steps did by bin."""

    def __init__(self, span: ComparedSpan) -> None:
        self._span = span
        self._engines, self._traffic = Engines(), TrafficTracker()
        self._floors = FloorTracker(self._engines, self._traffic)
        self._rows: list[tuple[float, ...]] = []
        """Of each step: its end, seconds · peaks, bytes and FLOP."""

    @property
    def known(self) -> bool:
        """Whether some rank's steps have a cost and a peak."""
        needs = [self._floors.needs(key) for key in self._engines.ranks]
        return any(each and (each.ns_per_byte or each.ns_per_flop) for each in needs)

    def about(self, reading: AnyReading) -> None:
        """Take what the cost of a step follows from."""
        if isinstance(reading, EngineInfo):
            self._engines.take_info(reading)
            self._traffic.info(reading)
            self._floors.info(reading)
        elif isinstance(reading, ModelConfig):
            self._engines.take_config(reading)
            self._floors.config(reading)
        elif isinstance(reading, MeasuredPeak):
            self._floors.devices.measured(reading)
        elif isinstance(reading, GpuInfo):
            self._floors.devices.gpu(reading)
        elif isinstance(reading, Endpoint):
            self._engines.endpoints[reading.source] = reading
            self._floors.changed()

    def take(self, reading: AnyReading) -> None:
        """Take a reading in order of receipt."""
        if isinstance(reading, Step):
            self._step(reading)
        elif isinstance(reading, RequestEvent):
            if reading.ordinal is not None:
                self._traffic.event(reading)
        elif isinstance(reading, Note):
            if reading.kind is NoteKind.LOST:
                self._traffic.lost(reading.source)
        elif isinstance(reading, EngineInfo):
            self.about(reading)

    def _step(self, step: Step) -> None:
        if step.memberless:
            return
        followed = self._traffic.step(step)
        needs = self._floors.needs((step.source, step.rank))
        if needs is None or followed is None or not followed.tokens:
            return
        if not self._span.start_ns <= step.end_ns < self._span.end_ns:
            return
        traffic, spent_s = needs.traffic_of(followed), step.duration_ns / NS_PER_S
        peak = needs.peak
        moved = traffic.weight_bytes + traffic.kv_bytes if peak.bytes_per_s else 0.0
        flops = needs.flops_of(followed, len(step.members)) if peak.flops else 0.0
        could_move = spent_s * (peak.bytes_per_s or 0.0)
        could_compute = spent_s * (peak.flops or 0.0)
        self._rows.append((step.end_ns, moved, could_move, flops, could_compute))

    def sums(self) -> dict[str, RatioSums]:
        """What was done of what could have been, per bin."""
        if not self._rows:
            return {}
        ends_ns, *amounts = np.array(self._rows, np.float64).T
        place = self._span.bin_of(ends_ns.astype(np.int64))
        moved, could_move, flops, could_compute = (
            np.bincount(place, each, minlength=BINS).astype(np.float64)
            for each in amounts
        )
        found = {"mbu": (moved, could_move), "mfu": (flops, could_compute)}
        return {
            key: RatioSums(above=above, below=below, n=len(self._rows))
            for key, (above, below) in found.items()
            if below.any()
        }
