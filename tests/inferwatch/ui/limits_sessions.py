"""Scripted limits: what they look like for an H100, a CPU, eight GPUs, a mistake."""

from dataclasses import replace
from typing import Any

from collectors.contract.readings import Stage
from inferwatch.limits.shape import ModelShape
from inferwatch.metrics.floor.curve import FloorCurve
from inferwatch.metrics.floor.view import (
    Bound,
    DeviceMemory,
    EnginePeak,
    Impossible,
    Limits,
    MemoryPart,
    OperatingPoint,
    Saving,
    TimeSplit,
)
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.efficiency import BatchCurve, BatchPoint
from inferwatch.metrics.steps.startup import StageTime, Startup
from tests.inferwatch.ui import attached_sessions, conftest, hardware_sessions
from tests.inferwatch.ui.conftest import BINS, NOW_NS, S, ScriptedFeed, burst

GB = 1_000_000_000
LLAMA_8B = ModelShape(
    name="Llama-3.1-8B",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    vocab=128256,
)
NO_CONFIG = (
    "the model's shape is not known: vLLM told no config; "
    "--model-config names its config.json"
)
NO_PEAK = (
    "what this host can do is not known: "
    "inferwatch doctor --measure-peak measures it in 20 s"
)
H100 = EnginePeak(
    bytes_per_s=3.352e12,
    flops=989e12,
    dtype="bfloat16",
    device="H100 80GB HBM3",
    read_from="data sheet",
)
CPU = EnginePeak(
    bytes_per_s=24.3e9,
    flops=311e9,
    dtype="float32",
    device="Xeon, 2 cores",
    read_from="measured here",
)


def point(
    peak: EnginePeak, intensity: float, reached: float, step_s: float, steps: int
) -> OperatingPoint:
    """Some steps that reach a share of what the peak allows there."""
    assert peak.bytes_per_s
    assert peak.flops
    assert peak.ridge
    flops = reached * min(peak.flops, peak.bytes_per_s * intensity)
    return OperatingPoint(
        steps=steps,
        intensity=intensity,
        flops=flops,
        bytes_per_s=flops / intensity,
        bound=Bound.MEMORY if intensity < peak.ridge else Bound.COMPUTE,
        floor_s=reached * step_s,
        step_s=step_s,
        mbu=flops / intensity / peak.bytes_per_s,
        mfu=flops / peak.flops,
    )


def device(worker: int = 0, gpu: str | None = "GPU-0", tp: int = 1) -> DeviceMemory:
    """A worker on a card of 80 GB, with its share of an 8B model."""
    parts = (
        ("weights", 16_060_000_000 // tp, "worker, after loading", False),
        ("KV cache", 48_300_000_000 + worker * GB // 4, "block count", False),
        ("activations", 1_240_000_000, "vLLM's profile", True),
        ("graphs", 810_000_000, "worker, after capture", False),
        ("workspace", 640_000_000, "driver", False),
        ("other", 1_100_000_000, "driver, less these", False),
    )
    used = sum(n_bytes for _, n_bytes, _, _ in parts)
    total = 85_520_809_984
    free = MemoryPart(name="free", n_bytes=total - used, read_from="driver")
    return DeviceMemory(
        rank=0,
        worker=worker,
        gpu=gpu,
        total_bytes=total,
        allowed_bytes=76_968_728_985,
        parts=(
            *(
                MemoryPart(
                    name=name, n_bytes=size, read_from=read, is_estimate=estimate
                )
                for name, size, read, estimate in parts
            ),
            free,
        ),
        load_s=None if worker else 4.2,
        load_floor_s=0.255 / tp,
    )


LIMITS = Limits(
    peak=H100,
    shape=LLAMA_8B,
    parameters=8_030_261_248,
    active_parameters=8_030_261_248,
    weight_bytes=16_060_522_496,
    kv_bytes_per_token=131_072,
    decode=point(H100, 42.3, 0.41, 0.0127, 5_811),
    prefill=point(H100, 612.0, 0.52, 0.0414, 289),
    measured_mbu=0.37,
    measured_mfu=0.18,
    split=TimeSplit(
        memory_floor=0.34,
        compute_floor=0.08,
        inefficiency=0.41,
        host_gap=0.17,
        idle_share=0.12,
    ),
    curve=FloorCurve(
        tokens_per_request=4096.0,
        fixed_bytes=15_009_849_344,
        expert_bytes=0.0,
        untouched=1.0,
        request_bytes=536_879_104,
        request_flops=17_157_849_088,
        bytes_per_s=3.352e12,
        flops=989e12,
    ),
    tpot_floor_s=0.0052,
    memory=(device(),),
    max_requests=89.96,
    tokens_per_request=4096.0,
    savings=(
        Saving(
            name="FP8 weights",
            freed_bytes=7_500_000_000,
            more_requests=13.9,
            floor_s=0.0031,
            helps=True,
        ),
        Saving(
            name="4-bit weights",
            freed_bytes=11_200_000_000,
            more_requests=20.9,
            floor_s=0.0022,
            helps=True,
        ),
        Saving(
            name="FP8 KV cache",
            freed_bytes=24_150_000_000,
            more_requests=89.9,
            floor_s=0.0049,
            helps=False,
        ),
    ),
)
"""Llama 8B on an H100: decode is bound by memory, prefill by compute."""


def with_limits(made: Snapshot, limits: Limits) -> Snapshot:
    """The busy minute of the other screens, with floors below its steps."""
    line = made.timeline
    peak, curve = limits.peak, limits.curve
    if curve is not None:
        curve = replace(curve, bytes_per_s=peak.bytes_per_s, flops=peak.flops)
    limits = replace(limits, curve=curve if peak.bytes_per_s else None)
    reached = 0.41
    if limits.decode is not None and limits.decode.floor_s is not None:
        reached = limits.decode.floor_s / limits.decode.step_s
    known = limits.peak.ridge is not None and limits.decode is not None
    return replace(
        made,
        limits=limits,
        timeline=replace(
            line,
            floor_mean_s=tuple(
                None if each is None or not known else round(each * reached, 6)
                for each in line.step_mean_s
            ),
            gap_mean_s=tuple(
                None if each is None else round(0.0008 + 0.0012 * burst(i), 6)
                for i, each in zip(range(BINS), line.step_mean_s, strict=True)
            ),
        ),
    )


def of(limits: Limits, **fields: Any) -> ScriptedFeed:
    """A session with these, and with the GPUs that their memory is of."""
    names = {each.gpu for each in limits.memory} - {None}
    gpus = [hardware_sessions.h100(index) for index in range(len(names))]

    def change(made: Snapshot) -> Snapshot:
        made = hardware_sessions.shown_with(made, *gpus) if gpus else made
        return with_limits(made, limits)

    return ScriptedFeed(change=change, **fields)


def h100() -> ScriptedFeed:
    """Decode bound by memory."""
    return of(LIMITS)


def curved() -> ScriptedFeed:
    """The same, with steps of many batch sizes: 2.1 ms and 35% beyond their floors."""
    curve = LIMITS.curve
    assert curve is not None
    points = []
    for batch in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        mean = batch * 1.1 if batch > 3 else batch
        step_s = 1.35 * (curve.floor_s(mean) or 0.0) + 0.0021
        points.append(
            BatchPoint(
                batch=batch,
                steps=40 * (40 - batch),
                step_mean_s=step_s,
                output_tokens_per_s=mean / step_s,
            )
        )
    found = BatchCurve(points=tuple(points), now_batch=13.0, prefill_steps=289)
    feed = of(LIMITS)
    limited = feed.change

    def change(made: Snapshot) -> Snapshot:
        return replace(limited(made), batch_curve=found)

    feed.change = change
    return feed


def prefill_heavy() -> ScriptedFeed:
    """Long prompts: nearly all time is theirs, and compute binds."""
    return of(
        replace(
            LIMITS,
            decode=point(H100, 12.0, 0.71, 0.0071, 120),
            prefill=point(H100, 4_410.0, 0.63, 0.412, 2_044),
            split=TimeSplit(
                memory_floor=0.02,
                compute_floor=0.6,
                inefficiency=0.36,
                host_gap=0.02,
                idle_share=0.0,
            ),
            savings=tuple(replace(each, helps=False) for each in LIMITS.savings),
        )
    )


def cpu() -> ScriptedFeed:
    """A tiny model on two cores: the host takes most of the time."""
    parts = (
        MemoryPart(name="weights", n_bytes=26_200_000, read_from="its shape"),
        MemoryPart(name="KV cache", n_bytes=58_700_000, read_from="block count"),
    )
    return of(
        Limits(
            peak=CPU,
            decode=point(CPU, 5.1, 0.031, 0.0091, 6_022),
            prefill=point(CPU, 48.0, 0.21, 0.0212, 310),
            split=TimeSplit(
                memory_floor=0.02,
                compute_floor=0.01,
                inefficiency=0.76,
                host_gap=0.21,
                idle_share=0.31,
            ),
            memory=(DeviceMemory(rank=0, worker=0, parts=parts),),
            max_requests=31.2,
            tokens_per_request=231.0,
        )
    )


def no_compute() -> ScriptedFeed:
    """How fast memory is is known, how fast it multiplies is not."""
    peak = replace(H100, flops=None)
    decode = replace(point(H100, 42.3, 0.41, 0.0127, 5_811), mfu=None)
    why = "How fast these GPUs multiply float8 is not known: floors are of memory alone"
    return of(replace(LIMITS, peak=peak, decode=decode, prefill=None, missing=(why,)))


def no_shape() -> ScriptedFeed:
    """The peaks are known, the model is not."""
    return of(
        Limits(
            peak=H100,
            split=TimeSplit(host_gap=0.17, idle_share=0.12),
            memory=(device(),),
            missing=(
                NO_CONFIG,
                "GPU counters are not read: this driver has no GPM",
            ),
        )
    )


def no_peak() -> ScriptedFeed:
    """The model is known, what it runs on is not."""
    return of(
        replace(
            LIMITS,
            peak=EnginePeak(device="Xeon, 2 cores"),
            decode=replace(
                point(H100, 42.3, 0.41, 0.0127, 5_811),
                bound=None,
                floor_s=None,
                mbu=None,
                mfu=None,
            ),
            prefill=None,
            measured_mbu=None,
            measured_mfu=None,
            split=TimeSplit(host_gap=0.17),
            memory=(),
            max_requests=None,
            savings=(),
            missing=(NO_PEAK,),
        )
    )


def impossible() -> ScriptedFeed:
    """Steps that no H100 could have done."""
    found = Impossible(steps=12, worst_ratio=1.43, t_ns=NOW_NS - 21 * S, step=24_017)
    return of(
        replace(
            LIMITS,
            decode=point(H100, 42.3, 1.31, 0.0033, 5_811),
            savings=(),
            impossible=found,
        )
    )


def eight() -> ScriptedFeed:
    """One model on eight GPUs."""
    peak = replace(H100, bytes_per_s=8 * 3.352e12, flops=8 * 989e12, devices=8)
    return of(
        replace(
            LIMITS,
            peak=peak,
            decode=point(peak, 42.3, 0.28, 0.0047, 5_811),
            prefill=point(peak, 612.0, 0.33, 0.0121, 289),
            memory=tuple(device(n, f"GPU-{n}", tp=8) for n in range(8)),
            max_requests=734.1,
            savings=tuple(
                replace(each, freed_bytes=8 * each.freed_bytes, floor_s=0.0011)
                for each in LIMITS.savings
            ),
        )
    )


def lost() -> ScriptedFeed:
    """The engine is gone; nothing is told of it any more."""
    feed = conftest.lost(ScriptedFeed())
    killed = feed.change
    feed.change = lambda made: with_limits(killed(made), LIMITS)
    return feed


def scraped() -> ScriptedFeed:
    """A server of others, told by its metrics alone."""
    return attached_sessions.scraped()


def untouched() -> ScriptedFeed:
    """Nobody has asked anything yet; how memory is shared out is known."""
    feed = conftest.untouched(ScriptedFeed())
    served = feed.change
    early = Limits(peak=H100, shape=LLAMA_8B, memory=(device(),))
    feed.change = lambda made: replace(served(made), limits=early)
    return feed


def nothing_yet() -> ScriptedFeed:
    """Its first step is still to come."""
    return ScriptedFeed()


IN_USE: dict[str, str | int | float | bool | None] = {
    "attention_backend": "FLASH_ATTN",
    "cudagraph_mode": "FULL_AND_PIECEWISE",
    "compilation_mode": "VLLM_COMPILE",
    "kv_cache_dtype": "fp8",
    "quantization": "compressed-tensors",
    "kv_connector": "NixlConnector",
}
STARTUP = Startup(
    duration_s=60.0,
    stages=(
        StageTime(stage=Stage.IMPORTS, duration_s=17.0),
        StageTime(stage=Stage.LOAD_WEIGHTS, duration_s=20.0, bytes_per_s=8e8),
        StageTime(stage=Stage.COMPILE, duration_s=19.0, cached=False),
        StageTime(stage=Stage.KV, duration_s=0.1),
    ),
)


def told() -> ScriptedFeed:
    """How the engine started and runs is known, too."""
    feed = h100()
    limited = feed.change
    feed.change = lambda made: replace(limited(made), settings=IN_USE, startup=STARTUP)
    return feed
