"""Measures what a processor can do: a program, run alone and in a process of its own.

    python -m embedded_engine.measure_peak [--quick]

Says on stdout what it does, a line each, and last one line of JSON. Each number is the
best of several runs: a peak is what nothing exceeds, whatever else runs meanwhile.

- Memory as STREAM has it (McCalpin 1995): copies between buffers that no cache holds,
  bytes read and written.
- Reading alone, again and again, of sets from small to larger than any cache: weights
  that fit into a cache are read from there in every step. What is read is multiplied
  and added up, which costs nothing beside the reading.
- Products of matrices, by dtype; bfloat16 only where there is torch, whose kernels are
  those that engines use.

One thread a core, each with its own data; whoever starts this sees to it that the
library beneath them starts no others (``OPENBLAS_NUM_THREADS=1``).
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
"""Read again and again; beyond the largest cache, memory follows."""
TIMES_LARGEST = 2
MOST_BYTES, QUICK_BYTES = 2 << 30, 256 * MIB
READ_AT_LEAST = 32 * MIB
"""In one go, so that handing work to threads costs little beside it."""
EDGE, TORCH_EDGES = 1024, (512, 1024, 2048)
LEAST_RUNS = 3
FLOAT = 4


class Cores:
    """All cores that we may use, each with a thread."""

    def __init__(self, seconds: float) -> None:
        self.count = len(os.sched_getaffinity(0))
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(self.count)

    def best(self, work: Callable[[int], object], amount: float) -> float:
        """The highest rate of so much work, done by all at once."""
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
    """Measure it all and say it."""
    cores = Cores(0.12 if quick else 0.4)
    large = memory_bytes(quick=quick)
    say(f"memory, {large // MIB} MiB at a time")
    buffers = [
        np.ones(large // cores.count // FLOAT, np.float32) for _ in range(cores.count)
    ]
    halves = [np.split(each[: each.size // 2 * 2], 2) for each in buffers]
    copied = sum(half[0].nbytes + half[1].nbytes for half in halves)
    found: dict[str, object] = {
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
        with suppress(Exception):  # it is there and does not work: others will say so
            by_torch, small = in_torch(cores.count, rates)
            flops = {
                name: max(flops.get(name, 0.0), by_torch[name]) for name in by_torch
            }
            rates |= {size: max(rates[size], small[size]) for size in small}
    found["cached_bytes_per_s"] = falling(rates)
    found["read_bytes_per_s"] = falling(rates)[large]
    found["flops"] = flops
    print(json.dumps(found), flush=True)  # noqa: T201 - for whoever started us


def memory_bytes(*, quick: bool) -> int:
    """What no cache holds, and memory does."""
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    wanted = QUICK_BYTES if quick else max(QUICK_BYTES, TIMES_LARGEST * largest_cache())
    return max(2 * SIZES[-1], min(wanted, MOST_BYTES, pages // 4))


def largest_cache() -> int:
    """Bytes of the last level, 0 where the kernel does not tell."""
    sizes = [0]
    for size in CACHES.glob("index*/size"):
        with suppress(OSError, ValueError):
            sizes.append(int(size.read_text().strip().removesuffix("K")) * 1024)
    return max(sizes)


def reading(cores: Cores, buffers: list[np.ndarray], size: int) -> float:
    """Bytes/s of reading so many, which all cores share, as one or two streams."""
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


def products(cores: Cores) -> float:
    """FLOP/s of float32 in the library of numpy."""
    ones = [np.ones((EDGE, EDGE), np.float32) for _ in range(cores.count)]
    out = [np.empty_like(each) for each in ones]

    def multiply(number: int) -> None:
        np.matmul(ones[number], ones[number], out=out[number])

    return cores.best(multiply, 2.0 * EDGE**3 * cores.count)


def in_torch(
    threads: int, sizes: dict[int, float]
) -> tuple[dict[str, float], dict[int, float]]:
    """FLOP/s by dtype, and bytes/s of reading a matrix as one token does."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(threads)
    flops: dict[str, float] = {}
    for name in ("bfloat16", "float32"):
        for edge in TORCH_EDGES:
            one = torch.ones(edge, edge, dtype=getattr(torch, name))
            rate = _best_of(partial(torch.matmul, one, one), 2.0 * edge**3)
            flops[name] = max(flops.get(name, 0.0), rate)
    rates = {}
    for size in sizes:
        if size > SIZES[-1]:
            continue
        matrix = torch.ones(size // FLOAT // EDGE, EDGE)
        token = torch.ones(1, EDGE)
        work = partial(torch.nn.functional.linear, token, matrix)
        rates[size] = _best_of(work, size)
    return flops, rates


def _best_of(work: Callable[[], object], amount: float, seconds: float = 0.15) -> float:
    best, runs = 0.0, 0
    end_s = time.perf_counter() + seconds
    while runs < LEAST_RUNS or time.perf_counter() < end_s:
        began_s = time.perf_counter()
        work()
        best = max(best, amount / (time.perf_counter() - began_s))
        runs += 1
    return best


def falling(rates: dict[int, float]) -> dict[int, float]:
    """No set is read faster than a smaller one: that was a disturbance."""
    return {
        size: max(rate for larger, rate in rates.items() if larger >= size)
        for size in rates
    }


def say(text: str) -> None:
    """What comes next."""
    print(text, flush=True)  # noqa: T201 - for whoever started us


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
