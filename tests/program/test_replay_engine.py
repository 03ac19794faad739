"""A recorded session of real vLLM shows what the live one showed, step for step."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from collectors.clock import SessionClock
from collectors.readings import AnyReading, Step, Tick
from inferwatch.metrics.model import Model
from inferwatch.metrics.receipt_clock import ReceiptClock
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.replay.player import Player
from inferwatch.session.demo import demo_load, demo_source
from inferwatch.session.engine_session import EngineSession
from inferwatch.session.pipeline import Pipeline
from inferwatch.storage.recorded_readings import RecordedReadings
from inferwatch.storage.recording.recorder import Recorder

pytestmark = pytest.mark.engine

WATCH_S = 8


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
            self._steps += isinstance(reading, Step)
            if isinstance(reading, Step) and self._steps % STEPS == 0:
                window = list(Window)[self._steps // STEPS % len(Window)]
                self.shown_at_steps.append(self.snapshot(t_ns, window, client=False))

    def tick(self, now_ns: int) -> None:
        super().tick(now_ns)
        self.shown.append(self.snapshot(now_ns, Window.TEN_SECONDS))


async def live(database: Path) -> RememberingPipeline:
    clock = SessionClock()
    pipeline = RememberingPipeline(Model(), Recorder.open(database, clock=clock))
    watch = EngineSession(clock, pipeline, demo_source(), demo_load(seed=1))
    watching = asyncio.create_task(watch.run())
    try:
        await asyncio.wait_for(watch.live.wait(), 90)
        await asyncio.sleep(WATCH_S)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return pipeline


async def replayed(database: Path) -> list[Snapshot]:
    model, shown = Model(), []
    async for batch in RecordedReadings(database, "last").batches():
        for reading in batch:
            model.fold(reading)
            if isinstance(reading, Tick):
                shown.append(model.snapshot(reading.t_ns, Window.TEN_SECONDS))
    return shown


async def test_live_and_replayed_snapshots_are_equal_at_ticks_and_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))

    watched = await live(tmp_path / "sessions.db")
    were_shown, are_shown = watched.shown, await replayed(tmp_path / "sessions.db")

    assert were_shown[-1].steps.count > 100
    assert len(are_shown) == len(were_shown)
    for was, is_ in zip(were_shown, are_shown, strict=True):
        assert is_ == was

    player = Player.open(tmp_path / "sessions.db", "last")
    try:
        assert len(watched.shown_at_steps) > 10
        for was in sorted(watched.shown_at_steps, key=lambda each: hash(each.now_ns)):
            await player.playback.seek(was.now_ns)
            assert player.snapshot(was.window) == was
    finally:
        player.close()
