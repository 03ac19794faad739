"""What GPUs and hosts do: who measured, of what it is a share, and what is derived.

Bytes are decimal, as data sheets have them: 1 GB is 10^9 bytes, of memory, too.
"""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import NOW, Better, Metric, Unit, metrics

LATEST = "latest reading"
AVERAGE = "of the latest sample, over what it covers"
"""The span of what GPM and DCGM tell."""

GPU = metrics(
    "gpu.",
    Vantage.GPU,
    Metric(
        key="watched",
        abbr="engine's",
        title="Used by the engine",
        unit=Unit.NONE,
        definition=(
            "Whether an engine that is watched runs on this GPU: as it says itself, or "
            "because a process of it uses its memory."
        ),
        formula="engine info, else process lists of GPU and host",
        span=NOW,
    ),
    Metric(
        key="via",
        abbr="via",
        title="Measured by",
        unit=Unit.NONE,
        definition=(
            "Who measured the averages: gpm, the driver itself on Hopper and newer, or "
            "dcgm, an exporter."
        ),
        formula="of the latest sample with averages",
        span=NOW,
    ),
    Metric(
        key="last_ns",
        abbr="last",
        title="Last sample",
        unit=Unit.NANOSECONDS,
        definition="Session time of the last sample of this GPU.",
        formula="latest sample",
        span=NOW,
    ),
    Metric(
        key="span_s",
        abbr="over",
        title="Span of the averages",
        unit=Unit.SECONDS,
        definition="How much time the latest averages cover, up to the last sample.",
        formula="as the sample says",
        span=NOW,
    ),
    Metric(
        key="hbm_bytes_per_s",
        abbr="HBM",
        title="Memory bandwidth",
        unit=Unit.GIGABYTES_PER_SECOND,
        definition=(
            "Bytes that the GPU's memory moved, reads and writes together: the measured"
            " share times the peak by formula (2 × memory clock × bus width, at that "
            "moment's clock), or times the data sheet's where clock or width are not "
            "told, or yours with --peak-gbps."
        ),
        formula="dram_active × peak of that sample",
        span=AVERAGE,
    ),
    Metric(
        key="hbm_bytes_per_s_mean",
        abbr="HBM mean",
        title="Memory bandwidth, mean",
        unit=Unit.GIGABYTES_PER_SECOND,
        definition="Mean of the memory bandwidth over what samples covered.",
        formula="mean of dram_active × peak, by time covered",
    ),
    Metric(
        key="hbm_share",
        abbr="of peak",
        title="Share of the peak bandwidth",
        unit=Unit.SHARE,
        definition=(
            "Share of what the memory could move that it did move, as the driver or "
            "DCGM measured it: of the peak by formula, as far as is known, which may "
            "be some percent above the data sheet's, and of which large copies reach "
            "about 90%."
        ),
        formula="dram_active",
        span=AVERAGE,
    ),
    Metric(
        key="hbm_share_mean",
        abbr="of peak mean",
        title="Share of the peak bandwidth, mean",
        unit=Unit.SHARE,
        definition="Mean of the share over what samples covered.",
        formula="mean of dram_active, by time covered",
    ),
    Metric(
        key="sm_active",
        abbr="SM active",
        title="SMs active",
        unit=Unit.SHARE,
        definition=(
            "Share of the cycles of all SMs in which at least one warp was assigned to "
            "them, even if it waited."
        ),
        formula="sm_active",
        span=AVERAGE,
    ),
    Metric(
        key="sm_active_mean",
        abbr="SM active mean",
        title="SMs active, mean",
        unit=Unit.SHARE,
        definition="Mean of the share over what samples covered.",
        formula="mean of sm_active, by time covered",
    ),
    Metric(
        key="sm_occupancy",
        abbr="occupancy",
        title="SM occupancy",
        unit=Unit.SHARE,
        definition="Share of the warps that the SMs could hold that they did hold.",
        formula="sm_occupancy",
        span=AVERAGE,
    ),
    Metric(
        key="tensor_active",
        abbr="tensor",
        title="Tensor pipes active",
        unit=Unit.SHARE,
        definition="Share of the cycles in which any tensor pipe was in use.",
        formula="tensor_active",
        span=AVERAGE,
    ),
    Metric(
        key="tensor_active_mean",
        abbr="tensor mean",
        title="Tensor pipes active, mean",
        unit=Unit.SHARE,
        definition="Mean of the share over what samples covered.",
        formula="mean of tensor_active, by time covered",
    ),
    Metric(
        key="gpu_busy",
        abbr="busy (time)",
        title="GPU busy, of the time",
        unit=Unit.SHARE,
        definition=(
            "Share of time in which any kernel ran at all, however small: no measure "
            "of how much the GPU did."
        ),
        formula="the driver's utilisation, over 1/6 to 1 s",
        span=LATEST,
    ),
    Metric(
        key="memory_busy",
        abbr="mem busy (time)",
        title="Memory busy, of the time",
        unit=Unit.SHARE,
        definition=(
            "Share of time in which memory was read or written at all: one slow stream "
            "keeps it high, so it is never a bandwidth."
        ),
        formula="the driver's memory utilisation, over 1/6 to 1 s",
        span=LATEST,
    ),
    Metric(
        key="power_w",
        abbr="power",
        title="Power",
        unit=Unit.WATTS,
        definition="What the board draws, as its sensor says.",
        formula="power_w",
        span=LATEST,
    ),
    Metric(
        key="power_limit_w",
        abbr="limit",
        title="Power limit",
        unit=Unit.WATTS,
        definition="What the board may draw: beyond, the driver lowers its clocks.",
        formula="enforced power limit",
        span=LATEST,
    ),
    Metric(
        key="power_w_mean",
        abbr="power mean",
        title="Power, mean",
        unit=Unit.WATTS,
        definition=(
            "Mean power of the board by its energy counter, which misses nothing; by "
            "the sensor where there is no counter."
        ),
        formula="energy / time counted, else mean of power_w",
    ),
    Metric(
        key="energy_j",
        abbr="energy",
        title="Energy",
        unit=Unit.JOULES,
        definition=(
            "Energy that the board used while it was counted, idle power and other "
            "tenants included."
        ),
        formula="rise of the energy counter, without the moments it began anew",
    ),
    Metric(
        key="sm_clock_mhz",
        abbr="SM clock",
        title="SM clock",
        unit=Unit.MEGAHERTZ,
        definition="At which the SMs run.",
        formula="sm_clock_mhz",
        span=LATEST,
    ),
    Metric(
        key="memory_clock_mhz",
        abbr="mem clock",
        title="Memory clock",
        unit=Unit.MEGAHERTZ,
        definition="At which the memory runs; data moves twice in each cycle.",
        formula="memory_clock_mhz",
        span=LATEST,
    ),
    Metric(
        key="throttle_reasons",
        abbr="held down by",
        title="Why clocks are held down",
        unit=Unit.NONE,
        definition=(
            "Why the driver or the board holds the clocks down; that the GPU is idle "
            "is none."
        ),
        formula="the driver's bits of clocks event reasons",
        span=LATEST,
    ),
    Metric(
        key="throttled",
        abbr="throttled",
        title="Clocks held down",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition=(
            "Share of the time for which clocks were held down, by reason, as the "
            "driver counts it; where it counts none, how often it was seen."
        ),
        formula="rise of the time counted / time, else share of readings with the bit",
    ),
    Metric(
        key="temperature_c",
        abbr="GPU °C",
        title="Temperature",
        unit=Unit.CELSIUS,
        definition="Temperature of the GPU.",
        formula="temperature_c",
        span=LATEST,
    ),
    Metric(
        key="memory_temperature_c",
        abbr="mem °C",
        title="Temperature of the memory",
        unit=Unit.CELSIUS,
        definition="Temperature of the memory, where the board tells it.",
        formula="memory_temperature_c",
        span=LATEST,
    ),
    Metric(
        key="memory_used_bytes",
        abbr="memory",
        title="Memory in use",
        unit=Unit.BYTES,
        definition="Memory of the GPU in use, without what the driver reserves.",
        formula="memory_used_bytes",
        span=LATEST,
    ),
    Metric(
        key="memory_reserved_bytes",
        abbr="reserved",
        title="Memory reserved",
        unit=Unit.BYTES,
        definition="Memory of the GPU that the driver keeps for itself.",
        formula="memory_reserved_bytes",
        span=LATEST,
    ),
    Metric(
        key="pcie_tx_bytes_per_s",
        abbr="PCIe out",
        title="PCIe, from the GPU",
        unit=Unit.GIGABYTES_PER_SECOND,
        definition="Bytes that the GPU sent over PCIe.",
        formula="pcie_tx_bytes_per_s",
        span=AVERAGE,
    ),
    Metric(
        key="pcie_rx_bytes_per_s",
        abbr="PCIe in",
        title="PCIe, to the GPU",
        unit=Unit.GIGABYTES_PER_SECOND,
        definition="Bytes that the GPU received over PCIe.",
        formula="pcie_rx_bytes_per_s",
        span=AVERAGE,
    ),
    Metric(
        key="nvlink_tx_bytes_per_s",
        abbr="NVLink out",
        title="NVLink, from the GPU",
        unit=Unit.GIGABYTES_PER_SECOND,
        definition="Bytes that the GPU sent over NVLink, all links together.",
        formula="nvlink_tx_bytes_per_s",
        span=AVERAGE,
    ),
    Metric(
        key="nvlink_rx_bytes_per_s",
        abbr="NVLink in",
        title="NVLink, to the GPU",
        unit=Unit.GIGABYTES_PER_SECOND,
        definition="Bytes that the GPU received over NVLink, all links together.",
        formula="nvlink_rx_bytes_per_s",
        span=AVERAGE,
    ),
    Metric(
        key="ecc_corrected",
        abbr="ECC corrected",
        title="Memory errors, corrected",
        unit=Unit.NONE,
        better=Better.LOWER,
        definition="Memory errors that were corrected since the driver was loaded.",
        formula="volatile count",
        span=LATEST,
    ),
    Metric(
        key="ecc_uncorrected",
        abbr="ECC uncorrected",
        title="Memory errors, uncorrected",
        unit=Unit.NONE,
        better=Better.LOWER,
        definition=(
            "Memory errors that could not be corrected since the driver was loaded."
        ),
        formula="volatile count",
        span=LATEST,
    ),
    Metric(
        key="memory_by_pid",
        abbr="memory of",
        title="Memory by process",
        unit=Unit.BYTES,
        definition=(
            "Memory of the GPU by process, as the host numbers processes, which a "
            "container need not know."
        ),
        formula="latest list of processes",
        span=LATEST,
    ),
)

HOST = metrics(
    "host.",
    Vantage.HOST,
    Metric(
        key="last_ns",
        abbr="last",
        title="Last sample",
        unit=Unit.NANOSECONDS,
        definition="Session time of the last sample of this host.",
        formula="latest sample",
        span=NOW,
    ),
    Metric(
        key="cores",
        abbr="cores",
        title="Cores",
        unit=Unit.NONE,
        definition="Cores of the host that inferwatch may use.",
        formula="latest sample, else what the host is",
        span=NOW,
    ),
    Metric(
        key="busy",
        abbr="busy",
        title="Busy cores",
        unit=Unit.NONE,
        definition="How many of these cores were busy, whoever kept them so.",
        formula="rise of busy time / time",
        span="last 5 s",
    ),
    Metric(
        key="run_queue",
        abbr="run queue",
        title="Run queue",
        unit=Unit.NONE,
        better=Better.LOWER,
        definition=(
            "Threads of the host that ran or waited for a core: more than there are "
            "cores means that some waited."
        ),
        formula="run_queue",
        span=LATEST,
    ),
    Metric(
        key="memory_used_bytes",
        abbr="memory",
        title="Memory in use",
        unit=Unit.BYTES,
        definition="Memory of the host in use, without caches that can be dropped.",
        formula="memory_used_bytes",
        span=LATEST,
    ),
    Metric(
        key="api_loop_lag_s",
        abbr="API loop lag",
        title="Lag of the API server's event loop",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition=(
            "How late the event loop of an API server ran at worst, as the probe in it "
            "saw: while it is late, tokens wait to be sent and requests to be read."
        ),
        formula="max of what front ends tell with their totals",
    ),
    Metric(
        key="own_loop_lag_s",
        abbr="own loop lag",
        title="Lag of inferwatch's event loop",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition="How late inferwatch's own event loop ran at worst.",
        formula="max of host samples",
    ),
)

PROCESS = metrics(
    "process.",
    Vantage.HOST,
    Metric(
        key="cpu_share",
        abbr="CPU",
        title="CPU",
        unit=Unit.SHARE,
        definition="Share of one core that the process used.",
        formula="rise of its CPU time / time",
        span="last 5 s",
    ),
    Metric(
        key="rss_bytes",
        abbr="memory",
        title="Memory",
        unit=Unit.BYTES,
        definition="Memory of the process in RAM.",
        formula="resident set size",
        span=LATEST,
    ),
    Metric(
        key="threads",
        abbr="threads",
        title="Threads",
        unit=Unit.NONE,
        definition="Threads of the process.",
        formula="latest sample",
        span=LATEST,
    ),
    Metric(
        key="throttled",
        abbr="throttled",
        title="Kept from running",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition=(
            "Share of the time for which the CPU quota of its control group kept the "
            "process from running."
        ),
        formula="rise of throttled time / time",
        span="last 5 s",
    ),
)

HARDWARE = (
    *metrics(
        "hardware.",
        Vantage.GPU,
        Metric(
            key="gpus",
            abbr="GPUs",
            title="GPUs",
            unit=Unit.NONE,
            definition=(
                "How many GPUs these numbers are of: the engine's, or all where nobody "
                "knows which are; a MIG slice counts in place of its GPU."
            ),
            formula="count",
            span=NOW,
        ),
        Metric(
            key="no_gpu",
            abbr="no GPU",
            title="Why there is no GPU",
            unit=Unit.NONE,
            definition="Why no GPU can be measured here, and what would help.",
            formula="as the driver or its absence says",
            span=NOW,
        ),
        Metric(
            key="hbm_bytes_per_s",
            abbr="HBM",
            title="Memory bandwidth",
            unit=Unit.GIGABYTES_PER_SECOND,
            definition=(
                "Bytes that the memory of the engine's GPUs moved together: measured "
                "shares times peaks by formula, else by data sheet."
            ),
            formula="sum over GPUs",
            span=AVERAGE,
        ),
        Metric(
            key="hbm_share",
            abbr="of peak",
            title="Share of the peak bandwidth",
            unit=Unit.SHARE,
            definition=(
                "Share of what the memory of the engine's GPUs could move by formula, "
                "which may be some percent above the data sheet."
            ),
            formula="mean over GPUs",
            span=AVERAGE,
        ),
        Metric(
            key="sm_active",
            abbr="SM active",
            title="SMs active",
            unit=Unit.SHARE,
            definition="Share of SM cycles with a warp assigned, on the engine's GPUs.",
            formula="mean over GPUs",
            span=AVERAGE,
        ),
        Metric(
            key="power_w",
            abbr="power",
            title="Power",
            unit=Unit.WATTS,
            definition="What the boards of the engine's GPUs draw together.",
            formula="sum over GPUs",
            span=LATEST,
        ),
        Metric(
            key="power_limit_w",
            abbr="limit",
            title="Power limit",
            unit=Unit.WATTS,
            definition="What these boards may draw together.",
            formula="sum over GPUs",
            span=LATEST,
        ),
        Metric(
            key="hbm_bytes_per_s_mean",
            abbr="HBM mean",
            title="Memory bandwidth, mean",
            unit=Unit.GIGABYTES_PER_SECOND,
            definition="Mean memory bandwidth of the engine's GPUs together.",
            formula="sum of the means of GPUs",
        ),
        Metric(
            key="hbm_share_mean",
            abbr="of peak mean",
            title="Share of the peak bandwidth, mean",
            unit=Unit.SHARE,
            definition="Mean share of the peak by formula, on the engine's GPUs.",
            formula="mean of the means of GPUs",
        ),
        Metric(
            key="sm_active_mean",
            abbr="SM active mean",
            title="SMs active, mean",
            unit=Unit.SHARE,
            definition="Mean share of active SM cycles, on the engine's GPUs.",
            formula="mean of the means of GPUs",
        ),
        Metric(
            key="power_w_mean",
            abbr="power mean",
            title="Power, mean",
            unit=Unit.WATTS,
            definition="Mean power of these boards, by their energy counters.",
            formula="sum of the means of GPUs",
        ),
        Metric(
            key="energy_j",
            abbr="energy",
            title="Energy",
            unit=Unit.JOULES,
            definition="Energy that these boards used while it was counted.",
            formula="sum over GPUs",
        ),
        Metric(
            key="joules_per_token",
            abbr="J/token",
            title="Energy of an output token",
            unit=Unit.JOULES_PER_TOKEN,
            better=Better.LOWER,
            definition=(
                "Energy of these boards for each output token, idle power and other "
                "tenants included; unknown below five seconds."
            ),
            formula="rise of energy / output tokens, over the same time",
        ),
        Metric(
            key="tokens_per_s_per_w",
            abbr="tok/s/W",
            title="Output tokens per second and watt",
            unit=Unit.TOKENS_PER_SECOND_PER_WATT,
            better=Better.HIGHER,
            definition="Output tokens per second for each watt of these boards.",
            formula="1 / energy of an output token",
        ),
    ),
    *metrics(
        "hardware.",
        None,
        Metric(
            key="derived_bytes_per_s",
            abbr="derived traffic",
            title="Memory traffic, derived",
            unit=Unit.GIGABYTES_PER_SECOND,
            definition=(
                "Not measured but derived from steps: what the model must read at the "
                "least, its weights once a step (of experts those that its tokens "
                "touch) and the KV cache of each request in it."
            ),
            formula="sum over steps of weights + KV bytes per token × context, / time",
        ),
        Metric(
            key="derived_weights_share",
            abbr="weights",
            title="Share of the weights",
            unit=Unit.SHARE,
            definition="Share of the derived traffic that is weights; the rest is KV.",
            formula="weights read / all that is derived",
        ),
        Metric(
            key="weight_bytes",
            abbr="weights",
            title="Weights",
            unit=Unit.BYTES,
            definition="Size of the weights as loaded, of all engines together.",
            formula="as the engine says",
            span=NOW,
        ),
        Metric(
            key="kv_bytes",
            abbr="KV cache",
            title="KV cache",
            unit=Unit.BYTES,
            definition="Size of all KV blocks that requests can use.",
            formula="blocks × tokens of a block × bytes of a token",
            span=NOW,
        ),
    ),
)

CHARTS = (
    *metrics(
        "timeline.",
        Vantage.GPU,
    ),
    *metrics(
        "timeline.",
        None,
    ),
    *metrics(
        "timeline.",
        Vantage.HOST,
    ),
)
