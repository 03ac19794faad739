"""A recorded session of real vLLM shows what the live one showed, step for step."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, Note, NoteKind, Step, Tick
from embedded_engine.engine.launch import Engine
from inferwatch.live.engine.demo import demo_load
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.load.receipt_clock import ReceiptClock
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.replay.player import Player
from inferwatch.record.writing.recorder import Recorder
from tests.program.conftest import adopted, until

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("shared engine")]

TICKS, PICTURES = 6, 20
"""So much is watched."""
STEPS = 10
"""Between two pictures."""


class RememberingPipeline(Pipeline):
    """Keeps what the screens were shown at every tick, and at every tenth step."""

    def __init__(self, model: Model, recorder: Recorder) -> None:
        super().__init__(model, recorder)
        self.shown: list[Snapshot] = []
        self.shown_at_steps: list[Snapshot] = []
        self._there = ReceiptClock()
        self._steps = 0

    def take(self, readings: Sequence[AnyReading]) -> None:
        for reading in readings:
            super().take([reading])
            t_ns = self._there.take(reading)
            if not isinstance(reading, Step) or reading.start_ns < 0:
                continue  # what was before us is there from the beginning
            self._steps += 1
            if self._steps % STEPS == 0:
                window = list(Window)[self._steps // STEPS % len(Window)]
                self.shown_at_steps.append(self.snapshot(t_ns, SnapshotQuery(window)))

    def tick(self, now_ns: int) -> None:
        super().tick(now_ns)
        self.shown.append(self.snapshot(now_ns, SnapshotQuery(Window.TEN_SECONDS)))


async def live(engine: Engine, database: Path) -> RememberingPipeline:
    clock = SessionClock()
    pipeline = RememberingPipeline(Model(), Recorder.open(database, clock=clock))
    async with adopted(engine, demo_load(seed=1), clock=clock, pipeline=pipeline):
        await until(lambda: len(pipeline.shown_at_steps) >= PICTURES, "it steps")
        await until(lambda: len(pipeline.shown) >= TICKS, "it ticks")
        await until(lambda: pipeline.shown[-1].flow.finished, "requests end")
    return pipeline


async def replayed(database: Path) -> list[Snapshot]:
    """At every tick, with what it found."""
    model, shown = Model(), []
    tick_ns: int | None = None
    async for batch in RecordedReadings(database, "last").batches():
        for reading in batch:
            if tick_ns is not None and not is_finding(reading):
                shown.append(model.snapshot(tick_ns, SnapshotQuery(Window.TEN_SECONDS)))
                tick_ns = None
            model.fold(reading)
            if isinstance(reading, Tick):
                tick_ns = reading.t_ns
    if tick_ns is not None:
        shown.append(model.snapshot(tick_ns, SnapshotQuery(Window.TEN_SECONDS)))
    return shown


def is_finding(reading: AnyReading) -> bool:
    return isinstance(reading, Note) and reading.kind is NoteKind.FINDING


async def test_live_and_replayed_snapshots_are_equal_at_ticks_and_steps(
    engine: Engine, tmp_path: Path
) -> None:
    watched = await live(engine, tmp_path / "sessions.db")
    were_shown, are_shown = watched.shown, await replayed(tmp_path / "sessions.db")

    assert were_shown[-1].flow.finished
    assert len(are_shown) == len(were_shown)
    for was, is_ in zip(were_shown, are_shown, strict=True):
        assert is_ == was

    player = Player.open(tmp_path / "sessions.db", "last")
    try:
        for was in sorted(watched.shown_at_steps, key=lambda each: hash(each.now_ns)):
            await player.playback.seek(was.now_ns)
            assert player.snapshot(SnapshotQuery(was.window)) == was
    finally:
        player.close()
