"""GPUs and hosts in a summary; means are over the window."""

from inferwatch.formatting import counted, format_rate, format_share
from inferwatch.metrics.hardware.hosts import HostState, ProcessState
from inferwatch.metrics.hardware.view import GpuState, Hardware
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.printing.summary.latencies import Summary
from inferwatch.printing.text import WIDTH, named_line
from inferwatch.visible import visible

GIGA = 1e9
SIMULATED = "simulated"
"""Marks the driver version of simulated GPUs."""
GPU_INFO = (
    "name",
    "uuid",
    "index",
    "host",
    "driver",
    "parent_uuid",
    "profile",
    "lost_because",
    "memory_bytes",
)
GPU_LATEST = (
    "power_limit_w",
    "temperature_c",
    "memory_temperature_c",
    "memory_used_bytes",
    "memory_reserved_bytes",
    "ecc_corrected",
    "ecc_uncorrected",
)
PROCESS = ("pid", "role", "cpu_share", "rss_bytes", "threads", "throttled")


def hardware_rows(snapshot: Snapshot) -> Summary:
    return {
        "hardware": _together(snapshot.hardware),
        "gpus": [_gpu(each) for each in snapshot.gpus],
        "hosts": [_host(each) for each in snapshot.hosts],
    }


def hardware_lines(summary: Summary) -> list[str]:
    """Lines on the engine's GPUs; without GPUs, on what its steps say of their use."""
    hardware, gpus = summary["hardware"], summary["gpus"]
    if not hardware["gpus"]:
        return _derived(hardware)
    names = {each["name"] for each in gpus if each["name"]}
    fake = any(SIMULATED in (each["driver"] or "") for each in gpus)
    what = ", ".join(sorted(names)[:2]) + (", simulated" if fake else "")
    lines = [_line("GPUs", None, f"{hardware['gpus']:,} {what}")]
    shares = (
        (hardware["hbm_share_mean"], "of peak"),
        (hardware["sm_active_mean"], "SM active"),
    )
    texts = [f"{format_share(x).strip()} {of}" for x, of in shares if x is not None]
    if texts:
        rate = format_rate(hardware["hbm_gbps_mean"])
        lines.append(_line("HBM GB/s", rate, ", ".join(["mean", *texts])))
    if hardware["power_w_mean"] is not None:
        joules, power = hardware["joules_per_token"], hardware["power_w_mean"]
        rest = "" if joules is None else f", {format_rate(joules).strip()} J/token"
        lines.append(_line("power W", format_rate(power), f"mean{rest}"))
    lost = [each for each in gpus if each["lost_because"]]
    if lost:
        why = lost[0]["lost_because"]
        lines.append(f"{counted(len(lost), 'GPU')} lost: {visible(why)}")
    return lines


def _derived(hardware: Summary) -> list[str]:
    rate = hardware["derived_gbps"]
    if rate is None:
        return []
    what = "GB/s of memory traffic, derived from steps, not measured"
    return [_line("derived", format_rate(rate), what)]


def _line(name: str, number: str | None, what: str) -> str:
    return named_line(name, what, number)[:WIDTH].rstrip()


def _together(hardware: Hardware) -> Summary:
    return {
        "gpus": hardware.gpus,
        "no_gpu": hardware.no_gpu,
        "hbm_gbps_mean": _gb(hardware.hbm_bytes_per_s_mean),
        "hbm_share_mean": hardware.hbm_share_mean,
        "sm_active_mean": hardware.sm_active_mean,
        "power_w_mean": hardware.power_w_mean,
        "power_limit_w": hardware.power_limit_w,
        "energy_j": hardware.energy_j,
        "joules_per_token": hardware.joules_per_token,
        "tokens_per_s_per_w": hardware.tokens_per_s_per_w,
        "derived_gbps": _gb(hardware.derived_bytes_per_s),
        "derived_weights_share": hardware.derived_weights_share,
        "weight_bytes": hardware.weight_bytes,
        "kv_bytes": hardware.kv_bytes,
    }


def _gpu(gpu: GpuState) -> Summary:
    info = gpu.info
    return {
        **{name: getattr(info, name) for name in GPU_INFO},
        "engines": gpu.watched,
        "via": gpu.via,
        "peak_gbps": _gb(info.peak_bytes_per_s),
        "peak_from": info.peak_from,
        "sheet_gbps": _gb(info.sheet_bytes_per_s),
        "hbm_gbps_mean": _gb(gpu.hbm_bytes_per_s_mean),
        "hbm_share_mean": gpu.hbm_share_mean,
        "sm_active_mean": gpu.sm_active_mean,
        "power_w_mean": gpu.power_w_mean,
        "energy_j": gpu.energy_j,
        "throttled": dict(gpu.throttled),
        **{name: getattr(gpu, name) for name in GPU_LATEST},
        "missing": dict(info.missing),
    }


def _host(host: HostState) -> Summary:
    info = host.info
    return {
        "name": host.source or (info.name if info else None),
        "cpu": info.cpu if info else None,
        "cores": host.cores,
        "memory_bytes": info.memory_bytes if info else None,
        "busy_cores": host.busy,
        "run_queue": host.run_queue,
        "memory_used_bytes": host.memory_used_bytes,
        "api_loop_lag_max_s": host.api_loop_lag_s,
        "own_loop_lag_max_s": host.own_loop_lag_s,
        "processes": [_process(each) for each in host.processes],
    }


def _process(process: ProcessState) -> Summary:
    return {name: getattr(process, name) for name in PROCESS}


def _gb(size_bytes: float | None) -> float | None:
    """Convert bytes to decimal gigabytes."""
    return None if size_bytes is None else size_bytes / GIGA
