"""Measures what folding a step and taking a snapshot cost, at several loads.

Run it with ``python benchmarks/model.py``; times are CPU time, so that other processes
on the core count little. Of snapshots the best of several tries is shown, of folds the
median.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from statistics import median
from time import process_time
from typing import NamedTuple

from psutil import Process

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    EngineInfo,
    EventKind,
    GpuInfo,
    GpuSample,
    RequestEvent,
    Step,
    Vantage,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery

S = 1_000_000_000
ENGINE = "engine-1"
TRIES = 7
STEPS_PER_REQUEST = 200


class Load(NamedTuple):
    """A constant load of an engine."""

    name: str
    steps_per_s: int
    batch: int
    seconds: int
    lockstep: bool = True
    """If False, gaps of tokens all differ, which is the worst case for windows."""


LOADS = (
    Load("demo: 150 steps/s x 16", 150, 16, 310),
    Load("300 steps/s x 64", 300, 64, 310),
    Load("300 steps/s x 256", 300, 256, 40),
    Load("2,000 single steps/s: 600k different ITLs", 2_000, 1, 310, lockstep=False),
)


def event(t_ns: int, kind: EventKind, ordinal: int, **fields: object) -> RequestEvent:
    front = kind in {EventKind.ARRIVED, EventKind.FIRST_TOKEN}
    defaults = {
        "vantage": Vantage.FRONTEND if front else Vantage.ENGINE,
        "ordinal": None if front else ordinal,
        "prompt_tokens": 100,
    }
    return RequestEvent(
        source=ENGINE,
        t_ns=t_ns,
        kind=kind,
        request_id=f"r{ordinal}",
        **{**defaults, **fields},  # type: ignore[arg-type]
    )


def born(t_ns: int, ordinal: int) -> Iterator[RequestEvent]:
    yield event(t_ns - 2_000, EventKind.ARRIVED, ordinal)
    yield event(t_ns - 1_000, EventKind.ADDED, ordinal)
    yield event(t_ns, EventKind.SCHEDULED, ordinal, cached_tokens=0)


def died(t_ns: int, ordinal: int) -> Iterator[RequestEvent]:
    end = {"reason": "stop", "output_tokens": STEPS_PER_REQUEST}
    yield event(t_ns, EventKind.FINISHED, ordinal, **end)
    yield event(t_ns, EventKind.FIRST_TOKEN, ordinal)
    yield event(t_ns, EventKind.FINISHED, ordinal, vantage=Vantage.FRONTEND, **end)


def readings(load: Load) -> Iterator[AnyReading]:
    """Yield readings of requests that come and go one by one, after 200 steps each."""
    random = Random(0)
    yield EngineInfo(
        source=ENGINE, t_ns=0, pid=1, model="m", vllm_version="0", num_kv_blocks=4096
    )
    steps_between = max(STEPS_PER_REQUEST // load.batch, 1)
    at_once = max(load.batch // STEPS_PER_REQUEST, 1)
    alive: list[tuple[int, int]] = []
    end_ns, ordinal = 0, 0
    for index in range(load.steps_per_s * load.seconds):
        start_ns = end_ns
        jitter = random.gauss(1, 0.05) if load.lockstep else random.uniform(0.2, 1.8)
        end_ns = start_ns + round(S / load.steps_per_s * jitter)
        new = 0
        while alive and alive[0][1] <= index:
            yield from died(start_ns, alive.pop(0)[0])
        if index % steps_between == 0:
            while new < at_once and len(alive) < load.batch:
                yield from born(start_ns, ordinal)
                alive.append((ordinal, index + STEPS_PER_REQUEST))
                ordinal, new = ordinal + 1, new + 1
        yield Step(
            source=ENGINE,
            index=index,
            start_ns=start_ns,
            end_ns=end_ns,
            duration_ns=end_ns - start_ns,
            prefill_requests=new,
            decode_requests=len(alive) - new,
            prefill_tokens=100 * new,
            decode_tokens=len(alive) - new,
            running=len(alive),
            bound_by=BoundBy.NOTHING,
            kv_used_blocks=10 * len(alive),
            kv_cached_blocks=50,
            kv_free_blocks=4046 - 10 * len(alive),
            prefix_queries=100 * new,
            prefix_hits=32 * new,
            members=[member for member, _ in alive],
            scheduled=[1] * (len(alive) - new) + [100] * new,
            produced=[1] * len(alive),
        )


def best_ms(run: Callable[[], object]) -> float:
    """Return the least CPU time of several tries."""
    times = []
    for _ in range(TRIES):
        began = process_time()
        run()
        times.append(process_time() - began)
    return min(times) * 1e3


def fold_all(load: Load) -> tuple[Model, int, float, int]:
    """Return the Model, its last moment, µs per step and tokens per step."""
    model, spent_s, steps, tokens, now_ns, events = Model(), [], 0, 0, 0, 1.0
    for some in batched(readings(load), 2_000):
        began = process_time()
        for reading in some:
            model.fold(reading)
        spent_s.append((process_time() - began) / len(some))
        of_steps = [reading for reading in some if isinstance(reading, Step)]
        steps, now_ns = steps + len(of_steps), of_steps[-1].end_ns
        tokens += sum(step.output_tokens for step in of_steps)
        events = len(some) / len(of_steps)
    return model, now_ns, median(spent_s) * events * 1e6, tokens // steps


def batched(source: Iterator[AnyReading], size: int) -> Iterator[list[AnyReading]]:
    while some := list(islice(source, size)):
        yield some


def report(load: Load) -> None:
    model, now_ns, us_per_step, batch = fold_all(load)
    print(f"\n{load.name}")
    print(f"  fold        {us_per_step:6.1f} µs per step of {batch} tokens, events in")
    for window in Window:
        full = best_ms(
            lambda window=window: model.snapshot(  # type: ignore[misc]
                now_ns, SnapshotQuery(window)
            )
        )
        bare = best_ms(
            lambda window=window: model.snapshot(  # type: ignore[misc]
                now_ns, SnapshotQuery(window, requests=False)
            )
        )
        n = next(
            row.quantiles.n
            for row in model.snapshot(now_ns, SnapshotQuery(window)).latencies
            if row.metric == "itl_s"
        )
        print(
            f"  {window.label:<8} {full:9.2f} ms with rows, {bare:6.2f} ms without,"
            f" {n:>9,} ITLs"
        )


def gpu_samples(gpus: int, hz: int, seconds: int) -> Iterator[AnyReading]:
    """Yield samples of GPUs with all fields, each GPU at a constant load."""
    for index in range(gpus):
        yield GpuInfo(t_ns=0, source=f"GPU-{index}", uuid=f"GPU-{index}", index=index)
    for tick in range(1, seconds * hz + 1):
        for index in range(gpus):
            yield GpuSample(
                source=f"GPU-{index}",
                t_ns=tick * S // hz,
                span_ns=S // hz,
                via="gpm",
                dram_active=0.1 * index,
                peak_bytes_per_s=3.35e12,
                sm_active=0.5,
                sm_occupancy=0.3,
                tensor_active=0.2,
                pcie_tx_bytes_per_s=1e9,
                pcie_rx_bytes_per_s=1e9,
                nvlink_tx_bytes_per_s=1e10,
                nvlink_rx_bytes_per_s=1e10,
                power_w=500.0,
                sm_clock_mhz=1_980,
                throttle_reasons=4,
                memory_used_bytes=70 << 30,
                energy_mj=tick * 500_000 // hz,
                throttled_ns={"power_cap": tick * S // hz // 4},
            )


def report_gpus(gpus: int, hz: int) -> None:
    """Print the cost of folding a GPU sample, and of GPUs in a snapshot."""
    model, samples = Model(), list(gpu_samples(gpus, hz, 310))
    began = process_time()
    for reading in samples:
        model.fold(reading)
    spent_us = (process_time() - began) / len(samples) * 1e6
    print(f"\n{gpus} GPUs, {hz} times a second")
    print(f"  fold        {spent_us:6.1f} µs per sample")
    for window in Window:
        bare, full = (
            best_ms(
                lambda window=window, hardware=hardware: model.snapshot(  # type: ignore[misc]
                    310 * S, SnapshotQuery(window, hardware=hardware)
                )
            )
            for hardware in (False, True)
        )
        print(f"  {window.label:<8} {bare:9.2f} ms, {full:6.2f} ms with each over time")


def report_memory(load: Load) -> None:
    """Print the memory of the process while a Model's windows fill and stay full."""
    model, process, sizes_mb = Model(), Process(), []
    for count, reading in enumerate(readings(load)):
        model.fold(reading)
        if count % 20_000 == 0:
            sizes_mb.append(process.memory_info().rss / 1e6)
    print(f"\nmemory of the process at {load.name}, every 20,000 readings, MB")
    print("  " + " ".join(f"{size:.0f}" for size in sizes_mb))


if __name__ == "__main__":
    report_memory(Load("150 steps/s x 16", 150, 16, 900))
    for each in LOADS:
        report(each)
    report_gpus(2, 1)
    report_gpus(8, 10)
