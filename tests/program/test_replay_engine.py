"""A recorded session of real vLLM shows what the live one showed, tick for tick."""

import asyncio
from pathlib import Path

import pytest

from collectors.clock import SessionClock
from collectors.readings import Tick
from inferwatch.metrics.model import Model
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.pipeline import Pipeline
from inferwatch.storage.recorder import Recorder
from inferwatch.storage.replay import Replay
from inferwatch.watching.demo import demo_load, demo_source
from inferwatch.watching.watch import Watch

pytestmark = pytest.mark.engine

WATCH_S = 8


class RememberingPipeline(Pipeline):
    """Keeps what the screens were shown at every tick."""

    def __init__(self, model: Model, recorder: Recorder) -> None:
        super().__init__(model, recorder)
        self.shown: list[Snapshot] = []

    def tick(self, now_ns: int) -> None:
        super().tick(now_ns)
        self.shown.append(self.snapshot(now_ns, Window.TEN_SECONDS))


async def live(database: Path) -> list[Snapshot]:
    clock = SessionClock()
    pipeline = RememberingPipeline(Model(), Recorder.open(database, clock=clock))
    watch = Watch(clock, pipeline, demo_source(), demo_load(seed=1))
    watching = asyncio.create_task(watch.run())
    try:
        await asyncio.wait_for(watch.live.wait(), 90)
        await asyncio.sleep(WATCH_S)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return pipeline.shown


async def replayed(database: Path) -> list[Snapshot]:
    model, shown = Model(), []
    async for batch in Replay(database, "last").batches():
        for reading in batch:
            model.fold(reading)
            if isinstance(reading, Tick):
                shown.append(model.snapshot(reading.t_ns, Window.TEN_SECONDS))
    return shown


async def test_live_and_replayed_snapshots_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))

    were_shown = await live(tmp_path / "sessions.db")
    are_shown = await replayed(tmp_path / "sessions.db")

    assert were_shown[-1].steps.count > 100
    assert len(are_shown) == len(were_shown)
    for was, is_ in zip(were_shown, are_shown, strict=True):
        assert is_ == was
