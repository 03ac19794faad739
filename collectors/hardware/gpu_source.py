"""What a source of GPU readings is: NVML today, another maker's driver tomorrow.

A source is owned by one thread, which probes it, reads it again and again, and closes
it. Whatever cannot be read is a reason, told in ``GpuInfo.missing``; nothing is raised.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Protocol

from collectors.contract.readings import AnyReading


class Kind(StrEnum):
    """What a reading is, so that nobody ever shows one as another."""

    BANDWIDTH = "share of what the memory could move"
    CYCLES = "share of cycles"
    TIME = "share of time in which anything was under way"
    RATE = "amount a second"
    LEVEL = "as of the moment"
    COUNTER = "rises until the driver is loaded anew"


KINDS = {
    "dram_active": Kind.BANDWIDTH,
    "sm_active": Kind.CYCLES,
    "sm_occupancy": Kind.CYCLES,
    "tensor_active": Kind.CYCLES,
    "gpu_busy": Kind.TIME,
    "memory_busy": Kind.TIME,
    "peak_bytes_per_s": Kind.RATE,
    "pcie_tx_bytes_per_s": Kind.RATE,
    "pcie_rx_bytes_per_s": Kind.RATE,
    "nvlink_tx_bytes_per_s": Kind.RATE,
    "nvlink_rx_bytes_per_s": Kind.RATE,
    "power_w": Kind.LEVEL,
    "power_limit_w": Kind.LEVEL,
    "sm_clock_mhz": Kind.LEVEL,
    "memory_clock_mhz": Kind.LEVEL,
    "throttle_reasons": Kind.LEVEL,
    "temperature_c": Kind.LEVEL,
    "memory_temperature_c": Kind.LEVEL,
    "memory_used_bytes": Kind.LEVEL,
    "memory_reserved_bytes": Kind.LEVEL,
    "energy_mj": Kind.COUNTER,
    "throttled_ns": Kind.COUNTER,
    "ecc_corrected": Kind.COUNTER,
    "ecc_uncorrected": Kind.COUNTER,
}
"""By field of :class:`collectors.contract.readings.GpuSample`; AMD's activity of the
memory controller is a share of time, for example."""


class Pace(Enum):
    """How often a reading is taken at most: what costs the driver more, rarely."""

    EACH = 0.0
    """Whenever there is a sweep."""
    SECOND = 1.0
    FEW_SECONDS = 5.0
    HALF_MINUTE = 30.0


TERA = 1e12
CLOSELY_HZ = 10.0
"""Sweeps a second at most: counters do not change faster."""


class Gpm(StrEnum):
    """Whether GPUs are asked for performance counters (NVML's GPM)."""

    AUTO = "auto"
    OFF = "off"
    FORCE = "force"
    """Even where drivers are known to fail with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """What people want of the GPUs."""

    gpus: tuple[str, ...] = ()
    """UUIDs, their beginnings, or the driver's numbers; else all that
    CUDA_VISIBLE_DEVICES lets be seen."""
    peak_gbps: float | None = None
    """What the memory could move, where people know better."""
    peak_tflops: float | None = None
    """What one GPU could compute at the dtype of the model, likewise."""
    gpm: Gpm = Gpm.AUTO
    rate_hz: float = 1.0
    """Sweeps a second while nobody looks closely."""
    dcgm: tuple[str, ...] = ()
    """Addresses of dcgm-exporters; else those are looked for that listen here."""

    @property
    def peak_flops(self) -> float | None:
        """FLOP/s that people say a GPU has."""
        return None if self.peak_tflops is None else self.peak_tflops * TERA


class GpuSource(Protocol):
    """GPUs of this host by one driver; every method is called by one thread."""

    def probe(self) -> Sequence[AnyReading]:
        """Which GPUs there are, or one reading that says why there is none."""
        ...

    def read(self, due: Collection[Pace]) -> Sequence[AnyReading]:
        """One sweep of all GPUs: what is due, what was lost, and what came back."""
        ...

    @property
    def idle_s(self) -> float | None:
        """Nothing can be read for so long; 0 while it can, None: until asked again."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...
