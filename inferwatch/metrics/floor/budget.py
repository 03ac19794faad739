"""Budgets of GPU memory: its parts, how many requests fit, what other formats free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from collectors.contract.readings import BoundBy, EngineInfo, WorkerMemory
from inferwatch.limits.cache import kv_bytes, kv_bytes_per_token
from inferwatch.limits.devices import device_named
from inferwatch.limits.parameters import weight_bytes
from inferwatch.limits.remedies import FOUR_BITS, FP8_BITS, lighter
from inferwatch.limits.shape import ModelShape
from inferwatch.limits.step import load_floor_s
from inferwatch.metrics.floor.derived import RankTraffic
from inferwatch.metrics.floor.rank import StepNeeds
from inferwatch.metrics.floor.tracker import DECODE, MIXED, UNBOUNDED
from inferwatch.metrics.floor.view import (
    Bound,
    DeviceMemory,
    MemoryPart,
    OperatingPoint,
    Saving,
)
from inferwatch.metrics.hardware.view import GpuState
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.steps.counter import SPENT_NS
from inferwatch.metrics.steps.engines import Key, Rank

DECODING = (DECODE, MIXED, *UNBOUNDED[:2])
"""Kinds of steps that decode."""
PARTS = {
    "weight_bytes": "weights",
    "kv_bytes": "KV cache",
    "activation_bytes": "activations",
    "graph_bytes": "graphs",
    "workspace_bytes": "workspace",
}
"""Names of the memory parts, by field of WorkerMemory."""
KV_BINDS = 0.05
"""Share of step time bound by KV blocks from which on KV memory is short, 0-1."""
NEAR_FLOOR = 0.5
"""MBU below which bytes are not what limits decode, 0-1."""
LEAST_GAIN = 0.05
"""Smallest reduction of a floor that is worth a restart, 0-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The KV cache and the requests that share it, over a window."""

    needs: StepNeeds | None
    infos: Sequence[EngineInfo]
    decoding: CounterTotals
    """Sums over steps that only decode."""
    tokens_per_request: float | None
    kv_binds: bool | None
    """Whether requests wait for KV blocks or are preempted; None before any step."""

    @classmethod
    def of(
        cls,
        needs: StepNeeds | None,
        ranks: Mapping[Key, Rank],
        totals: Mapping[str, CounterTotals],
        steps: CounterTotals,
    ) -> Self:
        """Return the budget of all ranks.

        ``needs`` are the step costs of a rank; None unless all ranks have the same.
        """
        counters = [totals[each] for each in DECODING]
        members = sum(each.sums["members"] for each in counters)
        context = sum(each.sums["context"] for each in counters)
        spent_ns = sum(steps.sums[name] for name in SPENT_NS.values())
        waited_ns = steps.sums[SPENT_NS[BoundBy.KV]]
        binds = None
        if spent_ns:
            binds = waited_ns >= KV_BINDS * spent_ns or steps.sums["preemptions"] > 0
        return cls(
            needs=needs,
            infos=[each.info for each in ranks.values() if each.info is not None],
            decoding=totals[DECODE],
            tokens_per_request=context / members if members else None,
            kv_binds=binds,
        )

    @property
    def max_requests(self) -> float | None:
        """How many requests like the present ones fit into all KV caches."""
        shape = self.needs.shape if self.needs is not None else None
        capacity, each = self._capacity_bytes(), self._request_bytes(shape)
        return capacity / each if capacity is not None and each else None

    def savings(
        self, decode: OperatingPoint | None, usual: OperatingPoint | None
    ) -> tuple[Saving, ...]:
        """Return the memory that each smaller number format would free.

        Formats that the model already uses are left out. ``usual`` is where decode
        stands over a longer time, by which it is judged whether a format helps.
        """
        shape = self.needs.shape if self.needs is not None else None
        if shape is None:
            return ()
        savings = []
        for name, bits in (("FP8 weights", FP8_BITS), ("4-bit weights", FOUR_BITS)):
            smaller = lighter(shape, bits)
            if smaller is not None:
                freed = weight_bytes(shape) - weight_bytes(smaller)
                freed *= len(self.infos)
                savings.append(self._saving(name, smaller, freed, (decode, usual)))
        capacity = self._capacity_bytes()
        if shape.kv_bits > FP8_BITS and capacity is not None:
            smaller = replace(shape, kv_bits=FP8_BITS)
            freed = round(capacity * (1 - FP8_BITS / shape.kv_bits))
            savings.append(
                self._saving("FP8 KV cache", smaller, freed, (decode, usual))
            )
        return tuple(savings)

    def _saving(
        self,
        name: str,
        smaller: ModelShape,
        freed: int,
        decoded: tuple[OperatingPoint | None, OperatingPoint | None],
    ) -> Saving:
        """Return the saving of one format.

        Freed memory is taken to become KV cache of that format.
        """
        each = self._request_bytes(smaller)
        decode, usual = decoded
        return Saving(
            name=name,
            freed_bytes=freed,
            more_requests=freed / each if each else None,
            floor_s=self._floor_s(smaller, decode),
            helps=self._helps(decode, usual, self._floor_s(smaller, usual)),
        )

    def _helps(
        self,
        now: OperatingPoint | None,
        usual: OperatingPoint | None,
        floor_s: float | None,
    ) -> bool | None:
        """Return whether a smaller format would let the engine serve more or faster.

        It would where KV memory is short, or where decode is bound by bandwidth and its
        floor would fall. None where that is not known.
        """
        if self.kv_binds:
            return True
        if usual is None or usual.mbu is None or None in {usual.floor_s, floor_s}:
            return None if self.kv_binds is None else False
        bounds = {each.bound for each in (now, usual) if each is not None}
        near = bounds == {Bound.MEMORY} and usual.mbu >= NEAR_FLOOR
        now_s, then_s = usual.floor_s or 0.0, floor_s or 0.0
        return near and then_s <= (1 - LEAST_GAIN) * now_s

    def _floor_s(
        self, smaller: ModelShape, decode: OperatingPoint | None
    ) -> float | None:
        """Return a decode step's floor with the smaller shape; None if unknown."""
        needs, steps = self.needs, self.decoding
        if needs is None or needs.shape is None or not steps.rows:
            return None
        if decode is None or decode.floor_s is None:
            return None
        members = max(round(steps.sums["members"] / steps.rows), 1)
        context = steps.sums["context"] // steps.rows
        step = RankTraffic(context=context, pairs=context, tokens=members)
        if needs.shape.window is not None:
            seen = min(context // members, needs.shape.window) * members
            step.window_context = step.window_pairs = seen
        bare = msgspec.structs.replace(self.infos[0], weight_bytes=None)
        now_ns, then_ns = (
            _floor_ns(StepNeeds.of_shape(each, bare, needs.peak), step)
            for each in (needs.shape, smaller)
        )
        return decode.floor_s * then_ns / now_ns if now_ns else None

    def _capacity_bytes(self) -> float | None:
        """Return the size of the KV caches of all ranks; None where one is unknown."""
        total = 0.0
        for info in self.infos:
            per_token = info.kv_bytes_per_token
            if per_token is None and self.needs is not None and self.needs.shape:
                per_token = round(kv_bytes_per_token(self.needs.shape))
            if not (info.num_kv_blocks and info.kv_block_tokens and per_token):
                return None
            total += info.num_kv_blocks * info.kv_block_tokens * per_token
        return total

    def _request_bytes(self, shape: ModelShape | None) -> float | None:
        """Return the KV bytes of one request of the present mix.

        Its last block is taken to be half full.
        """
        tokens, info = self.tokens_per_request, self.infos[0]
        if tokens is None:
            return None
        in_blocks = tokens + ((info.kv_block_tokens or 1) - 1) / 2
        if shape is not None:
            return kv_bytes(shape, round(in_blocks))
        per_token = info.kv_bytes_per_token
        return None if per_token is None else in_blocks * per_token


def device_memory(memories: Sequence[WorkerMemory]) -> tuple[DeviceMemory, ...]:
    """Return the memory parts of each worker's device, as the engine reports them."""
    return tuple(
        DeviceMemory(
            rank=each.rank,
            worker=each.worker,
            gpu=each.gpu,
            total_bytes=each.total_bytes,
            allowed_bytes=each.allowed_bytes,
            parts=tuple(
                MemoryPart(
                    name=name,
                    n_bytes=n_bytes,
                    read_from=each.read_from.get(field, "engine"),
                )
                for field, name in PARTS.items()
                if (n_bytes := getattr(each, field)) is not None
            ),
            load_s=each.load_s,
        )
        for each in memories
    )


def with_drivers(
    memory: Sequence[DeviceMemory], gpus: Sequence[GpuState]
) -> tuple[DeviceMemory, ...]:
    """Add other use and free memory, as reported by the driver of each GPU.

    Where several workers share a GPU, their parts do not count as use by others.
    """
    by_uuid = {each.source: each for each in gpus}
    own_bytes: dict[str | None, int] = {}
    for each in memory:
        parts = sum(part.n_bytes for part in each.parts)
        own_bytes[each.gpu] = own_bytes.get(each.gpu, 0) + parts
    return tuple(
        _with_driver(each, by_uuid.get(each.gpu or ""), own_bytes[each.gpu])
        for each in memory
    )


def _with_driver(
    memory: DeviceMemory, gpu: GpuState | None, own_bytes: int
) -> DeviceMemory:
    if gpu is None:
        return memory
    total = gpu.info.memory_bytes or memory.total_bytes
    used, reserved = gpu.memory_used_bytes, gpu.memory_reserved_bytes or 0
    parts = list(memory.parts)
    if used is not None:
        other = used + reserved - own_bytes
        if other > 0:
            parts.append(MemoryPart(name="other", n_bytes=other, read_from="driver"))
        if total is not None and total > used + reserved:
            free = total - used - reserved
            parts.append(MemoryPart(name="free", n_bytes=free, read_from="driver"))
    weights = next((each.n_bytes for each in parts if each.name == "weights"), None)
    device = device_named(gpu.info.name or "")
    floor_s = None
    if weights is not None and device is not None:
        floor_s = load_floor_s(weights, None, device.pcie_bytes_per_s)
    return replace(memory, total_bytes=total, parts=tuple(parts), load_floor_s=floor_s)


def _floor_ns(needs: StepNeeds, step: RankTraffic) -> float:
    moved = sum(needs.traffic_of(step)) * needs.ns_per_byte
    flops = needs.flops_of(step, step.tokens) * needs.ns_per_flop
    return max(moved, flops)
