"""Whatever moment is sought, the map is the pool of then, and so are the numbers."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from collectors.contract.readings import AnyReading, BlockMap, EngineInfo
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.replay.checkpoint_builder import CheckpointBuilder
from inferwatch.record.replay.player import Player
from inferwatch.record.sessions.sessions import find
from inferwatch.record.writing.recorder import Recorder
from tests.inferwatch.metrics.scripted_pool import Pool, S, shared_load

LONG_S = 40
Truth = dict[int, list[int]]
"""References of each block at the moments of maps."""


@pytest.fixture
def sought(path: Path, stopped_clock: Any) -> tuple[Path, list[AnyReading], Truth]:
    """A recorded session with checkpoints, what is in it, and what was really so."""
    pool, truth = Pool(150), Truth()
    info = EngineInfo(
        source=pool.source,
        t_ns=0,
        pid=1,
        model="m",
        vllm_version="1",
        num_kv_blocks=149,
        kv_block_tokens=16,
    )
    readings: list[AnyReading] = [info]
    for reading in shared_load(pool, LONG_S):
        readings.append(reading)
        if isinstance(reading, BlockMap):
            truth[reading.t_ns] = [*pool.refs]
    clock = stopped_clock((LONG_S + 1) * S)
    recorder = Recorder.open(path, clock=clock, floor_bytes=0, capacity=1 << 20)
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)
    recorder.close()
    CheckpointBuilder(path, find(path, "last")).build()
    return path, readings, truth


async def test_the_memory_of_any_moment_is_as_it_was(
    sought: tuple[Path, list[AnyReading], Truth],
    as_of: Callable[[list[AnyReading], int, Window], Snapshot],
) -> None:
    path, readings, truth = sought
    player, chance = Player.open(path, "last"), Random(3)
    try:
        for mapped_ns in [*chance.sample([*truth], 6), max(truth)]:
            t_ns = mapped_ns + S // 1_000  # it came after the steps of its moment
            await player.playback.seek(t_ns)
            shown = player.snapshot(SnapshotQuery(Window.MINUTE))

            assert shown == as_of(readings, t_ns, Window.MINUTE)
            assert list(shown.block_maps[0].references) == truth[mapped_ns]
        assert player._seekable._lookup._checkpoints is not None  # they were used
        memory = player.snapshot(SnapshotQuery(Window.MINUTE)).memory
        assert memory is not None
        assert memory.evicted
        assert memory.hit_curve[-1].hit_rate > 0.1
    finally:
        player.close()
