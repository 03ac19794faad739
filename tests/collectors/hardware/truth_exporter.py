"""A dcgm-exporter whose GPUs do what a test knows, written from its documentation.

It stands for no driver and no DCGM: it proves how we read such pages. Values move by a
schedule: at its n-th collection each is what :func:`truth` says.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

GPU_A = "GPU-5f1b0c1e-0000-4000-8000-00000000000a"
GPU_B = "GPU-5f1b0c1e-0000-4000-8000-00000000000b"
RENAMED = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
    "DCGM_FI_PROF_SM_ACTIVE": "DCGM_FI_PROF_SM_UTIL_RATIO",
    "DCGM_FI_PROF_SM_OCCUPANCY": "DCGM_FI_PROF_SM_OCCUPANCY_RATIO",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "DCGM_FI_PROF_TENSOR_UTIL_RATIO",
    "DCGM_FI_PROF_DRAM_ACTIVE": "DCGM_FI_PROF_DRAM_UTIL_RATIO",
}
"""What DCGM 4.6 calls them."""
FP64_BLANK, INT64_BLANK, INT32_BLANK = 1 << 47, 0x7FFFFFFFFFFFFFF0, 0x7FFFFFF0
"""Each, and the three numbers after it: no value, not found, not supported, not
permitted."""
COUNTERS = {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"}


@dataclass(frozen=True)
class TruthGpu:
    """A GPU, or a MIG slice of one."""

    uuid: str = GPU_A
    index: int = 0
    model: str = "NVIDIA A100-SXM4-80GB"
    instance: int | None = None
    profile: str = "1g.10gb"


def truth(gpu: TruthGpu, collection: int) -> dict[str, float]:
    """What the default CSV file shows of a GPU, at its n-th collection from 0.

    Its fields of SM activity are commented out there.
    """
    busy = (collection % 5 + 1) / 10 + gpu.index / 100
    if gpu.instance is not None:
        busy += gpu.instance / 1000
    return {
        "DCGM_FI_DEV_SM_CLOCK": 1410,
        "DCGM_FI_DEV_MEM_CLOCK": 1593,
        "DCGM_FI_DEV_MEMORY_TEMP": 61 + collection,
        "DCGM_FI_DEV_GPU_TEMP": 52 + collection,
        "DCGM_FI_DEV_POWER_USAGE": 300 + busy,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 7_000_000 + 300_000 * collection,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
        "DCGM_FI_DEV_GPU_UTIL": 97,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 60,
        "DCGM_FI_DEV_XID_ERRORS": 0,
        "DCGM_FI_DEV_FB_FREE": 1_000,
        "DCGM_FI_DEV_FB_USED": 80_000,
        "DCGM_FI_DEV_FB_RESERVED": 920,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.99,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": busy / 2,
        "DCGM_FI_PROF_DRAM_ACTIVE": busy,
        "DCGM_FI_PROF_PCIE_TX_BYTES": 1_500_000,
        "DCGM_FI_PROF_PCIE_RX_BYTES": 2_500_000,
    }


ALL_OF_PROFILING = {
    "DCGM_FI_PROF_SM_ACTIVE": 0.75,
    "DCGM_FI_PROF_SM_OCCUPANCY": 0.25,
    "DCGM_FI_PROF_NVLINK_TX_BYTES": 3_000_000,
    "DCGM_FI_PROF_NVLINK_RX_BYTES": 4_000_000,
}


@dataclass
class TruthExporter:
    """Its page, as of a collection; values given here replace those of the schedule."""

    gpus: tuple[TruthGpu, ...] = (TruthGpu(),)
    collection: int = 0
    new_names: bool = False
    """DCGM 4.6 and the exporter that goes with it."""
    hostname: str = "gpu-node-1"
    driver: str = "580.65.06 simulated"
    extra: tuple[tuple[str, str], ...] = ()
    """More labels, such as of a pod."""

    instead: dict[str, float | str | None] = field(default_factory=dict)
    """By metric; None leaves it out."""

    def collect(self) -> str:
        """Have new values, and show them."""
        self.collection += 1
        return self.page()

    def page(self) -> str:
        """What it answers at ``/metrics``."""
        lines: dict[str, list[str]] = {}
        for gpu in self.gpus:
            values = {**truth(gpu, self.collection), **self.instead}
            for metric, value in values.items():
                if value is not None:
                    name = RENAMED.get(metric, metric) if self.new_names else metric
                    lines.setdefault(name, []).append(self._line(name, gpu, value))
        return "".join(
            f"# HELP {name} as the CSV file says.\n# TYPE {name} "
            f"{'counter' if name in COUNTERS else 'gauge'}\n{''.join(written)}"
            for name, written in lines.items()
        )

    def _line(self, name: str, gpu: TruthGpu, value: float | str) -> str:
        labels = [
            ("gpu", str(gpu.index)),
            ("UUID", gpu.uuid),
            ("pci_bus_id", f"00000000:{gpu.index + 7:02X}:00.0"),
            ("device", f"nvidia{gpu.index}"),
            ("modelName", gpu.model),
        ]
        if gpu.instance is not None:
            labels += [("GPU_I_PROFILE", gpu.profile), ("GPU_I_ID", str(gpu.instance))]
        host = "hostname" if self.new_names else "Hostname"
        labels += [(host, self.hostname), *self.extra]
        if self.driver:
            labels.append(("DCGM_FI_DRIVER_VERSION", self.driver))
        if name == "DCGM_FI_DEV_XID_ERRORS":
            labels += [("err_code", str(value)), ("err_msg", f"error {value}")]
        shown = f"{value:f}" if isinstance(value, float) else str(value)
        return f"{name}{{{_written(labels)}}} {shown}\n"


def _written(labels: Iterable[tuple[str, str]]) -> str:
    return ",".join(f'{key}="{text}"' for key, text in labels)
