"""A recorded session and a player of it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.readings import AnyReading
from inferwatch.metrics.model import Model
from inferwatch.metrics.receipt_clock import ReceiptClock
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.replay.player import Player
from inferwatch.storage.recording.recorder import Recorder

S = 1_000_000_000
Put = Callable[[list[AnyReading]], Recorder]


@pytest.fixture
def readings(traffic: Any) -> list[AnyReading]:
    """Half a minute of a small engine."""
    return [*traffic.start(), *traffic.run(30)]


@pytest.fixture
def recorded(
    record: Callable[..., Recorder], readings: list[AnyReading], path: Path
) -> Path:
    """They were recorded, as fast as they can be."""
    recorder = record(clock=StoppedClock(31 * S))
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)
    recorder.close()
    return path


class StoppedClock:
    """A session's clock that stands."""

    def __init__(self, now_ns: int) -> None:
        self.start_ns = 0
        self.ns = now_ns

    def now_ns(self) -> int:
        return self.ns


@pytest.fixture
def stopped_clock() -> type[StoppedClock]:
    return StoppedClock


@pytest.fixture
def player(recorded: Path) -> Iterator[Player]:
    """At the start of the recorded session."""
    player = Player.open(recorded, "last")
    yield player
    player.close()


@pytest.fixture
def as_of() -> Callable[[list[AnyReading], int, Window], Snapshot]:
    """What playing up to a moment shows, by folding from the beginning."""

    def fold(readings: list[AnyReading], t_ns: int, window: Window) -> Snapshot:
        model, receipts = Model(), ReceiptClock()
        for reading in readings:
            if receipts.take(reading) > t_ns:
                break
            model.fold(reading)
        return model.snapshot(t_ns, window, client=False)

    return fold


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
