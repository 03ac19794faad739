"""Live and replayed snapshots are equal: the two are one code after the collector."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from collectors.readings import AnyReading, Note, NoteKind, Tick
from inferwatch.metrics.model import Model
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.session.pipeline import Pipeline
from inferwatch.storage.recorded_readings import RecordedReadings
from inferwatch.storage.recording.recorder import Recorder

WINDOWS = [Window.TEN_SECONDS, Window.SESSION]


def snapshots(model: Model, tick: Tick) -> list[Snapshot]:
    return [model.snapshot(tick.t_ns, window) for window in WINDOWS]


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
            model.snapshot(10**9 * number // 400, Window.MINUTE, requests=False)
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


@pytest.mark.parametrize("slots", [3, 24], ids=["queueing", "roomy"])
async def test_live_and_replayed_snapshots_are_equal_at_recorded_ticks(
    record: Callable[..., Recorder],
    path: Path,
    traffic_of: Callable[..., Any],
    slots: int,
) -> None:
    traffic = traffic_of(slots=slots)
    lost = Note(t_ns=15 * 10**9, kind=NoteKind.DROPPED, text="7 lost", count=7)
    readings = [*traffic.start(), *traffic.run(15), lost, *traffic.run(15)]

    live = watched_live(record(), readings)
    again = await watched_again(path)

    assert len(live) == 30
    assert live[-1][-1].steps.count > 1_000
    assert live[-1][-1].flow.finished > 50
    for number, (then, now) in enumerate(zip(live, again, strict=True)):
        assert then == now, f"tick {number}"
