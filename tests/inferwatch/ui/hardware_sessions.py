"""Sessions with GPUs that never vary: what the screen of the hardware shows."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from collectors.contract.readings import GpuInfo, HostInfo
from inferwatch.metrics.hardware.hosts import HostState, HostTimeline, ProcessState
from inferwatch.metrics.hardware.view import GpuState, GpuTimeline, Hardware
from inferwatch.metrics.snapshot import Snapshot
from tests.inferwatch.ui.conftest import BINS, NOW_NS, ScriptedFeed, burst

S = 1_000_000_000
GB = 1_000_000_000
PEAK = 3_352_300_000_000.0
NO_GPM = (
    "GPM begins with Hopper: this Ampere needs the DCGM exporter (docker run "
    "nvidia/dcgm-exporter), then --dcgm http://localhost:9400/metrics"
)
NO_DRIVER = (
    "no NVIDIA driver: libnvidia-ml.so.1 is not there. On a GPU node install it, in a "
    "container start it with --gpus all"
)

Column = tuple[float | None, ...]


def column(value: Callable[[float], float]) -> Column:
    """A minute of waves, with the gap of the scripted session."""
    return tuple(
        None if i in range(22, 27) else round(value(burst(i)), 4) for i in range(BINS)
    )


def gpu_timeline() -> GpuTimeline:
    return GpuTimeline(
        hbm_bytes_per_s=column(lambda w: PEAK * (0.42 + 0.4 * w)),
        hbm_share=column(lambda w: 0.42 + 0.4 * w),
        sm_active=column(lambda w: 0.61 + 0.3 * w),
        sm_occupancy=column(lambda w: 0.2 + 0.1 * w),
        tensor_active=column(lambda w: 0.12 + 0.3 * w),
        memory_busy=column(lambda w: 0.5 + 0.4 * w),
        power_w=column(lambda w: 380 + 310 * w),
        sm_clock_mhz=column(lambda w: 1980 - 240 * w),
        throttled=column(lambda w: max(w - 0.6, 0)),
        memory_used_bytes=column(lambda _: 71.2 * GB),
        pcie_bytes_per_s=column(lambda w: 1.6e9 * w),
    )


def h100(index: int = 0, *, watched: bool | None = True) -> GpuState:
    """Busy, held back a little by its power limit."""
    info = GpuInfo(
        t_ns=0,
        source=f"GPU-{index}",
        uuid=f"GPU-{index}",
        name="NVIDIA H100 80GB HBM3",
        index=index,
        architecture="Hopper",
        driver="570.86",
        memory_bytes=85_520_000_000,
        memory_bus_bits=5120,
        max_sm_clock_mhz=1980,
        max_memory_clock_mhz=2619,
        peak_bytes_per_s=PEAK,
        peak_from="clock and bus width",
        sheet_bytes_per_s=3_350_000_000_000.0,
    )
    share = 0.72 - 0.013 * index
    return GpuState(
        source=info.source,
        info=info,
        watched=watched,
        via="gpm",
        last_ns=NOW_NS - 400_000_000,
        span_s=1.0,
        hbm_bytes_per_s=PEAK * share,
        hbm_bytes_per_s_mean=PEAK * 0.66,
        hbm_share=share,
        hbm_share_mean=0.66,
        sm_active=0.88 - 0.01 * index,
        sm_active_mean=0.81,
        sm_occupancy=0.27,
        tensor_active=0.31,
        gpu_busy=0.99,
        memory_busy=0.78,
        power_w=588.0 - 7 * index,
        power_limit_w=700.0,
        power_w_mean=561.0,
        energy_j=33_660.0,
        sm_clock_mhz=1755,
        memory_clock_mhz=2619,
        throttle_reasons=("power cap",) if index == 0 else (),
        throttled={"power cap": 0.12, "software thermal": 0.031, "power brake": 0.0},
        temperature_c=64 + index,
        memory_temperature_c=81,
        memory_used_bytes=71_200_000_000,
        memory_reserved_bytes=620_000_000,
        pcie_tx_bytes_per_s=0.31e9,
        pcie_rx_bytes_per_s=1.62e9,
        nvlink_tx_bytes_per_s=12.4e9,
        nvlink_rx_bytes_per_s=12.1e9,
        memory_by_pid={4242: 71_000_000_000},
        timeline=gpu_timeline(),
    )


def idle(index: int) -> GpuState:
    """One of somebody else, at rest."""
    busy = h100(index, watched=False)
    return replace(
        busy,
        hbm_bytes_per_s=PEAK * 0.001,
        hbm_share=0.001,
        sm_active=0.0,
        sm_occupancy=0.0,
        tensor_active=0.0,
        power_w=71.0,
        throttle_reasons=(),
        throttled={},
        memory_used_bytes=520_000_000,
        temperature_c=31,
        timeline=GpuTimeline(),
    )


def lost(gpu: GpuState) -> GpuState:
    why = "the driver does not reach it (GPU is lost): see dmesg for Xid 79, reset it"
    return replace(gpu, info=_changed(gpu.info, lost_because=why))


def _changed(info: GpuInfo, **changes: object) -> GpuInfo:
    fields = {name: getattr(info, name) for name in info.__struct_fields__}
    return GpuInfo(**{**fields, **changes})


def old_card() -> GpuState:
    """An A100 without an exporter beside it."""
    averages = ("dram_active", "sm_active", "sm_occupancy", "tensor_active")
    info = _changed(
        h100().info,
        name="NVIDIA A100-SXM4-80GB",
        architecture="Ampere",
        missing=dict.fromkeys(averages, NO_GPM),
        peak_bytes_per_s=2_039_000_000_000.0,
        max_sm_clock_mhz=1410,
    )
    return replace(
        h100(),
        info=info,
        via=None,
        span_s=None,
        hbm_bytes_per_s=None,
        hbm_bytes_per_s_mean=None,
        hbm_share=None,
        hbm_share_mean=None,
        sm_active=None,
        sm_active_mean=None,
        sm_occupancy=None,
        tensor_active=None,
        power_w=312.0,
        power_limit_w=400.0,
        sm_clock_mhz=1410,
        memory_clock_mhz=1593,
        throttle_reasons=(),
        throttled={},
        nvlink_tx_bytes_per_s=None,
        nvlink_rx_bytes_per_s=None,
        timeline=replace(
            gpu_timeline(),
            hbm_bytes_per_s=(),
            hbm_share=(),
            sm_active=(),
            sm_occupancy=(),
            tensor_active=(),
            power_w=column(lambda w: 190 + 170 * w),
            sm_clock_mhz=column(lambda _: 1_410),
            throttled=column(lambda _: 0.0),
        ),
    )


def slice_of(number: int) -> GpuState:
    """A MIG slice: shares alone."""
    info = GpuInfo(
        t_ns=0,
        source=f"MIG-{number}",
        uuid=f"MIG-{number}",
        name="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        driver="570.86",
        memory_bytes=11_000_000_000,
        parent_uuid=f"GPU-{number // 7}",
        profile="1g.10gb",
        missing={
            "power_w": "of the whole GPU alone: a slice has no sensor",
            "energy_mj": "of the whole GPU alone",
        },
    )
    share = 0.9 - 0.05 * number
    return GpuState(
        source=info.source,
        info=info,
        watched=number < 2,
        via="gpm",
        last_ns=NOW_NS - 300_000_000,
        span_s=1.0,
        hbm_share=share,
        hbm_share_mean=share - 0.04,
        sm_active=max(share - 0.1, 0),
        sm_occupancy=0.2,
        tensor_active=0.3,
        sm_clock_mhz=1755,
        temperature_c=None,
        memory_used_bytes=9_100_000_000 - 400_000_000 * number,
        timeline=replace(gpu_timeline(), hbm_bytes_per_s=(), power_w=()),
    )


def host(source: str = "", name: str = "node-a", *, small: bool = False) -> HostState:
    processes = (
        ProcessState(
            pid=4240, role="api", cpu_share=0.34, rss_bytes=812_000_000, threads=23
        ),
        ProcessState(
            pid=4242,
            role="core",
            cpu_share=0.97,
            rss_bytes=2_104_000_000,
            threads=64,
            throttled=0.08 if small else 0.0,
        ),
        ProcessState(
            pid=4310, role="load", cpu_share=0.12, rss_bytes=91_000_000, threads=3
        ),
        ProcessState(
            pid=4199,
            role="inferwatch",
            cpu_share=0.031,
            rss_bytes=142_000_000,
            threads=6,
        ),
    )
    return HostState(
        source=source,
        info=HostInfo(
            t_ns=0,
            name=name,
            cpu="Intel Xeon Platinum 8480C" if not small else "AMD EPYC 7B13",
            cores=2 if small else 52,
            memory_bytes=(8 if small else 512) * GB,
        ),
        last_ns=NOW_NS - 700_000_000,
        cores=2 if small else 52,
        busy=1.61 if small else 3.24,
        run_queue=3,
        memory_used_bytes=int((4.7 if small else 61.4) * GB),
        api_loop_lag_s=0.0042,
        own_loop_lag_s=0.0011,
        processes=processes,
        timeline=HostTimeline(
            busy=column(lambda w: 0.3 + 0.6 * w),
            cpu_by_role={
                "api": column(lambda w: 0.1 + 0.3 * w),
                "core": column(lambda w: 0.6 + 0.4 * w),
                "load": column(lambda _: 0.1),
                "inferwatch": column(lambda _: 0.03),
            },
            loop_lag_s=column(lambda w: 0.001 + 0.004 * w),
        ),
    )


def total(gpus: Sequence[GpuState], name: str) -> float | None:
    values = [getattr(each, name) for each in gpus]
    return None if None in values or not values else sum(values)


def mean(gpus: Sequence[GpuState], name: str) -> float | None:
    summed = total(gpus, name)
    return None if summed is None else summed / len(gpus)


def shown_with(
    made: Snapshot,
    *gpus: GpuState,
    hosts: tuple[HostState, ...] | None = None,
    no_gpu: str | None = None,
    derived: float = 2.0e12,
) -> Snapshot:
    """The scripted picture, on this hardware."""
    own = [each for each in gpus if each.watched]
    return replace(
        made,
        gpus=gpus,
        hosts=(host(),) if hosts is None else hosts,
        hardware=Hardware(
            gpus=len(own),
            no_gpu=no_gpu,
            hbm_bytes_per_s=total(own, "hbm_bytes_per_s"),
            hbm_share=mean(own, "hbm_share"),
            sm_active=mean(own, "sm_active"),
            power_w=total(own, "power_w"),
            power_limit_w=total(own, "power_limit_w"),
            joules_per_token=0.475 if own and own[0].power_w else None,
            tokens_per_s_per_w=2.1 if own and own[0].power_w else None,
            derived_bytes_per_s=derived,
            derived_weights_share=0.81,
            weight_bytes=16_060_000_000 * max(len(own), 1) if own else None,
            kv_bytes=51_300_000_000 * max(len(own), 1) if own else None,
        ),
        timeline=replace(
            made.timeline,
            derived_bytes_per_s=column(
                lambda w: derived * max(len(own), 1) * (0.55 + 0.4 * w)
            ),
        ),
    )


def feed_with(change: Callable[[Snapshot], Snapshot]) -> ScriptedFeed:
    feed = ScriptedFeed()
    feed.change = change
    return feed


def busy() -> ScriptedFeed:
    return feed_with(lambda made: shown_with(made, h100()))


def eight() -> ScriptedFeed:
    """Five of the engine, one of these lost; three of others, or at rest."""
    gpus = [*(h100(i) for i in range(5)), idle(5), idle(6), h100(7, watched=False)]
    gpus[3] = lost(gpus[3])
    return feed_with(lambda made: shown_with(made, *gpus))


def mig() -> ScriptedFeed:
    """Two GPUs, each in seven slices."""
    gpus = [h100(0, watched=None), h100(1, watched=None), *map(slice_of, range(14))]
    return feed_with(lambda made: shown_with(made, *gpus))


def without_gpm() -> ScriptedFeed:
    return feed_with(lambda made: shown_with(made, old_card()))


def without_driver() -> ScriptedFeed:
    return feed_with(
        lambda made: shown_with(
            made, hosts=(host(small=True),), no_gpu=NO_DRIVER, derived=3.4e9
        )
    )


def stale_dcgm() -> ScriptedFeed:
    gpu = replace(h100(), via="dcgm", span_s=30.0, last_ns=NOW_NS - 95 * S)
    return feed_with(lambda made: shown_with(made, gpu))


def simulated() -> ScriptedFeed:
    gpus = [
        replace(each, info=_changed(each.info, driver="570.00 simulated"))
        for each in (h100(0), h100(1))
    ]
    return feed_with(lambda made: shown_with(made, *gpus))


def unsampled() -> ScriptedFeed:
    """The GPU is known, and nothing of what it does."""
    gpu = GpuState(source="GPU-0", info=h100().info)
    return feed_with(lambda made: shown_with(made, gpu, hosts=()))
