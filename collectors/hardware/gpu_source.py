"""The interface of a GPU driver: NVML today, another vendor's tomorrow.

One thread owns a source: it probes, reads repeatedly, and closes it. Nothing is raised;
reasons for missing values are in ``GpuInfo.missing``.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Protocol

from collectors.contract.readings import AnyReading


class GpuValueKind(StrEnum):
    """What a GPU value measures, so that different kinds are never mixed up."""

    BANDWIDTH = "share of what the memory could move"
    CYCLES = "share of cycles"
    TIME = "share of time in which anything was under way"
    RATE = "amount a second"
    LEVEL = "as of the moment"
    COUNTER = "rises until the driver is loaded anew"


KINDS = {
    "dram_active": GpuValueKind.BANDWIDTH,
    "sm_active": GpuValueKind.CYCLES,
    "sm_occupancy": GpuValueKind.CYCLES,
    "tensor_active": GpuValueKind.CYCLES,
    "gpu_busy": GpuValueKind.TIME,
    "memory_busy": GpuValueKind.TIME,
    "peak_bytes_per_s": GpuValueKind.RATE,
    "pcie_tx_bytes_per_s": GpuValueKind.RATE,
    "pcie_rx_bytes_per_s": GpuValueKind.RATE,
    "nvlink_tx_bytes_per_s": GpuValueKind.RATE,
    "nvlink_rx_bytes_per_s": GpuValueKind.RATE,
    "power_w": GpuValueKind.LEVEL,
    "power_limit_w": GpuValueKind.LEVEL,
    "sm_clock_mhz": GpuValueKind.LEVEL,
    "memory_clock_mhz": GpuValueKind.LEVEL,
    "throttle_reasons": GpuValueKind.LEVEL,
    "temperature_c": GpuValueKind.LEVEL,
    "memory_temperature_c": GpuValueKind.LEVEL,
    "memory_used_bytes": GpuValueKind.LEVEL,
    "memory_reserved_bytes": GpuValueKind.LEVEL,
    "energy_mj": GpuValueKind.COUNTER,
    "throttled_ns": GpuValueKind.COUNTER,
    "ecc_corrected": GpuValueKind.COUNTER,
    "ecc_uncorrected": GpuValueKind.COUNTER,
}
"""By field of :class:`collectors.contract.readings.GpuSample`. On AMD, for example,
activity of the memory controller is a share of time."""


class ReadInterval(Enum):
    """Shortest interval between two reads; expensive values are read rarely."""

    EACH = 0.0
    """In every sweep."""
    SECOND = 1.0
    FEW_SECONDS = 5.0
    HALF_MINUTE = 30.0


TERA = 1e12
CLOSELY_HZ = 10.0
"""Most sweeps a second: counters do not update faster."""


class Gpm(StrEnum):
    """Whether to use GPM, NVML's performance counters."""

    AUTO = "auto"
    OFF = "off"
    FORCE = "force"
    """Even with drivers known to fail with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """The user's options for GPUs."""

    gpus: tuple[str, ...] = ()
    """UUIDs, prefixes of UUIDs, or NVML indices; empty: those CUDA_VISIBLE_DEVICES
    allows."""
    peak_gbps: float | None = None
    """Peak memory bandwidth in GB/s, overriding ours."""
    peak_tflops: float | None = None
    """Peak TFLOP/s of one GPU at the model's dtype."""
    gpm: Gpm = Gpm.AUTO
    rate_hz: float = 1.0
    """Sweeps a second in normal operation."""
    dcgm: tuple[str, ...] = ()
    """URLs of dcgm-exporters; empty: look for local ones."""

    @property
    def peak_flops(self) -> float | None:
        """Peak FLOP/s of one GPU, as given by the user; None if not given."""
        return None if self.peak_tflops is None else self.peak_tflops * TERA


class GpuSource(Protocol):
    """The GPUs of this host by one driver; all methods are called from one thread."""

    def probe(self) -> Sequence[AnyReading]:
        """Open the driver; the GPUs found, or one reading with the reason for none."""
        ...

    def read(self, due: Collection[ReadInterval]) -> Sequence[AnyReading]:
        """One sweep: values that are due, GPUs that were lost or returned."""
        ...

    @property
    def idle_s(self) -> float | None:
        """Seconds until a read can succeed; 0: now, None: only on request."""
        ...

    def close(self) -> None: ...
