"""Compares each step with its floor, the least time its batch could take.

The context of a step's members is followed for memory traffic; here it becomes bytes,
FLOP and a floor, counted by kind of step: decode only, prefill only, or mixed.

A step is *impossible* if its result came sooner than its floor allows, by more than one
percent. With async scheduling a step may be scheduled before the one before it ended,
and its work begins when the device is free. So it is not the duration that is judged,
but the end against the earliest moment at which the device can have finished it and all
steps before it.
"""

from typing import Any, NamedTuple

import msgspec
import numpy as np

from collectors.contract.readings import EngineInfo, ModelConfig, Step
from inferwatch.limits.hf_config import ShapeError, reads_all, shape_of
from inferwatch.limits.shape import ModelShape
from inferwatch.metrics.floor.derived import RankTraffic
from inferwatch.metrics.floor.peaks import Devices, Need, SavedDevices
from inferwatch.metrics.floor.rank import StepNeeds, sizes_of
from inferwatch.metrics.floor.traffic import TrafficTracker
from inferwatch.metrics.floor.view import Impossible
from inferwatch.metrics.series.samples import Counters, CounterTotals
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.steps.engines import Engines, Key

COUNTED = (
    "duration_ns",
    "gap_ns",
    "kilobytes",
    "flops_1e5",
    "memory_ns",
    "compute_ns",
    "context",
    "members",
)
"""``memory_ns`` and ``compute_ns`` are floors of steps, by what bounds them.

Thousands of bytes and 10^5 FLOP keep the sums of months within 63 bits.
"""
TOO_FAST = ("excess_ppm", "index")
"""By how much a floor exceeds its step; the sum of ``index`` means nothing."""
DECODE, MIXED, PROMPTS = "decode", "mixed", "prompts"
BOUNDED = (DECODE, MIXED, PROMPTS)
UNBOUNDED = tuple(f"unbounded_{kind}" for kind in BOUNDED)
"""Kinds of steps that have no floor."""
KILO, FLOP_UNIT = 1e-3, 1e-5
LONG_AGO_NS = -(1 << 62)
"""Before every step: those from a probe's memory precede the session's start, 0."""
TOLERANCE = 0.01
MOST_RATIO = 1e6
"""Ratio recorded for a step that took no time."""


class Worst(msgspec.Struct, array_like=True):
    """The step whose floor exceeds its duration most."""

    ratio: float
    t_ns: int
    index: int


class SavedFloors(msgspec.Struct, array_like=True):
    """A FloorTracker as checkpoints keep it, without counters."""

    earliest_ns: list[tuple[str, int, int]]
    worst: Worst | None
    devices: SavedDevices


class _Rank:
    """One rank, whose steps are compared with floors."""

    __slots__ = ("changes", "earliest_ns", "needs")

    def __init__(self) -> None:
        self.needs: StepNeeds | None = None
        self.changes = -1
        """The value of ``Devices.changes`` when its needs were computed."""
        self.earliest_ns = LONG_AGO_NS
        """Earliest moment at which its device can have finished the latest step."""


class _Model(NamedTuple):
    """The shape of a rank's model, or why it is not known."""

    shape: ModelShape | None = None
    why: str | None = None
    """Why the shape is not known."""
    read_whole: bool = True
    """Whether each step reads all weights and the whole context, if no shape is known.
    """


_UNTOLD = _Model()


class FloorTracker:
    """Computes the floor of each step, where peak and shape are known."""

    def __init__(self, engines: Engines, traffic: TrafficTracker) -> None:
        self._engines = engines
        self._traffic = traffic
        self.devices = Devices()
        self.counters = {name: Counters(*COUNTED) for name in (*BOUNDED, *UNBOUNDED)}
        self.too_fast = Counters(*TOO_FAST)
        self._models: dict[Key, _Model] = {}
        self._ranks: dict[Key, _Rank] = {}
        self._worst: Worst | None = None

    def config(self, config: ModelConfig) -> None:
        """Set a rank's model configuration, after Engines has taken it."""
        self._look_at((config.source, config.rank))

    def info(self, info: EngineInfo) -> None:
        """Set the info of an engine, after Engines and traffic have taken it."""
        self._look_at((info.source, info.rank))

    def changed(self) -> None:
        """Have all step costs computed anew, as something about an engine changed."""
        self.devices.changes += 1

    def lost(self, source: str) -> None:
        """Reset the timing of a lost engine, or of all; its model stays known."""
        for key, rank in self._ranks.items():
            if source in {"", key[0]}:
                rank.earliest_ns = LONG_AGO_NS

    def step(self, step: Step, followed: RankTraffic | None, gap_ns: int) -> int | None:
        """Return the floor of a step in nanoseconds; None where nothing bounds it."""
        rank = self._ranks.get((step.source, step.rank))
        if rank is None or rank.changes != self.devices.changes:
            rank = self._learn((step.source, step.rank))
        needs = rank.needs
        if needs is None or followed is None or not followed.tokens:
            return None
        members = len(step.members)
        traffic = needs.traffic_of(followed)
        self._traffic.moved(step, traffic)
        moved = traffic.weight_bytes + traffic.kv_bytes
        flops = needs.flops_of(followed, members)
        memory_ns = int(moved * needs.ns_per_byte)
        compute_ns = int(flops * needs.ns_per_flop)
        if compute_ns > memory_ns:
            floor_ns, memory_ns = compute_ns, 0
        else:
            floor_ns, compute_ns = memory_ns, 0
        begin_ns = max(rank.earliest_ns, step.start_ns)
        rank.earliest_ns = begin_ns + floor_ns
        if rank.earliest_ns > step.end_ns:
            self._judge(rank, step, begin_ns, floor_ns)
        prefills = step.prefill_requests
        kind = DECODE if not prefills else MIXED if step.decode_requests else PROMPTS
        self.counters[kind if floor_ns else f"unbounded_{kind}"].add(
            step.end_ns,
            step.duration_ns,
            gap_ns,
            int(moved * KILO),
            int(flops * FLOP_UNIT),
            memory_ns,
            compute_ns,
            followed.context,
            members,
        )
        return floor_ns or None

    @property
    def rows(self) -> dict[str, Counters]:
        """The counters, by the names under which their rows are saved."""
        named = {f"floor_{name}": each for name, each in self.counters.items()}
        return named | {"too_fast": self.too_fast}

    def over(self, now_ns: int, window: Window) -> dict[str, CounterTotals]:
        """Return the sums of a window, by kind of step."""
        return {kind: each.over(now_ns, window) for kind, each in self.counters.items()}

    def impossible(self, now_ns: int, window: Window) -> Impossible | None:
        """Return the steps of a window that beat their floor; None without any."""
        steps = self.too_fast.over(now_ns, window).rows
        worst = self._worst
        if window.value is not None:
            worst = self._worst_after(now_ns - window.value)
        if not steps or worst is None:
            return None
        return Impossible(
            steps=steps, worst_ratio=worst.ratio, t_ns=worst.t_ns, step=worst.index
        )

    def needs(self, key: Key) -> StepNeeds | None:
        """Return the step costs of a rank; None where unknown."""
        return self._learn(key).needs

    def shape(self, key: Key) -> tuple[ModelShape | None, str | None]:
        """Return the shape of a rank's model, or why it is not known."""
        model = self._models.get(key, _UNTOLD)
        return model.shape, model.why

    def saved(self) -> SavedFloors:
        """Return the state for a checkpoint, without counters."""
        return SavedFloors(
            earliest_ns=[(*key, r.earliest_ns) for key, r in self._ranks.items()],
            worst=self._worst,
            devices=self.devices.saved(),
        )

    def restore(self, saved: SavedFloors) -> None:
        """Restore a saved state; engines and traffic must be restored before."""
        for key in self._engines.configs:
            self._look_at(key)
        for source, number, earliest_ns in saved.earliest_ns:
            self._ranks.setdefault((source, number), _Rank()).earliest_ns = earliest_ns
        self._worst = saved.worst
        self.devices.restore(saved.devices)

    def _judge(self, rank: _Rank, step: Step, begin_ns: int, floor_ns: int) -> None:
        """Record a step that was faster than its floor by more than clocks may err."""
        if rank.earliest_ns <= step.end_ns + TOLERANCE * floor_ns:
            return
        rank.earliest_ns = step.end_ns
        ratio = min(floor_ns / max(step.end_ns - begin_ns, 1), MOST_RATIO)
        if self._worst is None or ratio > self._worst.ratio:
            self._worst = Worst(ratio, step.end_ns, step.index)
        self.too_fast.add(step.end_ns, int((ratio - 1) * 1e6), step.index)

    def _worst_after(self, t_ns: int) -> Worst | None:
        """Return the step after ``t_ns`` furthest below its floor; None without any."""
        ends_ns, excess, index = self.too_fast.rows.later_than(t_ns)
        if not excess.size:
            return None
        place = int(np.argmax(excess))
        ratio = 1 + int(excess[place]) / 1e6
        return Worst(ratio, int(ends_ns[place]), int(index[place]))

    def _learn(self, key: Key) -> _Rank:
        rank = self._ranks.get(key)
        if rank is None:
            rank = self._ranks[key] = _Rank()
        if rank.changes == self.devices.changes:
            return rank
        rank.changes = self.devices.changes
        engine = self._engines.ranks.get(key)
        info = engine.info if engine is not None else None
        if info is None:
            return rank
        model = self._models.get(key, _UNTOLD)
        shape = model.shape
        peak = self.devices.peak_of(
            Need(
                info=info,
                endpoint=self._engines.endpoints.get(key[0]),
                dtype=shape.compute_dtype if shape is not None else None,
                weight_bytes=sizes_of(shape, info)[0],
            )
        )
        if shape is not None:
            rank.needs = StepNeeds.of_shape(shape, info, peak)
        else:
            rank.needs = StepNeeds.of_sizes(info, peak) if model.read_whole else None
        return rank

    def _look_at(self, key: Key) -> None:
        """Read a rank's model configuration again."""
        self.devices.changes += 1
        config = self._engines.configs.get(key)
        model = self._models[key] = _UNTOLD if config is None else _model(config)
        shape = model.shape
        if shape is None:
            self._traffic.windowed(*key, None)
        else:
            self._traffic.windowed(*key, shape.window, chunked=shape.chunked)


def _model(config: ModelConfig) -> _Model:
    """Return the shape of a configuration's model, or why it is not known."""
    content: dict[str, Any] = {}
    try:
        content = msgspec.json.decode(config.config, type=dict)
        shape = shape_of(
            content,
            dtype=config.dtype,
            kv_dtype=config.kv_dtype,
            quantization=config.quantization,
        )
    except (msgspec.MsgspecError, RecursionError, ShapeError) as error:
        return _Model(why=str(error), read_whole=reads_all(content))
    return _Model(shape=shape)
