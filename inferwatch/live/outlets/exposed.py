"""Every exported metric with its unit and help, declared once for all formats."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from collectors.contract.clock import NS_PER_S
from inferwatch.feed import RecordState
from inferwatch.live.outlets.exact import (
    WINDOW,
    ExactNumbers,
    HistogramSnapshot,
    RankState,
    ServerNumbers,
)
from inferwatch.live.outlets.hardware import HBM, GpuNumbers, HostNumbers
from inferwatch.metrics.series.window import Quantiles

PREFIX = "inferwatch_"


class MetricType(StrEnum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class ExposedMetric:
    """A metric: its name in Prometheus, without the prefix and without ``_total``."""

    name: str
    kind: MetricType
    unit: str
    """``seconds``, ``tokens``, ``ratio``, or the name of what is counted."""
    help: str


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of a metric, with its labels."""

    labels: dict[str, str]
    value: float | HistogramSnapshot


MetricPoints = dict[ExposedMetric, list[MetricPoint]]

LATENCIES = {
    "ttft_s": ("time_to_first_token", "Arrival to first token"),
    "queue_s": ("request_queue_time", "Queued to first scheduled"),
    "prefill_s": ("request_prefill_time", "First scheduled to first token"),
    "tpot_s": (
        "request_time_per_output_token",
        "(last - first token) / (output tokens - 1) of a request",
    ),
    "itl_s": ("inter_token_latency", "Each gap between two outputs of a request"),
    "e2el_s": ("e2e_request_latency", "Arrival to last token"),
    "step_s": ("step_duration", "One pass of scheduler and model, idle left out"),
}
"""Name and help by key. Names are vLLM's where it has the same metric."""
HISTOGRAMS = {
    key: ExposedMetric(
        f"{name}_seconds",
        MetricType.HISTOGRAM,
        "seconds",
        f"{what}; every one was seen.",
    )
    for key, (name, what) in LATENCIES.items()
}
QUANTILES = {
    key: ExposedMetric(
        f"{name}_window_seconds",
        MetricType.GAUGE,
        "seconds",
        f"{what}: exact, over the last {WINDOW.label}.",
    )
    for key, (name, what) in LATENCIES.items()
}
SAMPLES = {
    key: ExposedMetric(
        f"{name}_window_samples",
        MetricType.GAUGE,
        "samples",
        f"How many the percentiles of {name} stand on.",
    )
    for key, (name, _) in LATENCIES.items()
}


def _counter(name: str, unit: str, text: str) -> ExposedMetric:
    return ExposedMetric(name, MetricType.COUNTER, unit, text)


def _gauge(name: str, unit: str, text: str) -> ExposedMetric:
    return ExposedMetric(name, MetricType.GAUGE, unit, text)


COUNTERS = {
    "requests": (_counter("requests", "requests", "Requests that came."), ""),
    "requests_ended": (
        _counter("requests_ended", "requests", "Requests that ended, by how."),
        "outcome",
    ),
    "output_tokens": (_counter("output_tokens", "tokens", "Tokens made."), "engine"),
    "prefill_tokens": (
        _counter("prefill_tokens", "tokens", "Prompt tokens computed."),
        "engine",
    ),
    "recomputed_tokens": (
        _counter("recomputed_tokens", "tokens", "Tokens computed again."),
        "engine",
    ),
    "preemptions": (
        _counter("preemptions", "preemptions", "Requests put back for want of room."),
        "engine",
    ),
    "prefix_queries": (
        _counter("prefix_queries", "tokens", "Prompt tokens looked up in the cache."),
        "engine",
    ),
    "prefix_hits": (
        _counter("prefix_hits", "tokens", "Prompt tokens found in the cache."),
        "engine",
    ),
    "drafts": (
        _counter("spec_decode_num_drafts", "drafts", "Drafts verified."),
        "engine",
    ),
    "drafted_tokens": (
        _counter(
            "spec_decode_num_draft_tokens", "tokens", "Tokens drafted and verified."
        ),
        "engine",
    ),
    "accepted_tokens": (
        _counter(
            "spec_decode_num_accepted_tokens", "tokens", "Drafted tokens accepted."
        ),
        "engine",
    ),
    "accepted_by_position": (
        _counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "tokens",
            "Drafted tokens accepted, by their position in the draft, from 0 on.",
        ),
        "position",
    ),
    "bound_ns": (
        _counter(
            "step_bound_seconds",
            "seconds",
            "Time of steps by why the head of the queue was not scheduled.",
        ),
        "bound_by",
    ),
    "probe_ns": (
        _counter("probe_cost_seconds", "seconds", "Time our hooks took of the engine."),
        "engine",
    ),
    "dropped": (
        _counter("readings_dropped", "readings", "Readings lost on the way to us."),
        "",
    ),
}
"""By name in ``ServerNumbers.counts``: the metric, and the label of its values."""
GAUGES = {
    "running": _gauge("requests_running", "requests", "Requests in the batch."),
    "waiting": _gauge("requests_waiting", "requests", "Requests in the queue."),
    "kv_usage": _gauge("kv_cache_usage_ratio", "ratio", "Used KV blocks of all."),
    "kv_used_blocks": _gauge("kv_cache_used_blocks", "blocks", "KV blocks in use."),
    "kv_cached_blocks": _gauge(
        "kv_cache_cached_blocks", "blocks", "Idle KV blocks that hold a prefix."
    ),
    "kv_free_blocks": _gauge(
        "kv_cache_free_blocks", "blocks", "Idle KV blocks that hold nothing."
    ),
}
"""By the field of a RankState."""
ANSWERS = _gauge("server_up", "servers", "1: the server answers us.")
READINGS = _counter("readings", "readings", "Readings taken in.")
UNRECORDED = _counter("readings_unrecorded", "readings", "Readings not recorded.")
RECORD_BYTES = _gauge("record_bytes", "bytes", "Size of the file recorded into.")
OWN_CPU = _counter("own_cpu_seconds", "seconds", "CPU time of inferwatch itself.")
LOOP_LAG = _gauge(
    "api_event_loop_lag_seconds",
    "seconds",
    "How late the API server's event loop ran at worst of late.",
)


def _ratio(name: str, text: str) -> tuple[ExposedMetric, float]:
    return _gauge(f"gpu_{name}_ratio", "ratio", text), 1.0


def _traffic(name: str, text: str) -> tuple[ExposedMetric, float]:
    unit = "bytes_per_second"
    return _gauge(f"gpu_{name}_{unit}", unit, text), 1.0


def _clock(name: str, text: str) -> tuple[ExposedMetric, float]:
    return _gauge(f"gpu_{name}_clock_hertz", "hertz", text), 1e6


def _of_gpu(name: str, unit: str, text: str) -> tuple[ExposedMetric, float]:
    return _gauge(f"gpu_{name}_{unit}", unit, text), 1.0


GPU_GAUGES = {
    "dram_active": _ratio(
        "memory_bandwidth", "What memory moved, of what it could; by GPM or DCGM."
    ),
    HBM: _traffic("memory_bandwidth", "What memory moved, read and written."),
    "peak_bytes_per_s": _traffic("memory_bandwidth_peak", "What memory could move."),
    "sm_active": _ratio("sm_active", "Cycles in which an SM had a warp, of all."),
    "sm_occupancy": _ratio("sm_occupancy", "Resident warps, of those that fit."),
    "tensor_active": _ratio("tensor_active", "Cycles with a tensor pipe in use."),
    "gpu_busy": _ratio("busy_time", "Time with any kernel; no measure of how much."),
    "memory_busy": _ratio(
        "memory_busy_time", "Time with any access to memory; no bandwidth."
    ),
    "power_w": _of_gpu("power", "watts", "Power the board draws."),
    "power_limit_w": _of_gpu("power_limit", "watts", "Power it may draw."),
    "sm_clock_mhz": _clock("sm", "Clock of the SMs."),
    "memory_clock_mhz": _clock("memory", "Clock of the memory."),
    "temperature_c": _of_gpu("temperature", "celsius", "Temperature of the GPU."),
    "memory_temperature_c": _of_gpu(
        "memory_temperature", "celsius", "Temperature of its memory."
    ),
    "memory_used_bytes": _of_gpu(
        "memory_used", "bytes", "Memory in use, without what the driver reserves."
    ),
    "memory_reserved_bytes": _of_gpu(
        "memory_reserved", "bytes", "Memory that the driver reserves."
    ),
    "pcie_tx_bytes_per_s": _traffic("pcie_sent", "Over PCIe, from the GPU."),
    "pcie_rx_bytes_per_s": _traffic("pcie_received", "Over PCIe, to the GPU."),
    "nvlink_tx_bytes_per_s": _traffic("nvlink_sent", "Over NVLink, from the GPU."),
    "nvlink_rx_bytes_per_s": _traffic("nvlink_received", "Over NVLink, to the GPU."),
}
"""By the field of a GpuSample: the metric, and the factor to its unit."""
GPU_UP = _gauge("gpu_up", "gpus", "1: the GPU is there; 0: it was, and is lost.")
GPU_ENERGY = _counter("gpu_energy_joules", "joules", "Energy the board has taken.")
GPU_THROTTLED = _counter(
    "gpu_clocks_held_down_seconds", "seconds", "Time with clocks held down, by why."
)
GPU_ECC = _counter("gpu_ecc_errors", "errors", "Errors in memory, corrected or not.")
HOST_BUSY = _counter(
    "host_cpu_seconds", "seconds", "CPU time of all processes of the host."
)
HOST_CORES = _gauge("host_cores", "cores", "Cores that inferwatch may use there.")
HOST_QUEUE = _gauge("host_run_queue", "threads", "Threads that run or wait for a core.")
HOST_MEMORY = _gauge("host_memory_used_bytes", "bytes", "Memory of the host in use.")
PROCESS_CPU = _counter(
    "host_process_cpu_seconds", "seconds", "CPU time of the processes of a role."
)
PROCESS_HELD = _counter(
    "host_process_throttled_seconds",
    "seconds",
    "Time for which a CPU quota held the processes of a role back.",
)
PROCESS_MEMORY = _gauge(
    "host_process_memory_bytes", "bytes", "Resident memory of those of a role."
)
SHARES = {"p50": "0.5", "p90": "0.9", "p95": "0.95", "p99": "0.99", "max": "1"}


def exposed_points(
    numbers: ExactNumbers, now_ns: int, record: RecordState | None
) -> MetricPoints:
    """Return all metrics with their present values; unknown values are left out."""
    points: MetricPoints = {}
    hardware = numbers.hardware
    for exposed, point in (
        *_of_servers(numbers, now_ns),
        *(each for gpu in hardware.gpus.values() for each in _of_a_gpu(gpu, now_ns)),
        *(each for host in hardware.hosts.values() for each in _of_host(host, now_ns)),
        *_of_us(numbers, record),
    ):
        points.setdefault(exposed, []).append(point)
    return points


def _of_us(
    numbers: ExactNumbers, record: RecordState | None
) -> Iterator[tuple[ExposedMetric, MetricPoint]]:
    yield READINGS, MetricPoint({}, numbers.readings)
    if numbers.own_cpu_s is not None:
        yield OWN_CPU, MetricPoint({}, numbers.own_cpu_s)
    if record is not None:
        yield UNRECORDED, MetricPoint({}, record.unrecorded)
        yield RECORD_BYTES, MetricPoint({}, record.file_bytes)


def _of_servers(
    numbers: ExactNumbers, now_ns: int
) -> Iterator[tuple[ExposedMetric, MetricPoint]]:
    for server in numbers.servers.values():
        labels = {"server": server.source}
        if server.model is not None:
            labels["model_name"] = server.model
        if server.answers is not None:
            yield ANSWERS, MetricPoint(labels, int(server.answers))
        if server.loop_lag_ns is not None:
            yield LOOP_LAG, MetricPoint(labels, server.loop_lag_ns / NS_PER_S)
        yield from _latencies(server, labels, now_ns)
        for name, by_label in server.counts.items():
            exposed, label = COUNTERS[name]
            unit = NS_PER_S if name.endswith("_ns") else 1
            for text, count in by_label.items():
                own = {label: text} if label else {}
                yield exposed, MetricPoint({**labels, **own}, count / unit)
        for rank, state in server.ranks.items():
            yield from _state(state, {**labels, "engine": rank})


def _of_a_gpu(
    gpu: GpuNumbers, now_ns: int
) -> Iterator[tuple[ExposedMetric, MetricPoint]]:
    labels = {"uuid": gpu.uuid}
    if (info := gpu.info) is not None:
        info_labels = {
            "gpu": None if info.index is None else str(info.index),
            "gpu_model": info.name,
            "mig_profile": info.profile,
            "host": info.host,
        }
        labels |= {name: text for name, text in info_labels.items() if text is not None}
        yield GPU_UP, MetricPoint(labels, int(info.lost_because is None))
    for name, value in gpu.now(now_ns).items():
        exposed, scale = GPU_GAUGES[name]
        yield exposed, MetricPoint(labels, value * scale)
    for used_mj in gpu.energy_mj.totals.values():
        yield GPU_ENERGY, MetricPoint(labels, used_mj / 1e3)
    for why, held_ns in gpu.throttled_ns.totals.items():
        yield GPU_THROTTLED, MetricPoint({**labels, "reason": why}, held_ns / NS_PER_S)
    for corrected, count in gpu.ecc.totals.items():
        yield GPU_ECC, MetricPoint({**labels, "corrected": corrected}, count)


def _of_host(
    host: HostNumbers, now_ns: int
) -> Iterator[tuple[ExposedMetric, MetricPoint]]:
    labels = {"host": host.name}
    for used_s in host.busy_s.totals.values():
        yield HOST_BUSY, MetricPoint(labels, used_s)
    for exposed, by_role in (
        (PROCESS_CPU, host.cpu_s),
        (PROCESS_HELD, host.throttled_s),
    ):
        for role, seconds in by_role.items():
            yield exposed, MetricPoint({**labels, "role": role}, seconds)
    latest = host.now(now_ns)
    if latest is None:
        return
    for exposed, value in (
        (HOST_CORES, latest.cores),
        (HOST_QUEUE, latest.run_queue),
        (HOST_MEMORY, latest.memory_used_bytes),
    ):
        if value is not None:
            yield exposed, MetricPoint(labels, value)
    for role in {usage.role: None for usage in latest.processes}:
        rss_bytes = sum(
            each.rss_bytes for each in latest.processes if each.role == role
        )
        yield PROCESS_MEMORY, MetricPoint({**labels, "role": role}, rss_bytes)


def _latencies(
    server: ServerNumbers, labels: Mapping[str, str], now_ns: int
) -> Iterator[tuple[ExposedMetric, MetricPoint]]:
    for key, latency in server.latencies.items():
        whose = {**labels, "vantage": latency.vantage.value}
        yield HISTOGRAMS[key], MetricPoint(whose, latency.whole.distribution())
        lately = latency.lately(now_ns)
        yield SAMPLES[key], MetricPoint(whose, lately.n)
        for share, value in _quantiles(lately):
            yield QUANTILES[key], MetricPoint({**whose, "quantile": share}, value)


def _quantiles(lately: Quantiles) -> Iterator[tuple[str, float]]:
    for name, share in SHARES.items():
        value = getattr(lately, name)
        if value is not None:
            yield share, value


def _state(
    state: RankState, labels: dict[str, str]
) -> Iterator[tuple[ExposedMetric, MetricPoint]]:
    for field, exposed in GAUGES.items():
        value = getattr(state, field)
        if value is not None:
            yield exposed, MetricPoint(labels, value)
