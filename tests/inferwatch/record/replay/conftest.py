"""A recorded session and a player of it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from collectors.contract.readings import AnyReading
from inferwatch.metrics.findings import gather
from inferwatch.metrics.load.receipt_clock import ReceiptClock
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.replay.player import Player
from inferwatch.record.writing.recorder import Recorder

S = 1_000_000_000
Put = Callable[[list[AnyReading]], Recorder]


@pytest.fixture(scope="session")
def readings(traffic_of: Callable[..., Any]) -> list[AnyReading]:
    """Half a minute of a small engine."""
    traffic = traffic_of(step_ms=20.0)
    return [*traffic.start(), *traffic.run(30)]


@pytest.fixture(scope="session")
def recording(
    tmp_path_factory: pytest.TempPathFactory, readings: list[AnyReading]
) -> Path:
    """They were recorded once, as fast as they can be."""
    path = tmp_path_factory.mktemp("recording") / "inferwatch.db"
    clock: Any = StoppedClock(31 * S)
    recorder = Recorder.open(path, clock=clock, floor_bytes=0)
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)
    recorder.close()
    return path


@pytest.fixture
def recorded(recording: Path, path: Path) -> Path:
    """A copy for one test."""
    return copyfile(recording, path)


class StoppedClock:
    """A session's clock that stands."""

    def __init__(self, now_ns: int) -> None:
        self.start_ns = 0
        self.ns = now_ns

    def now_ns(self) -> int:
        return self.ns


@pytest.fixture(scope="session")
def stopped_clock() -> type[StoppedClock]:
    return StoppedClock


@pytest.fixture
def player(recorded: Path) -> Iterator[Player]:
    """At the start of the recorded session."""
    player = Player.open(recorded, "last")
    yield player
    player.close()


@pytest.fixture(scope="session")
def as_of() -> Callable[[list[AnyReading], int, Window], Snapshot]:
    """What playing up to a moment shows, folded from the beginning, once of each."""
    folded: dict[tuple[Any, ...], tuple[AnyReading, Snapshot]] = {}

    def fold(readings: list[AnyReading], t_ns: int, window: Window) -> Snapshot:
        model, receipts = Model(), ReceiptClock()
        for reading in readings:
            if receipts.take(reading) > t_ns:
                break
            model.fold(reading)
        return model.snapshot(t_ns, SnapshotQuery(window))

    def look_up(readings: list[AnyReading], t_ns: int, window: Window) -> Snapshot:
        last = readings[-1]  # it is kept, so no other reading gets its id
        # Findings look back as far as a test lets them.
        key = (len(readings), id(last), t_ns, window, gather.LONGER)
        if key not in folded:
            folded[key] = last, fold(readings, t_ns, window)
        return folded[key][1]

    return look_up


@pytest.fixture
def run() -> Callable[[Player, Awaitable[None]], Awaitable[None]]:
    """Does something while the player runs."""

    async def run_while(player: Player, doing: Awaitable[None]) -> None:
        running = asyncio.create_task(player.run())
        try:
            await doing
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    return run_while
