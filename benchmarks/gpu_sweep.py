"""Measures the CPU time of sampling eight GPUs, without the time in the driver.

A fake driver library simulates eight H100s and counts the time spent within it. The
peer makes the same calls of pynvml one after the other and discards the values.
"""

import sys
from collections.abc import Callable, Collection
from functools import partial
from statistics import median
from time import process_time_ns
from typing import Any

import pynvml as nv

from collectors.contract.readings import GpuSample
from collectors.hardware.gpm import GpmSampler
from collectors.hardware.gpu_source import GpuOptions, ReadInterval
from collectors.hardware.nvml import NvmlSource
from collectors.hardware.nvml_readings import DIRECT, FIELDS, PROCESS_LISTS
from tests.fake_nvml import FakeNvml, NoCompilerError, library

GPUS = 8
SWEEPS = 400
LIMIT_MS = 2.0
FAST = {ReadInterval.EACH}
USUAL = {ReadInterval.EACH, ReadInterval.SECOND}
SWEPT = {
    "ten a second": (0.1, FAST),
    "each second": (1.0, USUAL),
    "with what is slow": (30.0, set(ReadInterval)),
}


class Clock:
    """A clock that advances only when told to."""

    def __init__(self, fake: FakeNvml) -> None:
        self._fake = fake
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def pass_(self, seconds: float) -> None:
        """Advance this clock and that of the fake library."""
        self.ns += int(seconds * 1e9)
        self._fake.do(f"jump {seconds}")


class Peer:
    """Makes the same calls with pynvml, and discards the values."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._handles = [nv.nvmlDeviceGetHandleByIndex(n) for n in range(GPUS)]
        self._samplers = [GpmSampler(handle, now_ns) for handle in self._handles]

    def read(self, due: Collection[ReadInterval]) -> None:
        """Read all GPUs once."""
        ids = [each.id for each in FIELDS if each.pace in due]
        direct = [
            each.ways[0]
            for each in DIRECT
            if each.pace in due and each.instead_of is None
        ]
        for handle, sampler in zip(self._handles, self._samplers, strict=True):
            sampler.read()
            nv.nvmlDeviceGetFieldValues(handle, ids)
            for call in direct:
                call(handle)
            if ReadInterval.FEW_SECONDS in due:
                PROCESS_LISTS[0](handle)

    def close(self) -> None:
        for sampler in self._samplers:
            sampler.close()


def measured(
    fake: FakeNvml, clock: Clock, seconds: float, sweep: Callable[[], Any]
) -> tuple[float, float]:
    """Return the median times of a sweep in ms: outside and inside of the library."""
    ours, inside = [], []
    for _ in range(SWEEPS):
        clock.pass_(seconds)
        fake.do("meter 1")
        began_ns = process_time_ns()
        sweep()
        spent_ns, inside_ns = process_time_ns() - began_ns, fake.count("inside ns")
        ours.append((spent_ns - inside_ns) / 1e6)
        inside.append(inside_ns / 1e6)
    return median(ours), median(inside)


def main() -> None:
    try:
        fake = FakeNvml(library())
    except NoCompilerError as why:
        print(why)
        return
    fake.do(f"hold; gpus {GPUS}; return nvmlEventSetCreate * 3")
    for gpu in range(GPUS):
        fake.do(f"process {gpu} {4000 + gpu} 70000000000")
    clock = Clock(fake)
    source = NvmlSource(clock.now_ns, GpuOptions(), print, {})
    source.probe()
    source.read(set(ReadInterval))
    clock.pass_(1)
    samples = [
        each for each in source.read(set(ReadInterval)) if isinstance(each, GpuSample)
    ]
    assert len(samples) == GPUS  # noqa: S101 - else it measures nothing
    assert all(each.dram_active is not None for each in samples)  # noqa: S101
    peer = Peer(clock.now_ns)
    print(
        f"{'a sweep of 8 GPUs':<20} {'ours ms':>8} {'peer ms':>8} {'ratio':>6} "
        f"{'C ms':>7}"
    )
    costs = {}
    for name, (seconds, due) in SWEPT.items():
        ours, inside = measured(fake, clock, seconds, partial(source.read, due))
        theirs, _ = measured(fake, clock, seconds, partial(peer.read, due))
        costs[name] = ours
        print(
            f"{name:<20} {ours:>8.2f} {theirs:>8.2f} {ours / theirs:>6.2f} "
            f"{inside:>7.2f}"
        )
    peer.close()
    source.close()
    share = costs["ten a second"] * 10 / 1000
    print(
        f"of a core: {costs['each second'] / 1000:.2%} as usual, {share:.2%} at 10 Hz"
    )
    if fake.count("samples alive") or fake.count("misuses"):
        sys.exit(f"samples leaked, or: {fake.last_misuse}")
    if costs["each second"] > LIMIT_MS:
        sys.exit(f"more than {LIMIT_MS} ms a sweep")


if __name__ == "__main__":
    main()
