"""Measures what the probe costs EngineCore's own thread per step, on real vLLM.

    .venv/bin/python benchmarks/probe_cost.py

Runs a scheduler with a tiny model in this process, step by step, and reads the probe's
own count of the time spent in its hooks: first without a subscriber, then with one,
which gets block maps, too. Then alternately with no limit lowered, which is as without
control, and with both live limits lowered. With ``--quick`` it takes fewer steps, and
prints the medians in lines that ``quick.py`` reads; with ``--profiler`` those of an
engine that could be profiled, while nobody asks for it and nobody listens.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import platformdirs
import zmq

from collectors.contract.readings import LimitChange
from collectors.probe.hello import LIVE, Role
from embedded_engine.probe import probe
from embedded_engine.probe.vllm_names import Vllm
from embedded_engine.tiny_model import make
from embedded_engine.worker import answer_for_cpu_wheel

BATCHES, QUICK_BATCHES = (1, 8, 64, 256), (1, 64, 256)
STEPS, QUICK_STEPS = 300, 80
WARM_UP = 30
TURNS = 3
ENVIRONMENT = {
    "INFERWATCH_PROBE": "1",
    "INFERWATCH_CONTROL": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profiler", action="store_true")
    options = parser.parse_args()
    quick = options.quick or options.profiler
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as directory:
        os.environ["INFERWATCH_RUNTIME_DIR"] = directory
        answer_for_cpu_wheel()
        model = make(platformdirs.user_cache_path("inferwatch", appauthor=False))
        engine = boot(model, Path(directory) if options.profiler else None)
        if options.profiler:
            assert probe.start()._profiling, "no profile can be taken"  # noqa: S101
            print_medians(engine, "profiler off")
            return
        report = print_medians if quick else print_costs
        report(engine, "nobody listens")
        with zmq.Context() as context, context.socket(zmq.SUB) as listener:
            listener.connect(f"ipc://{probe.start().speak(Role.CORE).path}")
            listener.subscribe(LIVE)
            time.sleep(2.0)
            report(engine, "somebody listens")
            if quick:
                lower_limits()
                print_medians(engine, "limits in force")
        if not quick:
            print_control_costs(engine)


def print_medians(engine: Vllm, whose: str) -> None:
    """Measure fewer batch sizes, and print a line each for ``quick.py``."""
    for batch in QUICK_BATCHES:
        _, costs, _ = measure(engine, f"{whose} {batch}", batch, QUICK_STEPS)
        cost_us = statistics.median(costs)
        print(f"quick\t{whose}, batch {batch}\t{cost_us:.3f}", flush=True)


def lower_limits() -> None:
    """Lower both live limits by one."""
    control = probe.start()._control
    assert control is not None, "there is no control"  # noqa: S101 - or no sense
    limits = control.desk.limits
    start = limits.wanted
    limits.turn(
        LimitChange.SET, start.max_num_seqs - 1, start.max_num_batched_tokens - 1
    )


def print_costs(engine: Vllm, whose: str) -> None:
    """Measure all batch sizes, and print the costs."""
    rows = [measure(engine, f"{whose} {batch}", batch) for batch in BATCHES]
    print(whose)
    print(
        f"{'batch':>5} {'steps':>6} {'median µs':>10} {'p95 µs':>8} {'sender CPU':>11}"
    )
    for batch, costs, share in rows:
        p95 = statistics.quantiles(costs, n=20)[-1]
        print(
            f"{batch:>5} {len(costs):>6} {statistics.median(costs):>10.1f} "
            f"{p95:>8.1f} {share:>10.2%}"
        )
    medians = {batch: statistics.median(costs) for batch, costs, _ in rows}
    slope = (medians[256] - medians[64]) / (256 - 64)
    print(f"per further sequence {slope:.3f} µs; budget 10 µs, 25 µs, 0.3 µs")


def print_control_costs(engine: Vllm) -> None:
    """Measure and print what lowered limits add."""
    control = probe.start()._control
    assert control is not None, "there is no control"  # noqa: S101 - or no sense
    limits = control.desk.limits
    start = limits.wanted
    seqs, tokens = start.max_num_seqs - 1, start.max_num_batched_tokens - 1
    print("limits in force")
    print(f"{'batch':>5} {'off µs':>8} {'on µs':>8} {'more µs':>8}")
    for batch in BATCHES:
        off: list[float] = []
        on: list[float] = []
        for turn in range(TURNS):
            off += measure(engine, f"off {batch} {turn}", batch)[1]
            limits.turn(LimitChange.SET, seqs, tokens)
            on += measure(engine, f"on {batch} {turn}", batch)[1]
            limits.back(LimitChange.RESET)
        medians = statistics.median(off), statistics.median(on)
        more = medians[1] - medians[0]
        print(f"{batch:>5} {medians[0]:>8.1f} {medians[1]:>8.1f} {more:>8.2f}")


def boot(model: Path, traces: Path | None) -> Vllm:
    """Start an engine; with a directory for traces one that can be profiled."""
    from vllm import EngineArgs, LLMEngine  # noqa: PLC0415 - heavy, and patched for
    from vllm.config import ProfilerConfig  # noqa: PLC0415

    profiler = ProfilerConfig()
    if traces is not None:
        profiler = ProfilerConfig(profiler="torch", torch_profiler_dir=str(traces))
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model),
            enforce_eager=True,
            distributed_executor_backend="uni",
            max_num_seqs=max(BATCHES) + 1,
            max_num_batched_tokens=2048,
            max_model_len=1024,
            block_size=32,
            kv_cache_memory_bytes=512 << 20,
            profiler_config=profiler,
        )
    )


def measure(
    engine: Vllm, name: str, batch: int, steps: int = STEPS
) -> tuple[int, list[float], float]:
    """Measure decode steps: cost in µs of each, and the sender's share of a core."""
    from vllm import SamplingParams  # noqa: PLC0415

    here, core = probe.start(), engine.engine_core.engine_core
    fuses = here.fuse, here._profile_fuse
    params = SamplingParams(max_tokens=steps + 2 * WARM_UP, ignore_eos=True)
    for index in range(batch):
        engine.add_request(f"{name}-{index}", f"Say something about {index}", params)
    for _ in range(WARM_UP):
        core.step_fn()
    began_ns, cpu_ns = time.monotonic_ns(), sender_cpu_ns()
    costs = []
    for _ in range(steps):
        before_ns = sum(each.cost_ns for each in fuses)
        core.step_fn()
        costs.append((sum(each.cost_ns for each in fuses) - before_ns) / 1000)
    share = (sender_cpu_ns() - cpu_ns) / (time.monotonic_ns() - began_ns)
    core.abort_requests([*core.scheduler.requests])
    core.step_fn()
    return batch, costs, share


def sender_cpu_ns() -> int:
    """CPU time of the probe's threads so far, as the kernel counts it."""
    ours = (t for t in threading.enumerate() if t.name.startswith("inferwatch"))
    stats = (Path(f"/proc/self/task/{t.native_id}/schedstat") for t in ours)
    return sum(int(each.read_text("ascii").split()[0]) for each in stats)


if __name__ == "__main__":
    main()
