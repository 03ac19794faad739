"""A program that measures the peaks of a CPU, to be run alone, as its own process.

    python -m embedded_engine.measure_peak [--quick]

Prints its progress line by line, and at last one line of JSON. Each number is the best
of several runs: a peak is what nothing exceeds, whatever else is running.

- Memory bandwidth as in STREAM (McCalpin 1995): copies between buffers larger than any
  cache, counting bytes read and written.
- Read bandwidth of working sets from small to larger than any cache, since weights that
  fit into a cache are read from there in every step. The data is multiplied and added
  up, which costs nothing beside the reading.
- Matrix products by dtype; bfloat16 only with torch, whose kernels engines use.

There is one thread per core, each with its own data; the caller must keep BLAS from
starting more (``OPENBLAS_NUM_THREADS=1``).
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
MIB = 1 << 20
SIZES = (1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
"""Working set sizes, followed by one beyond the largest cache."""
TIMES_LARGEST = 2
MOST_BYTES, QUICK_BYTES = 2 << 30, 256 * MIB
READ_AT_LEAST = 32 * MIB
"""Bytes read per task, so that the overhead of threads is small."""
EDGE, TORCH_EDGES = 1024, (512, 1024, 2048)
LEAST_RUNS, LEAST_S = 3, 0.15
LARGE_S = 0.1
"""A product that takes this long is large enough: one of the next edge takes eight
times as long, or minutes on a core without instructions for the dtype."""
FLOAT = 4


class CoreThreads:
    """A thread for each core we may use."""

    def __init__(self, seconds: float) -> None:
        self.count = len(os.sched_getaffinity(0))
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(self.count)

    def best(self, work: Callable[[int], object], amount: float) -> float:
        """Highest rate of ``amount`` per second with ``work`` on all threads."""
        best, runs = 0.0, 0
        end_s = time.perf_counter() + self._seconds
        while runs < LEAST_RUNS or time.perf_counter() < end_s:
            began_s = time.perf_counter()
            for _ in self._pool.map(work, range(self.count)):
                pass
            best = max(best, amount / (time.perf_counter() - began_s))
            runs += 1
        return best


def main(*, quick: bool) -> None:
    """Run all measurements and print the results."""
    cores = CoreThreads(0.12 if quick else 0.4)
    large = memory_bytes(quick=quick)
    say(f"memory, {large // MIB} MiB at a time")
    buffers = [
        np.ones(large // cores.count // FLOAT, np.float32) for _ in range(cores.count)
    ]
    halves = [np.split(each[: each.size // 2 * 2], 2) for each in buffers]
    copied = sum(half[0].nbytes + half[1].nbytes for half in halves)
    result: dict[str, object] = {
        "threads": cores.count,
        "bytes_per_s": cores.best(
            lambda n: np.copyto(halves[n][0], halves[n][1]), copied
        ),
    }
    rates = {}
    for size in (*SIZES, large):
        say(f"reading {size // MIB} MiB again and again")
        rates[size] = reading(cores, buffers, size)
    say("products of float32 matrices")
    flops = {"float32": products(cores)}
    if find_spec("torch") is not None:
        say("products of bfloat16 matrices")
        with suppress(Exception):  # torch is broken here; other checks report that
            by_torch, small = in_torch(cores.count, rates)
            flops = {
                name: max(flops.get(name, 0.0), by_torch[name]) for name in by_torch
            }
            rates |= {size: max(rates[size], small[size]) for size in small}
    result["cached_bytes_per_s"] = falling(rates)
    result["read_bytes_per_s"] = falling(rates)[large]
    result["flops"] = flops
    print(json.dumps(result), flush=True)  # noqa: T201 - for whoever started us


def memory_bytes(*, quick: bool) -> int:
    """Size of a buffer too large for every cache, yet small enough for memory."""
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = QUICK_BYTES if quick else max(QUICK_BYTES, TIMES_LARGEST * largest_cache())
    return max(2 * SIZES[-1], min(size, MOST_BYTES, pages // 4))


def largest_cache() -> int:
    """Size of the last-level cache in bytes; 0 if the kernel does not say."""
    sizes = [0]
    for size in CACHES.glob("index*/size"):
        with suppress(OSError, ValueError):
            sizes.append(int(size.read_text().strip().removesuffix("K")) * 1024)
    return max(sizes)


def reading(cores: CoreThreads, buffers: list[np.ndarray], size: int) -> float:
    """Read bandwidth in bytes/s of a working set shared by all cores."""
    each = size // cores.count // FLOAT // 2 * 2
    times = math.ceil(READ_AT_LEAST / size)
    parts = [buffer[:each] for buffer in buffers]

    def one(number: int) -> None:
        part = parts[number]
        for _ in range(times):
            np.dot(part, part)

    def two(number: int) -> None:
        first, second = parts[number][: each // 2], parts[number][each // 2 :]
        for _ in range(times):
            np.dot(first, second)

    read = each * FLOAT * cores.count * times
    return max(cores.best(one, read), cores.best(two, read))


def products(cores: CoreThreads) -> float:
    """FLOP/s of float32 matrix products in numpy's BLAS."""
    ones = [np.ones((EDGE, EDGE), np.float32) for _ in range(cores.count)]
    out = [np.empty_like(each) for each in ones]

    def multiply(number: int) -> None:
        np.matmul(ones[number], ones[number], out=out[number])

    return cores.best(multiply, 2.0 * EDGE**3 * cores.count)


def in_torch(
    threads: int, sizes: dict[int, float]
) -> tuple[dict[str, float], dict[int, float]]:
    """PyTorch's FLOP/s by dtype, and bytes/s by size of a matrix times a vector."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(threads)
    flops: dict[str, float] = {}
    for name in ("bfloat16", "float32"):
        for edge in TORCH_EDGES:
            one = torch.ones(edge, edge, dtype=getattr(torch, name))
            flop = 2.0 * edge**3
            # with rows times rows, as layers multiply: the faster form, where the
            # dtype has no instructions
            rate = _best_of(partial(torch.nn.functional.linear, one, one), flop)
            flops[name] = max(flops.get(name, 0.0), rate)
            if flop / rate > LARGE_S:
                break
    rates = {}
    for size in sizes:
        if size > SIZES[-1]:
            continue
        matrix = torch.ones(size // FLOAT // EDGE, EDGE)
        token = torch.ones(1, EDGE)
        work = partial(torch.nn.functional.linear, token, matrix)
        rates[size] = _best_of(work, size)
    return flops, rates


def _best_of(work: Callable[[], object], amount: float) -> float:
    best, runs = 0.0, 0
    end_s = time.perf_counter() + LEAST_S
    while runs < LEAST_RUNS or time.perf_counter() < end_s:
        began_s = time.perf_counter()
        work()
        best = max(best, amount / (time.perf_counter() - began_s))
        runs += 1
    return best


def falling(rates: dict[int, float]) -> dict[int, float]:
    """Make rates fall with size: that a larger set is faster is a measuring error."""
    return {
        size: max(rate for larger, rate in rates.items() if larger >= size)
        for size in rates
    }


def say(text: str) -> None:
    """Announce the next measurement."""
    print(text, flush=True)  # noqa: T201 - for whoever started us


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
