"""GPU performance counters by NVML's GPM, each measured between two samples.

Two sample buffers are swapped, so windows follow each other without a gap. Below 0.1 s
the driver's own samples do not change, and byte rates would be zero.
"""

import time
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, NamedTuple

import pynvml

from collectors.contract.clock import NS_PER_S
from collectors.hardware.nvml_errors import FAILURES, NOT_SUPPORTED

MIB = 1 << 20
METRICS = {
    "sm_active": (pynvml.NVML_GPM_METRIC_SM_UTIL, 0.01),
    "sm_occupancy": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, 0.01),
    "tensor_active": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.01),
    "dram_active": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 0.01),
    "pcie_tx_bytes_per_s": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, MIB),
    "pcie_rx_bytes_per_s": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, MIB),
    "nvlink_rx_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, MIB),
    "nvlink_tx_bytes_per_s": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, MIB),
}
"""NVML metric id and factor to our unit, by field of GpuSample."""
SHORTEST_NS = NS_PER_S // 10
WAITED_FOR_NS = NS_PER_S // 200
"""A read that is early by no more than this waits; otherwise it is skipped."""


def free(samples: Iterable[Any]) -> list[Any]:
    """Free samples while NVML is open, and return those that could not be freed."""
    left = []
    for sample in samples:
        try:
            pynvml.nvmlGpmSampleFree(sample)
        except FAILURES:
            left.append(sample)
    return left


class GpmWindow(NamedTuple):
    """Counter values between two samples."""

    t_ns: int
    span_ns: int
    values: dict[str, float]
    codes: dict[str, int]
    """NVML error code of each metric without a value."""


class GpmSampler:
    """GPM counters of one GPU, or of one MIG GPU instance."""

    def __init__(
        self, handle: Any, now_ns: Callable[[], int], instance: int | None = None
    ) -> None:
        """Take a first sample, which proves that GPM works.

        Raises:
            NVMLError: the GPU has no counters, or we lack permission.
        """
        self._handle, self._now_ns, self._instance = handle, now_ns, instance
        self._old_ns: int | None = None
        """When the older sample was taken; None if it cannot be used."""
        self._samples: list[Any] = []
        try:
            if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise pynvml.NVMLError(NOT_SUPPORTED)
            self._samples.append(pynvml.nvmlGpmSampleAlloc())
            self._samples.append(pynvml.nvmlGpmSampleAlloc())
            self._take(self._samples[0])
        except FAILURES:
            self.close()
            raise
        self._old_ns = now_ns()
        self._asked = pynvml.c_nvmlGpmMetricsGet_t()
        self._asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._asked.numMetrics = len(METRICS)
        self._slots = list(zip(METRICS.items(), self._asked.metrics, strict=False))
        for (_, (metric, _)), slot in self._slots:
            slot.metricId = metric

    def read(self) -> GpmWindow | None:
        """Values since the last call; None without a previous sample or if too early.

        Raises:
            NVMLError: the call failed; the window to the next call is lost too.
        """
        if self._old_ns is not None:
            early_ns = self._old_ns + SHORTEST_NS - self._now_ns()
            if early_ns > WAITED_FOR_NS:
                return None
            if early_ns > 0:
                time.sleep(early_ns / NS_PER_S)
        older_ns, self._old_ns = self._old_ns, None  # in case a call fails
        older, newer = self._samples
        self._take(newer)
        newer_ns = self._now_ns()
        window = None
        if older_ns is not None:
            self._asked.sample1, self._asked.sample2 = older, newer
            pynvml.nvmlGpmMetricsGet(self._asked)
            window = self._window(older_ns, newer_ns)
        self._samples = [newer, older]
        self._old_ns = newer_ns
        return window

    def close(self) -> list[Any]:
        """Free the samples and return those that could not be freed."""
        samples, self._samples = self._samples, []
        return free(samples)

    def _take(self, sample: Any) -> None:
        if self._instance is None:
            pynvml.nvmlGpmSampleGet(self._handle, sample)
        else:
            pynvml.nvmlGpmMigSampleGet(self._handle, self._instance, sample)

    def _window(self, older_ns: int, newer_ns: int) -> GpmWindow:
        values: dict[str, float] = {}
        codes: dict[str, int] = {}
        for (field, (_, unit)), slot in self._slots:
            if code := slot.nvmlReturn:
                codes[field] = code
            elif isfinite(value := slot.value):
                values[field] = value * unit
        return GpmWindow(newer_ns, newer_ns - older_ns, values, codes)
