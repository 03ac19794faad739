"""What the GPUs and hosts of a small inference node could tell, by a seeded script.

The load swings every twenty seconds: memory traffic, SMs, power and clocks go with it,
and when power is at its limit the clocks are held down. These are made-up readings of
H100s that do not exist; their driver says so.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from collectors.contract.readings import (
    AnyReading,
    GpuInfo,
    GpuProcesses,
    GpuSample,
    HostInfo,
    HostSample,
    ProcessUsage,
)

S = 1_000_000_000
GIB = 1 << 30
PEAK = 3_352.3e9
LIMIT_W = 700.0
ROLES = {"inferwatch": 50, "api": 100, "core": 101, "worker": 102}
"""And their process ids; workers go on counting from theirs."""


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-0000-4000-8000-{index:012x}"


def gpu_info(index: int = 0, /, **fields: Any) -> GpuInfo:
    known: dict[str, Any] = {
        "t_ns": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": uuid(index),
        "source": uuid(index),
        "index": index,
        "pci_bus_id": f"00000000:{0x18 + index:02X}:00.0",
        "architecture": "Hopper",
        "driver": "575.57.08 (simulated)",
        "memory_bytes": 80 * GIB,
        "memory_bus_bits": 5_120,
        "max_sm_clock_mhz": 1_980,
        "max_memory_clock_mhz": 2_619,
        "peak_bytes_per_s": PEAK,
        "peak_from": "clock and bus width",
        "sheet_bytes_per_s": 3_350e9,
    }
    return GpuInfo(**(known | fields))


def slice_info(index: int, of: int = 0, **fields: Any) -> GpuInfo:
    """A MIG slice: shares alone."""
    name = f"MIG-{of:04x}{index:04x}-0000-4000-8000-000000000000"
    own = {
        "uuid": name,
        "source": name,
        "index": index,
        "parent_uuid": uuid(of),
        "profile": "1g.10gb",
        "peak_bytes_per_s": None,
        "peak_from": None,
    }
    return gpu_info(of, **(own | fields))


def busy_at(t_s: float) -> float:
    """How much there is to do: it swings between a quarter and all."""
    return 0.625 + 0.375 * math.sin(2 * math.pi * t_s / 20)


class Gpus:
    """A few GPUs of one host, sampled together."""

    def __init__(self, count: int = 2, hz: int = 1, seed: int = 1) -> None:
        self.count, self.hz = count, hz
        self._random = random.Random(seed)
        self._energy_mj = [1_000_000.0 * (i + 1) for i in range(count)]
        self._capped_ns = [0.0] * count

    def infos(self, **fields: Any) -> list[GpuInfo]:
        return [gpu_info(index, **fields) for index in range(self.count)]

    def samples(self, tick: int) -> Iterator[GpuSample]:
        """Of every GPU, at the tick-th moment, counted from 1."""
        for index in range(self.count):
            yield self.sample(index, tick)

    def sample(self, index: int, tick: int) -> GpuSample:
        span_ns = S // self.hz
        t_ns = tick * span_ns
        slow = tick % self.hz == 0  # what is read once a second
        busy = min(busy_at(t_ns / S) + self._random.gauss(0, 0.01), 1.0)
        wanted_w = 90 + 640 * busy
        power_w = min(wanted_w, LIMIT_W)
        capped = wanted_w > LIMIT_W
        self._energy_mj[index] += power_w * span_ns / 1_000_000
        self._capped_ns[index] += 0.6 * span_ns * capped
        return GpuSample(
            t_ns=t_ns,
            source=uuid(index),
            span_ns=span_ns,
            via="gpm",
            dram_active=0.9 * busy,
            peak_bytes_per_s=PEAK,
            sm_active=0.97 * busy,
            sm_occupancy=0.35 * busy,
            tensor_active=0.4 * busy,
            pcie_tx_bytes_per_s=2e9 * busy,
            pcie_rx_bytes_per_s=3e9 * busy,
            nvlink_tx_bytes_per_s=4e10 * busy,
            nvlink_rx_bytes_per_s=4e10 * busy,
            gpu_busy=1.0,
            memory_busy=min(0.3 + busy, 1.0),
            power_w=power_w,
            power_limit_w=LIMIT_W,
            sm_clock_mhz=1_755 if capped else 1_980,
            memory_clock_mhz=2_619,
            throttle_reasons=0x4 if capped else 0,
            energy_mj=round(self._energy_mj[index]),
            throttled_ns={"power_cap": round(self._capped_ns[index]), "thermal": 0},
            temperature_c=round(40 + 30 * busy) if slow else None,
            memory_temperature_c=round(45 + 30 * busy) if slow else None,
            memory_used_bytes=round((60 + 10 * busy) * GIB) if slow else None,
            memory_reserved_bytes=600 << 20 if slow else None,
            ecc_corrected=0 if tick % (30 * self.hz) == 1 else None,
            ecc_uncorrected=0 if tick % (30 * self.hz) == 1 else None,
        )

    def processes(self, t_ns: int) -> Iterator[GpuProcesses]:
        """A worker has nearly all of each."""
        for index in range(self.count):
            used = {ROLES["worker"] + index: 66 * GIB, 9_000 + index: 1 * GIB}
            yield GpuProcesses(t_ns=t_ns, source=uuid(index), memory_bytes=dict(used))


class Host:
    """A host of eight cores, sampled once a second."""

    def __init__(self, source: str = "", workers: int = 2, seed: int = 2) -> None:
        self.source = source
        self._random = random.Random(seed)
        self._used = dict.fromkeys(range(102, 102 + workers), ("worker", 1.0))
        for role in ("inferwatch", "api", "core"):
            self._used[ROLES[role]] = (role, 1.0)
        self._busy_s, self._throttled_s = 1_000.0, 0.0

    def info(self) -> HostInfo:
        return HostInfo(
            t_ns=0,
            source=self.source,
            name=self.source or "node-1",
            cpu="Intel(R) Xeon(R) Platinum 8480+",
            cores=8,
            memory_bytes=256 * GIB,
        )

    def sample(self, second: int) -> HostSample:
        busy = busy_at(second)
        shares = {"inferwatch": 0.03, "api": 0.9 * busy, "core": 0.98, "worker": 0.99}
        for pid, (role, used_s) in self._used.items():
            self._used[pid] = (role, used_s + shares[role])
        self._busy_s += 0.5 + sum(shares[role] for role, _ in self._used.values())
        self._throttled_s += 0.05 * (busy > 0.9)
        return HostSample(
            t_ns=second * S,
            source=self.source,
            processes=[
                ProcessUsage(
                    pid=pid,
                    role=role,
                    cpu_s=round(used_s, 2),
                    rss_bytes=4 * GIB if role == "worker" else GIB,
                    threads=64 if role == "worker" else 12,
                    throttled_s=self._throttled_s if role == "core" else 0.0,
                )
                for pid, (role, used_s) in sorted(self._used.items())
            ],
            loop_lag_s=abs(self._random.gauss(0, 0.002)),
            cores=8,
            busy_s=self._busy_s,
            run_queue=round(8 * busy),
            memory_used_bytes=48 * GIB,
        )


def plausible(
    seconds: int = 60, gpus: int = 2, hz: int = 1, seed: int = 1, host: str = ""
) -> list[AnyReading]:
    """All that a node tells in so long: one GPU process list in five seconds."""
    node, boards = Host(host, workers=gpus, seed=seed), Gpus(gpus, hz, seed)
    named: dict[str, Any] = {"host": host} if host else {}
    told: list[AnyReading] = [node.info(), *boards.infos(**named)]
    for second in range(seconds):
        if second % 5 == 0:
            told.extend(boards.processes(second * S + 1))
        for tick in range(second * hz + 1, (second + 1) * hz + 1):
            told.extend(boards.samples(tick))
        told.append(node.sample(second + 1))
    return told


def sources(readings: Sequence[AnyReading]) -> set[str]:
    return {each.source for each in readings}
