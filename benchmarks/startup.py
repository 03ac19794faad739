"""Measures how long the demo's engine takes to start and to stop, by stage.

The first start is shown separately. It stands for the first one after an installation:
the tiny model and vLLM's cache are made anew, only the imports may be in the page cache
already.
"""

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from collectors.contract.clock import NS_PER_S, monotonic_ns
from embedded_engine.engine.config import demo_config
from embedded_engine.engine.launch import Engine

RUNS = 5
LIMIT_S = 20.0
Times = dict[str, float]


async def one_start(cache: Path) -> Times:
    """Return the seconds from the call to each stage, and the seconds of the stop."""
    home = {"VLLM_CACHE_ROOT": str(cache / "vllm")}
    config = demo_config()
    config = replace(config, tiny_model_dir=cache, env={**config.env, **home})
    reached: Times = {}
    began_ns = monotonic_ns()

    engine = await Engine.start(
        config,
        lambda note: reached.update({note.text: (note.t_ns - began_ns) / NS_PER_S}),
    )
    stopping_s = time.monotonic()
    await engine.stop()
    return {**reached, "stopping": time.monotonic() - stopping_s}


def show(first: Times, later: list[Times]) -> None:
    """Print one row for each stage."""
    print(f"{'seconds from the start':24} {'first':>6} {'median':>7} {'worst':>6}")
    for stage in first:
        times = [run[stage] for run in later]
        print(f"{stage:24} {first[stage]:6.2f} {median(times):7.2f} {max(times):6.2f}")


def main() -> None:
    """Start the engine several times; the machine's load is printed, too."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as cache:
        first, *later = [asyncio.run(one_start(Path(cache))) for _ in range(runs + 1)]
    show(first, later)
    print(f"limit {LIMIT_S:.0f} s; {os.cpu_count()} cores, load before: {load}")


if __name__ == "__main__":
    main()
