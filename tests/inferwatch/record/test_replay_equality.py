"""Live and replayed snapshots are equal: the two are one code after the collector."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    KvCacheEvents,
    Note,
    NoteKind,
    RequestSpan,
    Tick,
)
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.writing.recorder import Recorder
from tests.inferwatch.metrics.scripted_hardware import gpu_info, plausible
from tests.inferwatch.metrics.scripted_live_limits import story
from tests.inferwatch.metrics.scripted_pool import Pool, shared_load

WINDOWS = [Window.TEN_SECONDS, Window.SESSION]


def snapshots(model: Model, tick: Tick) -> list[Snapshot]:
    return [
        model.snapshot(tick.t_ns, SnapshotQuery(window, breakdown=True, tenants=True))
        for window in WINDOWS
    ]


def watched_live(
    recorder: Recorder, readings: Iterable[AnyReading]
) -> list[list[Snapshot]]:
    """What the screens saw at each tick, and at moments of their own in between."""
    model = Model()
    pipeline = Pipeline(model, recorder)
    seen = []
    for number, reading in enumerate(readings):
        pipeline.take([reading])
        if isinstance(reading, Tick):
            seen.append(snapshots(model, reading))
        elif number % 400 == 0:
            model.snapshot(
                10**9 * number // 400, SnapshotQuery(Window.MINUTE, requests=False)
            )
    pipeline.close()
    return seen


async def watched_again(path: Path) -> list[list[Snapshot]]:
    """What a replay shows at the recorded ticks."""
    model = Model()
    seen = []
    async for batch in RecordedReadings(path, "last").batches():
        for reading in batch:
            model.fold(reading)
            if isinstance(reading, Tick):
                seen.append(snapshots(model, reading))
    return seen


@pytest.mark.parametrize(
    ("slots", "step_ms"),
    [
        pytest.param(3, 15.0, id="queueing"),
        pytest.param(3, 5.0, id="queueing, many steps", marks=pytest.mark.soak),
        pytest.param(24, 5.0, id="roomy", marks=pytest.mark.soak),
    ],
)
async def test_live_and_replayed_snapshots_are_equal_at_recorded_ticks(
    record: Callable[..., Recorder],
    path: Path,
    traffic_of: Callable[..., Any],
    slots: int,
    step_ms: float,
) -> None:
    traffic = traffic_of(slots=slots, step_ms=step_ms)
    lost = Note(t_ns=15 * 10**9, kind=NoteKind.DROPPED, text="7 lost", count=7)
    readings = [*traffic.start(), *traffic.run(15), lost, *traffic.run(15)]

    live = watched_live(record(), readings)
    again = await watched_again(path)

    assert len(live) == 30
    assert live[-1][-1].steps.count > 1_000
    assert live[-1][-1].flow.finished > 50
    for number, (then, now) in enumerate(zip(live, again, strict=True)):
        assert then == now, f"tick {number}"


async def test_limits_changed_on_the_way_are_replayed_as_they_were(
    record: Callable[..., Recorder], path: Path, traffic: Any
) -> None:
    readings = [*traffic.start()]
    for change in story():
        readings += [change, *traffic.run(2)]

    live = watched_live(record(), readings)
    again = await watched_again(path)

    shown = [each[-1] for each in live]
    assert [each.engines[0].max_num_seqs for each in shown[1::2]] == [12, 4, 4, 12]
    assert [each.live_limits[0].version for each in shown[1::2]] == [0, 1, 2, 3]
    assert live == again


async def test_gpus_and_hosts_are_replayed_as_they_were(
    record: Callable[..., Recorder], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.snapshots", in_full)
    told = plausible(20, gpus=2, hz=10)
    lost = gpu_info(1, t_ns=12 * 10**9, lost_because="it fell off the bus")
    told[len(told) // 2 : len(told) // 2] = [lost]
    ticked = [[each, Tick(t_ns=each.t_ns)] for each in told if hasattr(each, "t_ns")]
    readings = [each for pair in ticked[::5] for each in pair]

    live = watched_live(record(), readings)
    again = await watched_again(path)

    assert len(live) > 80
    assert live[-1][-1].hardware.energy_j
    assert live == again


def in_full(model: Model, tick: Tick) -> list[Snapshot]:
    return [
        model.snapshot(
            tick.t_ns,
            SnapshotQuery(window, hardware=True, breakdown=True, tenants=True),
        )
        for window in WINDOWS
    ]


async def test_the_memory_is_replayed_as_it_was(
    record: Callable[..., Recorder],
    path: Path,
    traffic: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{__name__}.WINDOWS", [*WINDOWS, Window.MINUTE])
    pool, readings = Pool(150), [*traffic.start()]
    for reading in shared_load(pool, 12):
        readings.append(reading)
        if isinstance(reading, BlockMap):
            readings.append(Tick(t_ns=reading.t_ns))
    readings += [pool.map(13 * 10**9), Tick(t_ns=13 * 10**9)]

    live = watched_live(record(), readings)
    again = await watched_again(path)

    assert len(live) > 40
    assert live == again
    shown = again[-1][-1]
    refs = [sum(block in held for held in pool.held.values()) for block in range(150)]
    assert list(shown.block_maps[0].references) == refs
    assert shown.memory is not None
    assert shown.memory.hit_curve
    assert shown.memory.evicted


def told_late() -> Iterator[AnyReading]:
    """Traces that come in batches, seconds after; what a cache stores and forgets."""
    for second in range(1, 13):
        t_ns = second * 10**9
        yield KvCacheEvents(
            source="chat",
            t_ns=t_ns,
            sequence=2 * second,
            missed=second // 12,
            stored=[second, (1 << 64) - second],
            parents=[None, second],
            removed=[second - 3] if second > 3 else [],
            block_tokens=16,
        )
        for ended_ns in range(t_ns - 5 * 10**9, t_ns, 10**9) if not second % 5 else ():
            yield RequestSpan(
                source="chat",
                request_id="same",
                arrived_ns=ended_ns - 10**9,
                end_ns=ended_ns,
                ttft_ns=ended_ns // 20,
                decode_ns=10**8,
                e2el_ns=10**9,
                prompt_tokens=second,
                output_tokens=9,
                temperature=0.5,
            )
        yield Tick(t_ns=t_ns)


async def test_traces_and_cache_events_are_replayed_as_they_came(
    record: Callable[..., Recorder], path: Path
) -> None:
    live = watched_live(record(), told_late())

    assert await watched_again(path) == live
    last = live[-1][-1]
    assert [len(seen[-1].requests) for seen in live] == [0] * 4 + [5] * 5 + [10] * 3
    assert last.prefix_cache is not None
    assert (last.prefix_cache.blocks, last.prefix_cache.partial) == (15, True)
