"""Holds each step against the least time that its batch could have taken.

What a step's members have in the cache is followed for the memory traffic already; here
it becomes bytes, FLOP and a floor, and is counted by what the step did: decode only,
prompts only, or both.

A step is *impossible* where its result was there sooner than its floor allows, by more
than one in a hundred. With asynchronous scheduling a step may be scheduled before the
one before it ended, and its work begins whenever the device is free. So not its
duration is judged, but the earliest moment at which the device can have been done with
it and all before it, each taking no more than its floor.
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
"""``memory_ns`` and ``compute_ns`` are floors of steps by what binds them. Thousands of
bytes and 10^5 FLOP: sums of months still are whole numbers of 63 bits."""
TOO_FAST = ("excess_ppm", "index")
"""By how much a floor was longer than its step; the sum of ``index`` means nothing."""
DECODE, MIXED, PROMPTS = "decode", "mixed", "prompts"
BOUNDED = (DECODE, MIXED, PROMPTS)
UNBOUNDED = tuple(f"unbounded_{kind}" for kind in BOUNDED)
"""Likewise, of steps that have no floor."""
KILO, FLOP_UNIT = 1e-3, 1e-5
TOLERANCE = 0.01
MOST_RATIO = 1e6
"""A step that took no time was as many times too fast."""


class Worst(msgspec.Struct, array_like=True):
    """The step that was the most too fast."""

    ratio: float
    t_ns: int
    index: int


class SavedFloors(msgspec.Struct, array_like=True):
    """All that a FloorTracker keeps, but for its counters."""

    earliest_ns: list[tuple[str, int, int]]
    worst: Worst | None
    devices: SavedDevices


class _Rank:
    """A rank whose steps are judged."""

    __slots__ = ("changes", "earliest_ns", "needs")

    def __init__(self) -> None:
        self.needs: StepNeeds | None = None
        self.changes = -1
        """As of which of all changes its needs are."""
        self.earliest_ns = 0
        """When its device can have been done with its latest step at the earliest."""


class _Model(NamedTuple):
    """What is known of a rank's model."""

    shape: ModelShape | None = None
    why: str | None = None
    """Why the shape of the model is not known."""
    read_whole: bool = True
    """Where it is not: each step reads all weights and the whole context."""


_UNTOLD = _Model()


class FloorTracker:
    """The floor of each step, where peak and shape are known."""

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
        """What the model of a rank is built of; the engines were told before."""
        self._look_at((config.source, config.rank))

    def info(self, info: EngineInfo) -> None:
        """An engine is up, or heard of again; engines and traffic were told before."""
        self._look_at((info.source, info.rank))

    def changed(self) -> None:
        """Something else was heard of an engine, such as where it runs."""
        self.devices.changes += 1

    def lost(self, source: str) -> None:
        """An engine is gone, or all: what it was stays known, as its infos do."""
        for key, rank in self._ranks.items():
            if source in {"", key[0]}:
                rank.earliest_ns = 0

    def step(self, step: Step, followed: RankTraffic | None, gap_ns: int) -> int | None:
        """The floor of a step in ns; None where nothing bounds it."""
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
        """Its counters, by the names under which their rows are kept."""
        named = {f"floor_{name}": each for name, each in self.counters.items()}
        return named | {"too_fast": self.too_fast}

    def over(self, now_ns: int, window: Window) -> dict[str, CounterTotals]:
        """All that was counted in a window, by what steps did."""
        return {kind: each.over(now_ns, window) for kind, each in self.counters.items()}

    def impossible(self, now_ns: int, window: Window) -> Impossible | None:
        """Steps of a window that were too fast; None where there was none."""
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
        """What steps of a rank need, where that is known."""
        return self._learn(key).needs

    def shape(self, key: Key) -> tuple[ModelShape | None, str | None]:
        """The shape of a rank's model, or why it is not known."""
        model = self._models.get(key, _UNTOLD)
        return model.shape, model.why

    def saved(self) -> SavedFloors:
        """All that is kept, but for the counters."""
        return SavedFloors(
            earliest_ns=[(*key, r.earliest_ns) for key, r in self._ranks.items()],
            worst=self._worst,
            devices=self.devices.saved(),
        )

    def restore(self, saved: SavedFloors) -> None:
        """Take over what was saved; engines and traffic are restored before."""
        for key in self._engines.configs:
            self._look_at(key)
        for source, number, earliest_ns in saved.earliest_ns:
            self._ranks.setdefault((source, number), _Rank()).earliest_ns = earliest_ns
        self._worst = saved.worst
        self.devices.restore(saved.devices)

    def _judge(self, rank: _Rank, step: Step, begin_ns: int, floor_ns: int) -> None:
        """Note a step that was too fast, unless all clocks err a little."""
        if rank.earliest_ns <= step.end_ns + TOLERANCE * floor_ns:
            return
        rank.earliest_ns = step.end_ns
        ratio = min(floor_ns / max(step.end_ns - begin_ns, 1), MOST_RATIO)
        if self._worst is None or ratio > self._worst.ratio:
            self._worst = Worst(ratio, step.end_ns, step.index)
        self.too_fast.add(step.end_ns, int((ratio - 1) * 1e6), step.index)

    def _worst_after(self, t_ns: int) -> Worst | None:
        """The worst step that a rolling window still holds."""
        ends_ns, excess, index = self.too_fast.rows.later_than(t_ns)
        if not excess.size:
            return None
        place = int(np.argmax(excess))
        ratio = 1 + int(excess[place]) / 1e6
        return Worst(ratio, int(ends_ns[place]), int(index[place]))

    def _learn(self, key: Key) -> _Rank:
        """All that is known by now of a rank's model and devices."""
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
        """A rank is heard of: what it is has to be learned anew."""
        self.devices.changes += 1
        config = self._engines.configs.get(key)
        model = self._models[key] = _UNTOLD if config is None else _model(config)
        shape = model.shape
        if shape is None:
            self._traffic.windowed(*key, None)
        else:
            self._traffic.windowed(*key, shape.window, chunked=shape.chunked)


def _model(config: ModelConfig) -> _Model:
    """What a configuration says of a model."""
    told: dict[str, Any] = {}
    try:
        told = msgspec.json.decode(config.config, type=dict)
        shape = shape_of(
            told,
            dtype=config.dtype,
            kv_dtype=config.kv_dtype,
            quantization=config.quantization,
        )
    except (msgspec.MsgspecError, RecursionError, ShapeError) as error:
        return _Model(why=str(error), read_whole=reads_all(told))
    return _Model(shape=shape)
