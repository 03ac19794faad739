"""A Model that has folded some readings."""

from collections.abc import Callable, Iterable

import pytest

from collectors.readings import AnyReading
from inferwatch.metrics.model import Model
from inferwatch.metrics.snapshot import Snapshot, Window

MS = 1_000_000


@pytest.fixture
def see() -> Callable[..., Snapshot]:
    """``see(readings, now_ms, window)``: fold them all, then look."""

    def look(
        readings: Iterable[AnyReading],
        now_ms: float = 10_000,
        window: Window = Window.MINUTE,
    ) -> Snapshot:
        model = Model()
        for reading in readings:
            model.fold(reading)
        return model.snapshot(round(now_ms * MS), window)

    return look
