"""Parses the page of a dcgm-exporter: values by GPU, and why others are missing.

The exporter writes one line per field and GPU, named as in the CSV file it was started
with (https://github.com/NVIDIA/dcgm-exporter#changing-metrics). DCGM has renamed some
fields; both names are accepted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from collectors.servers.exposition import (
    ExpositionError,
    read_labels,
    read_number,
    split_line,
)

MIB = 1024 * 1024
MOST_SERIES = 50_000
MOST_GPUS = 256
"""More than a host has, MIG slices included."""
LONGEST_LABEL = 256
RATIO = 10.0
"""Largest ratio accepted: MIG slices slightly exceed 1."""
BYTES_PER_S = 1e14
COUNTED = 2.0**63


class DcgmField(NamedTuple):
    """A field of ``GpuSample`` on the page."""

    metrics: tuple[str, ...]
    """The field's metric names, newest first."""
    help: str
    """Help text in the CSV line that enables the field."""
    most: float = COUNTED
    """Larger values are discarded."""
    scale: float = 1.0


AVERAGES = {
    "dram_active": DcgmField(
        ("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO"),
        "memory active",
        RATIO,
    ),
    "sm_active": DcgmField(
        ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"), "SM active", RATIO
    ),
    "sm_occupancy": DcgmField(
        ("DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_SM_OCCUPANCY_RATIO"),
        "SM occupancy",
        RATIO,
    ),
    "tensor_active": DcgmField(
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
        "tensor pipes active",
        RATIO,
    ),
    "pcie_tx_bytes_per_s": DcgmField(
        ("DCGM_FI_PROF_PCIE_TX_BYTES",), "PCIe sent", BYTES_PER_S
    ),
    "pcie_rx_bytes_per_s": DcgmField(
        ("DCGM_FI_PROF_PCIE_RX_BYTES",), "PCIe received", BYTES_PER_S
    ),
    "nvlink_tx_bytes_per_s": DcgmField(
        ("DCGM_FI_PROF_NVLINK_TX_BYTES",), "NVLink sent", BYTES_PER_S
    ),
    "nvlink_rx_bytes_per_s": DcgmField(
        ("DCGM_FI_PROF_NVLINK_RX_BYTES",), "NVLink received", BYTES_PER_S
    ),
}
"""DCGM's profiling fields, also available of a MIG slice."""
MEMORY = {
    "memory_used_bytes": DcgmField(
        ("DCGM_FI_DEV_FB_USED",), "memory used", COUNTED, MIB
    ),
    "memory_reserved_bytes": DcgmField(
        ("DCGM_FI_DEV_FB_RESERVED",), "memory reserved", COUNTED, MIB
    ),
}
"""Memory fields, also available of a MIG slice."""
BOARD = {
    "gpu_busy": DcgmField(("DCGM_FI_DEV_GPU_UTIL",), "GPU busy", 100, 0.01),
    "memory_busy": DcgmField(("DCGM_FI_DEV_MEM_COPY_UTIL",), "memory busy", 100, 0.01),
    "power_w": DcgmField(("DCGM_FI_DEV_POWER_USAGE",), "power", 1e5),
    "power_limit_w": DcgmField(
        ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT"),
        "power limit",
        1e5,
    ),
    "sm_clock_mhz": DcgmField(("DCGM_FI_DEV_SM_CLOCK",), "SM clock", 1e6),
    "memory_clock_mhz": DcgmField(("DCGM_FI_DEV_MEM_CLOCK",), "memory clock", 1e6),
    "throttle_reasons": DcgmField(
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),
        "why clocks are held down",
    ),
    "temperature_c": DcgmField(("DCGM_FI_DEV_GPU_TEMP",), "temperature", 1e3),
    "memory_temperature_c": DcgmField(
        ("DCGM_FI_DEV_MEMORY_TEMP",), "memory temperature", 1e3
    ),
    "energy_mj": DcgmField(
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",), "energy since the driver was loaded"
    ),
    "ecc_corrected": DcgmField(("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",), "ECC corrected"),
    "ecc_uncorrected": DcgmField(("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",), "ECC uncorrected"),
}
"""Fields of the whole board, even in a line about a MIG slice."""
THROTTLED = {
    "power_cap": DcgmField(("DCGM_FI_DEV_POWER_VIOLATION",), "power-capped time"),
    "thermal": DcgmField(("DCGM_FI_DEV_THERMAL_VIOLATION",), "thermally held time"),
    "sync_boost": DcgmField(("DCGM_FI_DEV_SYNC_BOOST_VIOLATION",), "sync boost time"),
}
"""Violation counters by key of ``GpuSample.throttled_ns``: nanoseconds, although the
help text in older CSV files says µs."""
FACTS = {
    "memory_total": DcgmField(("DCGM_FI_DEV_FB_TOTAL",), "", COUNTED, MIB),
    "memory_free": DcgmField(("DCGM_FI_DEV_FB_FREE",), "", COUNTED, MIB),
    "max_sm_clock_mhz": DcgmField(("DCGM_FI_DEV_MAX_SM_CLOCK",), "", 1e6),
    "max_memory_clock_mhz": DcgmField(("DCGM_FI_DEV_MAX_MEM_CLOCK",), "", 1e6),
    "xid": DcgmField(("DCGM_FI_DEV_XID_ERRORS",), "", 1e6),
}
"""Fields that belong to no sample."""
_OF_SLICES = AVERAGES.keys() | MEMORY.keys() | {"memory_total", "memory_free"}
_WHOLE_NUMBERS = {
    *("sm_clock_mhz", "memory_clock_mhz", "throttle_reasons", "temperature_c"),
    *("memory_temperature_c", "memory_used_bytes", "memory_reserved_bytes"),
    *("energy_mj", "ecc_corrected", "ecc_uncorrected"),
}
_FIELDS = {**AVERAGES, **MEMORY, **BOARD, **THROTTLED, **FACTS}
_PLACES = {
    metric: (name, spec) for name, spec in _FIELDS.items() for metric in spec.metrics
}
PREFIX = "DCGM_FI_"
PROFILED = "DCGM_FI_PROF_"

NOT_YET = "DCGM has no value of it yet"
NOT_THERE = "DCGM does not find it on this GPU"
NOT_SUPPORTED = "DCGM says that this GPU does not support it"
NOT_PERMITTED = (
    "DCGM may not read it: run dcgm-exporter as root, in a container with "
    "--cap-add SYS_ADMIN"
)
_WHY_BLANK = (NOT_YET, NOT_THERE, NOT_SUPPORTED, NOT_PERMITTED)
_BLANKS = {
    float(first + code): why
    for first in (1 << 47, 0x7FFFFFF0)
    for code, why in enumerate(_WHY_BLANK)
}
"""DCGM's blank values, as doubles and 32-bit integers, and what they mean."""
_BLANK_64 = 0x7FFFFFFFFFFFFFF0
"""The first 64-bit blank value; a double cannot tell them apart."""


@dataclass(slots=True)
class DcgmGpu:
    """A GPU, or a MIG slice of one, on the page."""

    uuid: str
    """UUID of the whole GPU."""
    instance: str
    """Id of the MIG GPU instance; empty for a whole GPU."""
    labels: Mapping[str, str]
    values: dict[str, float] = field(default_factory=dict)
    """By field of ``GpuSample``, of ``throttled_ns``, or of ``FACTS``."""
    blank: dict[str, str] = field(default_factory=dict)
    """Why a field has no value, by field."""
    xid_text: str = ""
    """Description of the last Xid error."""

    @property
    def source(self) -> str:
        """UUID of the GPU, followed by the MIG slice's id if this is a slice."""
        return f"{self.uuid}/GI-{self.instance}" if self.instance else self.uuid

    def readings(self, names: Iterator[str]) -> dict[str, float | int]:
        """Values of those named fields that have one, in the types of ``GpuSample``."""
        return {
            name: round(value) if name in _WHOLE_NUMBERS else value
            for name in names
            if (value := self.values.get(name)) is not None
        }


@dataclass(frozen=True, slots=True)
class _Series:
    """A line of the page without its value."""

    name: str
    spec: DcgmField
    uuid: str
    instance: str
    labels: Mapping[str, str]


class DcgmPage:
    """Parses page after page; each series is parsed once."""

    def __init__(self) -> None:
        self._series: dict[str, _Series | None] = {}

    def read(self, text: str) -> list[DcgmGpu]:
        """GPUs and MIG slices on the page.

        Raises:
            ExpositionError: the text is truncated, or no dcgm-exporter wrote it.
        """
        if text and not text.endswith("\n"):
            raise ExpositionError("the answer broke off in the middle")
        if len(self._series) > MOST_SERIES:
            self._series.clear()
        lines = [line for line in text.split("\n") if line.startswith(PREFIX)]
        if not lines:
            raise ExpositionError(
                "it is not a dcgm-exporter: it tells no DCGM_FI_ fields"
            )
        gpus: dict[str, DcgmGpu] = {}
        for line in lines[:MOST_SERIES]:
            head, number = split_line(line)
            if head not in self._series:
                self._series[head] = _series(head)
            if (series := self._series[head]) is not None:
                _take(gpus, series, number)
        if not gpus:
            raise ExpositionError("it tells of no GPU")
        return list(gpus.values())


def _series(head: str) -> _Series | None:
    """The series of a line; None if its field is not kept."""
    place = _PLACES.get(head.partition("{")[0].rstrip())
    labels = read_labels(head) if place else None
    if place is None or labels is None:
        return None
    short = {key: text[:LONGEST_LABEL] for key, text in labels.items()}
    uuid = short.get("UUID") or short.get("uuid")
    if not uuid:
        return None
    name, spec = place
    instance = short.get("GPU_I_ID", "") if name in _OF_SLICES else ""
    return _Series(name, spec, uuid, instance, short)


def _take(gpus: dict[str, DcgmGpu], series: _Series, text: str) -> None:
    gpu = DcgmGpu(series.uuid, series.instance, series.labels)
    if gpu.source not in gpus:
        if len(gpus) >= MOST_GPUS:
            return
        gpus[gpu.source] = gpu
    gpu = gpus[gpu.source]
    number = read_number(text)
    if number is None or series.name in gpu.values:
        return  # a GPU shared by several pods has a line for each
    if why := _why_blank(number, text):
        gpu.blank[series.name] = why
    elif number <= series.spec.most:
        gpu.values[series.name] = number * series.spec.scale
        if series.name == "xid":
            gpu.xid_text = series.labels.get("err_msg", "")


def _why_blank(value: float, text: str) -> str | None:
    """Why DCGM has no value; None if the value is valid."""
    if value >= _BLANK_64:
        exact = text.isdecimal() and len(text) <= len(str(_BLANK_64))
        code = int(text) - _BLANK_64 if exact else 0
        return _WHY_BLANK[code] if code < len(_WHY_BLANK) else NOT_YET
    return _BLANKS.get(value)


def why_missing(gpu: DcgmGpu, name: str, spec: DcgmField) -> str:
    """Why a field is missing on the page, and how to enable it."""
    if name in gpu.blank:
        return gpu.blank[name]
    metric = spec.metrics[0]
    if metric.startswith(PROFILED) and not gpu.values.keys() & AVERAGES.keys():
        return (
            "dcgm-exporter has no profiling fields of it: run it with --cap-add "
            f"SYS_ADMIN and {metric} in its CSV file; GeForce before RTX 50 and GPUs "
            "before Volta have none"
        )
    return (
        "dcgm-exporter was not told to show it: add the line "
        f"'{metric}, gauge, {spec.help}' to its CSV file (-f FILE)"
    )
