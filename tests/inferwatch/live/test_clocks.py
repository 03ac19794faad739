"""Wall times of a live screen, when its host sleeps or its clock is set."""

from datetime import datetime
from types import SimpleNamespace

import pytest

from collectors.contract import clock
from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, ClockAnchor
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.load.load_session import LoadSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.metrics.model.model import Model
from tests.inferwatch.live.conftest import ScriptedSource

S = 1_000_000_000
BEGAN_NS = 1_790_000_000 * S


class HeardPipeline(Pipeline):
    """Remembers what it took."""

    def __init__(self) -> None:
        super().__init__(Model())
        self.heard: list[AnyReading] = []

    def take(self, readings: list[AnyReading]) -> None:  # type: ignore[override]  # lists are what it gets
        self.heard += readings
        super().take(readings)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    host = SimpleNamespace(monotonic=100 * S, wall=BEGAN_NS)
    host.monotonic_ns = lambda: host.monotonic
    host.time_ns = lambda: host.wall
    monkeypatch.setattr(clock, "time", host)
    return host


async def test_after_a_suspend_wall_times_are_those_of_the_wall_clock(
    host: SimpleNamespace,
) -> None:
    pipeline = HeardPipeline()
    watch = EngineSession(SessionClock(), pipeline, ScriptedSource(None))
    host.monotonic, host.wall = 160 * S, BEGAN_NS + 7_260 * S  # two hours asleep
    watch._session.look_at_clocks()
    host.monotonic, host.wall = 190 * S, BEGAN_NS + 7_290 * S

    watch._session.look_at_clocks()

    assert watch.wall_text(watch.clock.now_ns()) == text(host.wall)
    assert watch.wall_text(30 * S) == text(BEGAN_NS + 30 * S)
    assert [(each.t_ns, each.wall_ns) for each in anchors(pipeline)] == [
        (60 * S, BEGAN_NS + 7_260 * S)
    ]


async def test_a_load_run_without_a_screen_records_the_new_time_too(
    host: SimpleNamespace,
) -> None:
    pipeline = HeardPipeline()
    target = TargetServer.at("http://127.0.0.1:9", None, {})
    session = LoadSession(SessionClock(), pipeline, target)
    host.wall += 7_200 * S

    session._session.look_at_clocks()

    assert [each.wall_ns for each in anchors(pipeline)] == [host.wall]


def anchors(pipeline: HeardPipeline) -> list[ClockAnchor]:
    return [each for each in pipeline.heard if isinstance(each, ClockAnchor)]


def text(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / S).astimezone().strftime("%H:%M:%S")
