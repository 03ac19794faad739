"""Detects when the clocks of a GPU are throttled, which explains slow steps."""

from collections import deque
from statistics import median_low

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import GpuSample

USUAL_SAMPLES = 32
LEAST_SAMPLES = 4
DROP = 0.9
"""Clock / usual clock below which a GPU is throttled."""
LONGEST_NS = 10 * NS_PER_S
"""Longest time since the previous sample that a sample stands for."""
MOST_GPUS = 100
HELD_DOWN = 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80
"""NVML's clocks event reasons, without an idle GPU and clocks set by users."""


class SavedClock(msgspec.Struct, array_like=True):
    """One GPU's latest sample time, recent clocks, and reasons for throttling."""

    t_ns: int
    mhz: list[int]
    reasons: int | None


class ClockDrops:
    """Follows the SM clock of each GPU."""

    def __init__(self) -> None:
        self._gpus: dict[str, SavedClock] = {}

    def take(self, sample: GpuSample) -> tuple[int, int] | None:
        """Return the span in which this GPU was throttled; None if it was not."""
        gpu = self._gpus.get(sample.source)
        if gpu is None:
            if len(self._gpus) >= MOST_GPUS:
                return None
            gpu = self._gpus[sample.source] = SavedClock(sample.t_ns, [], None)
        if sample.throttle_reasons is not None:
            gpu.reasons = sample.throttle_reasons
        if sample.sm_clock_mhz is None:
            return None
        before = deque(gpu.mhz, maxlen=USUAL_SAMPLES)
        since_ns, t_ns = max(gpu.t_ns, sample.t_ns - LONGEST_NS), sample.t_ns
        before.append(sample.sm_clock_mhz)
        usual_mhz = median_low(gpu.mhz) if len(gpu.mhz) >= LEAST_SAMPLES else 0
        gpu.t_ns, gpu.mhz = t_ns, list(before)
        is_throttled = gpu.reasons is None or gpu.reasons & HELD_DOWN
        if is_throttled and sample.sm_clock_mhz < DROP * usual_mhz:
            return since_ns, t_ns
        return None

    def saved(self) -> dict[str, SavedClock]:
        return self._gpus

    def restore(self, saved: dict[str, SavedClock]) -> None:
        self._gpus = saved
