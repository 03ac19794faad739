"""Scripted GPUs and hosts, put into a snapshot: what they did goes with the load."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from collectors.contract.readings import GpuInfo, HostInfo
from inferwatch.metrics.hardware.hosts import HostState, HostTimeline, ProcessState
from inferwatch.metrics.hardware.view import GpuState, GpuTimeline, Hardware
from inferwatch.metrics.snapshot import Snapshot
from tests.inferwatch.ui.conftest import BINS, burst

PEAK = 4.9e12
Column = tuple[float | None, ...]


def _column(value: Callable[[float], float]) -> Column:
    return tuple(round(value(burst(i)), 4) for i in range(BINS))


def gpu(number: int = 0, **facts: Any) -> GpuState:
    """One at work."""
    info = GpuInfo(
        source=f"GPU-{number}",
        t_ns=1,
        uuid=f"GPU-{number}",
        name=facts.pop("name", "NVIDIA H200"),
        driver=facts.pop("driver", "580.95.05"),
        index=number,
        peak_bytes_per_s=PEAK,
        lost_because=facts.pop("lost_because", None),
        parent_uuid=facts.pop("parent_uuid", None),
    )
    usual: dict[str, Any] = {
        "watched": True,
        "via": "gpm",
        "span_s": 1.0,
        "hbm_bytes_per_s": 3.61e12,
        "hbm_share": 0.737,
        "sm_active": 0.88,
        "tensor_active": 0.31,
        "power_w": 588.0,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1830,
        "timeline": GpuTimeline(
            hbm_share=_column(lambda x: 0.4 + 0.4 * x),
            sm_active=_column(lambda x: 0.5 + 0.4 * x),
            power_w=_column(lambda x: 300 + 380 * x),
            throttled=_column(lambda x: max(x - 0.8, 0)),
        ),
    }
    return GpuState(source=info.source, info=info, **usual | facts)


def with_gpus(made: Snapshot, *gpus: GpuState) -> Snapshot:
    """A host whose engine runs on these, or on one."""
    states = gpus or (gpu(),)

    def known(name: str) -> Sequence[float]:
        values = [getattr(each, name) for each in states if each.watched is not False]
        return [value for value in values if value is not None]

    def total(name: str) -> float | None:
        return sum(known(name)) if known(name) else None

    def mean(name: str) -> float | None:
        return sum(known(name)) / len(known(name)) if known(name) else None

    ours = [each for each in states if each.watched is not False]
    made = without_gpu(made)
    return replace(
        made,
        gpus=states,
        hardware=replace(
            made.hardware,
            gpus=len(ours),
            no_gpu=None,
            hbm_bytes_per_s=total("hbm_bytes_per_s"),
            hbm_share=mean("hbm_share"),
            sm_active=mean("sm_active"),
            power_w=total("power_w"),
            power_limit_w=total("power_limit_w"),
            hbm_bytes_per_s_mean=total("hbm_bytes_per_s"),
            sm_active_mean=mean("sm_active"),
            power_w_mean=total("power_w"),
            energy_j=34_000.0,
            joules_per_token=0.498,
            tokens_per_s_per_w=2.01,
        ),
        timeline=replace(
            made.timeline,
            hbm_bytes_per_s=_column(lambda x: len(ours) * (2e12 + 1.9e12 * x)),
            hbm_share=_column(lambda x: 0.4 + 0.4 * x),
            sm_active=_column(lambda x: 0.5 + 0.4 * x),
            power_w=_column(lambda x: len(ours) * (300 + 380 * x)),
            throttled=_column(lambda x: max(x - 0.8, 0)),
            derived_bytes_per_s=_column(lambda x: len(ours) * (1.7e12 + 1e12 * x)),
        ),
    )


def without_gpu(made: Snapshot) -> Snapshot:
    """A host with its processes, whose engine computes on the CPU."""
    host = HostState(
        info=HostInfo(t_ns=1, name="node-1", cores=16),
        cores=16,
        busy=3.4,
        api_loop_lag_s=0.0021,
        processes=(ProcessState(pid=4240, role="api", cpu_share=0.34, threads=12),),
        timeline=HostTimeline(busy=_column(lambda x: 0.2 + 0.3 * x)),
    )
    return replace(
        made,
        hosts=(host,),
        hardware=Hardware(
            no_gpu="no NVIDIA driver: install one, or ignore this on a CPU",
            derived_bytes_per_s=1.24e9,
            derived_weights_share=0.8,
        ),
        timeline=replace(
            made.timeline,
            derived_bytes_per_s=_column(lambda x: 0.9e9 + 0.7e9 * x),
            host_busy=_column(lambda x: 0.2 + 0.3 * x),
        ),
    )
