"""GPUs as screens show them: each by itself, and the engine's together."""

from dataclasses import dataclass, field
from typing import Annotated

from collectors.contract.readings import GpuInfo, Vantage
from inferwatch.metrics.number import LATEST_READING, NOW, Better, Number, Unit, piece

OF_THE_SAMPLE = "of the latest sample, over what it covers"
"""Span of averages from GPM and DCGM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTimeline:
    """Charts of one GPU, in the bins of the snapshot's timeline; None is a gap."""

    hbm_bytes_per_s: tuple[float | None, ...] = ()
    hbm_share: tuple[float | None, ...] = ()
    sm_active: tuple[float | None, ...] = ()
    sm_occupancy: tuple[float | None, ...] = ()
    tensor_active: tuple[float | None, ...] = ()
    memory_busy: tuple[float | None, ...] = ()
    power_w: tuple[float | None, ...] = ()
    sm_clock_mhz: tuple[float | None, ...] = ()
    throttled: tuple[float | None, ...] = ()
    """Share of time in which clocks were throttled, 0-1."""
    memory_used_bytes: tuple[float | None, ...] = ()
    pcie_bytes_per_s: tuple[float | None, ...] = ()
    nvlink_bytes_per_s: tuple[float | None, ...] = ()


@piece("gpu", Vantage.GPU)
class GpuState:
    """One GPU or MIG slice: latest values, and over the window.

    A value is the latest one of its field; ``*_mean`` and fields that say so are over
    the window. Shares are 0-1.
    """

    source: str
    """Its UUID."""
    info: GpuInfo
    watched: Annotated[
        bool | None,
        Number(
            "engine's",
            "Used by the engine",
            "Whether an engine that is watched runs on this GPU: as it says itself, "
            "or because a process of it uses its memory.",
            span=NOW,
        ),
    ] = None
    """None where not known."""
    via: Annotated[
        str | None,
        Number(
            "via",
            "Measured by",
            "Who measured the averages: gpm, the driver itself on Hopper and newer, "
            "or dcgm, an exporter.",
            span=NOW,
        ),
    ] = None
    """None without any averages."""
    last_ns: Annotated[
        int | None,
        Number(
            "last",
            "Last sample",
            "Session time of the last sample of this GPU.",
            unit=Unit.NANOSECONDS,
            span=NOW,
        ),
    ] = None
    span_s: Annotated[
        float | None,
        Number(
            "over",
            "Span of the averages",
            "How much time the latest averages cover, up to the last sample.",
            unit=Unit.SECONDS,
            span=NOW,
        ),
    ] = None
    hbm_bytes_per_s: Annotated[
        float | None,
        Number(
            "HBM",
            "Memory bandwidth",
            "Bytes that the GPU's memory moved, reads and writes together: the "
            "measured share times the peak by formula (2 × memory clock × bus width, "
            "at that moment's clock), or times the data sheet's where clock or width "
            "are not told, or yours with --peak-gbps.",
            unit=Unit.GIGABYTES_PER_SECOND,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    hbm_bytes_per_s_mean: Annotated[
        float | None,
        Number(
            "HBM mean",
            "Memory bandwidth, mean",
            "Mean of the memory bandwidth over what samples covered.",
            unit=Unit.GIGABYTES_PER_SECOND,
        ),
    ] = None
    hbm_share: Annotated[
        float | None,
        Number(
            "of peak",
            "Share of the peak bandwidth",
            "Share of what the memory could move that it did move, as the driver or "
            "DCGM measured it: of the peak by formula, as far as is known, which may "
            "be some percent above the data sheet's, and of which large copies reach "
            "about 90%.",
            unit=Unit.SHARE,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    hbm_share_mean: Annotated[
        float | None,
        Number(
            "of peak mean",
            "Share of the peak bandwidth, mean",
            "Mean of the share over what samples covered.",
            unit=Unit.SHARE,
        ),
    ] = None
    sm_active: Annotated[
        float | None,
        Number(
            "SM active",
            "SMs active",
            "Share of the cycles of all SMs in which at least one warp was assigned "
            "to them, even if it waited.",
            unit=Unit.SHARE,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    sm_active_mean: Annotated[
        float | None,
        Number(
            "SM active mean",
            "SMs active, mean",
            "Mean of the share over what samples covered.",
            unit=Unit.SHARE,
        ),
    ] = None
    sm_occupancy: Annotated[
        float | None,
        Number(
            "occupancy",
            "SM occupancy",
            "Share of the warps that the SMs could hold that they did hold.",
            unit=Unit.SHARE,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    tensor_active: Annotated[
        float | None,
        Number(
            "tensor",
            "Tensor pipes active",
            "Share of the cycles in which any tensor pipe was in use.",
            unit=Unit.SHARE,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    tensor_active_mean: Annotated[
        float | None,
        Number(
            "tensor mean",
            "Tensor pipes active, mean",
            "Mean of the share over what samples covered.",
            unit=Unit.SHARE,
        ),
    ] = None
    gpu_busy: Annotated[
        float | None,
        Number(
            "busy (time)",
            "GPU busy, of the time",
            "Share of time in which any kernel ran at all, however small: no measure "
            "of how much the GPU did.",
            unit=Unit.SHARE,
            span=LATEST_READING,
        ),
    ] = None
    memory_busy: Annotated[
        float | None,
        Number(
            "mem busy (time)",
            "Memory busy, of the time",
            "Share of time in which memory was read or written at all: one slow "
            "stream keeps it high, so it is never a bandwidth.",
            unit=Unit.SHARE,
            span=LATEST_READING,
        ),
    ] = None
    power_w: Annotated[
        float | None,
        Number(
            "power",
            "Power",
            "What the board draws, as its sensor says.",
            unit=Unit.WATTS,
            span=LATEST_READING,
        ),
    ] = None
    power_limit_w: Annotated[
        float | None,
        Number(
            "limit",
            "Power limit",
            "What the board may draw: beyond, the driver lowers its clocks.",
            unit=Unit.WATTS,
            span=LATEST_READING,
        ),
    ] = None
    power_w_mean: Annotated[
        float | None,
        Number(
            "power mean",
            "Power, mean",
            "Mean power of the board by its energy counter, which misses nothing; by "
            "the sensor where there is no counter.",
            unit=Unit.WATTS,
        ),
    ] = None
    energy_j: Annotated[
        float | None,
        Number(
            "energy",
            "Energy",
            "Energy that the board used while it was counted, idle power and other "
            "tenants included.",
            unit=Unit.JOULES,
        ),
    ] = None
    sm_clock_mhz: Annotated[
        int | None,
        Number(
            "SM clock",
            "SM clock",
            "At which the SMs run.",
            unit=Unit.MEGAHERTZ,
            span=LATEST_READING,
        ),
    ] = None
    memory_clock_mhz: Annotated[
        int | None,
        Number(
            "mem clock",
            "Memory clock",
            "At which the memory runs; data moves twice in each cycle.",
            unit=Unit.MEGAHERTZ,
            span=LATEST_READING,
        ),
    ] = None
    throttle_reasons: Annotated[
        tuple[str, ...],
        Number(
            "held down by",
            "Why clocks are held down",
            "Why the driver or the board holds the clocks down; that the GPU is idle "
            "is none.",
            span=LATEST_READING,
        ),
    ] = ()
    throttled: Annotated[
        dict[str, float],
        Number(
            "throttled",
            "Clocks held down",
            "Share of the time for which clocks were held down, by reason, as the "
            "driver counts it; where it counts none, how often it was seen.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = field(default_factory=dict)
    temperature_c: Annotated[
        int | None,
        Number(
            "GPU °C",
            "Temperature",
            "Temperature of the GPU.",
            unit=Unit.CELSIUS,
            span=LATEST_READING,
        ),
    ] = None
    memory_temperature_c: Annotated[
        int | None,
        Number(
            "mem °C",
            "Temperature of the memory",
            "Temperature of the memory, where the board tells it.",
            unit=Unit.CELSIUS,
            span=LATEST_READING,
        ),
    ] = None
    memory_used_bytes: Annotated[
        int | None,
        Number(
            "memory",
            "Memory in use",
            "Memory of the GPU in use, without what the driver reserves.",
            unit=Unit.BYTES,
            span=LATEST_READING,
        ),
    ] = None
    memory_reserved_bytes: Annotated[
        int | None,
        Number(
            "reserved",
            "Memory reserved",
            "Memory of the GPU that the driver keeps for itself.",
            unit=Unit.BYTES,
            span=LATEST_READING,
        ),
    ] = None
    pcie_tx_bytes_per_s: Annotated[
        float | None,
        Number(
            "PCIe out",
            "PCIe, from the GPU",
            "Bytes that the GPU sent over PCIe.",
            unit=Unit.GIGABYTES_PER_SECOND,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    pcie_rx_bytes_per_s: Annotated[
        float | None,
        Number(
            "PCIe in",
            "PCIe, to the GPU",
            "Bytes that the GPU received over PCIe.",
            unit=Unit.GIGABYTES_PER_SECOND,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    nvlink_tx_bytes_per_s: Annotated[
        float | None,
        Number(
            "NVLink out",
            "NVLink, from the GPU",
            "Bytes that the GPU sent over NVLink, all links together.",
            unit=Unit.GIGABYTES_PER_SECOND,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    nvlink_rx_bytes_per_s: Annotated[
        float | None,
        Number(
            "NVLink in",
            "NVLink, to the GPU",
            "Bytes that the GPU received over NVLink, all links together.",
            unit=Unit.GIGABYTES_PER_SECOND,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    ecc_corrected: Annotated[
        int | None,
        Number(
            "ECC corrected",
            "Memory errors, corrected",
            "Memory errors that were corrected since the driver was loaded.",
            better=Better.LOWER,
            span=LATEST_READING,
        ),
    ] = None
    ecc_uncorrected: Annotated[
        int | None,
        Number(
            "ECC uncorrected",
            "Memory errors, uncorrected",
            "Memory errors that could not be corrected since the driver was loaded.",
            better=Better.LOWER,
            span=LATEST_READING,
        ),
    ] = None
    memory_by_pid: Annotated[
        dict[int, int | None],
        Number(
            "memory of",
            "Memory by process",
            "Memory of the GPU by process, as the host numbers processes, which a "
            "container need not know.",
            unit=Unit.BYTES,
            span=LATEST_READING,
        ),
    ] = field(default_factory=dict)
    timeline: GpuTimeline = field(default_factory=GpuTimeline)
    """Empty unless requested."""

    @property
    def is_simulated(self) -> bool:
        """Whether the GPU is simulated, according to its driver."""
        return "simulated" in (self.info.driver or "").lower()


@piece("hardware", Vantage.GPU)
class Hardware:
    """The engine's GPUs together; all GPUs if these are unknown.

    Values are over the window unless a field says otherwise.
    """

    gpus: Annotated[
        int,
        Number(
            "GPUs",
            "GPUs",
            "How many GPUs these numbers are of: the engine's, or all where nobody "
            "knows which are; a MIG slice counts in place of its GPU.",
            span=NOW,
        ),
    ] = 0
    no_gpu: Annotated[
        str | None,
        Number(
            "no GPU",
            "Why there is no GPU",
            "Why no GPU can be measured here, and what would help.",
            span=NOW,
        ),
    ] = None
    hbm_bytes_per_s: Annotated[
        float | None,
        Number(
            "HBM",
            "Memory bandwidth",
            "Bytes that the memory of the engine's GPUs moved together: measured "
            "shares times peaks by formula, else by data sheet.",
            unit=Unit.GIGABYTES_PER_SECOND,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    hbm_share: Annotated[
        float | None,
        Number(
            "of peak",
            "Share of the peak bandwidth",
            "Share of what the memory of the engine's GPUs could move by formula, "
            "which may be some percent above the data sheet.",
            unit=Unit.SHARE,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    sm_active: Annotated[
        float | None,
        Number(
            "SM active",
            "SMs active",
            "Share of SM cycles with a warp assigned, on the engine's GPUs.",
            unit=Unit.SHARE,
            span=OF_THE_SAMPLE,
        ),
    ] = None
    power_w: Annotated[
        float | None,
        Number(
            "power",
            "Power",
            "What the boards of the engine's GPUs draw together.",
            unit=Unit.WATTS,
            span=LATEST_READING,
        ),
    ] = None
    power_limit_w: Annotated[
        float | None,
        Number(
            "limit",
            "Power limit",
            "What these boards may draw together.",
            unit=Unit.WATTS,
            span=LATEST_READING,
        ),
    ] = None
    hbm_bytes_per_s_mean: Annotated[
        float | None,
        Number(
            "HBM mean",
            "Memory bandwidth, mean",
            "Mean memory bandwidth of the engine's GPUs together.",
            unit=Unit.GIGABYTES_PER_SECOND,
        ),
    ] = None
    hbm_share_mean: Annotated[
        float | None,
        Number(
            "of peak mean",
            "Share of the peak bandwidth, mean",
            "Mean share of the peak by formula, on the engine's GPUs.",
            unit=Unit.SHARE,
        ),
    ] = None
    sm_active_mean: Annotated[
        float | None,
        Number(
            "SM active mean",
            "SMs active, mean",
            "Mean share of active SM cycles, on the engine's GPUs.",
            unit=Unit.SHARE,
        ),
    ] = None
    power_w_mean: Annotated[
        float | None,
        Number(
            "power mean",
            "Power, mean",
            "Mean power of these boards, by their energy counters.",
            unit=Unit.WATTS,
        ),
    ] = None
    energy_j: Annotated[
        float | None,
        Number(
            "energy",
            "Energy",
            "Energy that these boards used while it was counted.",
            unit=Unit.JOULES,
        ),
    ] = None
    joules_per_token: Annotated[
        float | None,
        Number(
            "J/token",
            "Energy of an output token",
            "Energy of these boards for each output token, idle power and other "
            "tenants included; unknown below five seconds.",
            unit=Unit.JOULES_PER_TOKEN,
            better=Better.LOWER,
        ),
    ] = None
    tokens_per_s_per_w: Annotated[
        float | None,
        Number(
            "tok/s/W",
            "Output tokens per second and watt",
            "Output tokens per second for each watt of these boards.",
            unit=Unit.TOKENS_PER_SECOND_PER_WATT,
            better=Better.HIGHER,
        ),
    ] = None
    derived_bytes_per_s: Annotated[
        float | None,
        Number(
            "derived traffic",
            "Memory traffic, derived",
            "Not measured but derived from steps: what the model must read at the "
            "least, its weights once a step (of experts those that its tokens touch) "
            "and the KV cache of each request in it.",
            unit=Unit.GIGABYTES_PER_SECOND,
            here=True,
        ),
    ] = None
    derived_weights_share: Annotated[
        float | None,
        Number(
            "weights",
            "Share of the weights",
            "Share of the derived traffic that is weights; the rest is KV.",
            unit=Unit.SHARE,
            here=True,
        ),
    ] = None
    weight_bytes: Annotated[
        int | None,
        Number(
            "weights",
            "Weights",
            "Size of the weights as loaded, of all engines together.",
            unit=Unit.BYTES,
            here=True,
            span=NOW,
        ),
    ] = None
    kv_bytes: Annotated[
        int | None,
        Number(
            "KV cache",
            "KV cache",
            "Size of all KV blocks that requests can use.",
            unit=Unit.BYTES,
            here=True,
            span=NOW,
        ),
    ] = None
