"""Single steps are told alike from memory, from the record and from both."""

from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import AnyReading, Step
from inferwatch.live.past.live_recall import LiveRecall
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.recent_readings import RecentReadings, RecentSteps
from inferwatch.metrics.model.model import Model
from inferwatch.record.replay.player import Player
from inferwatch.record.writing.recorder import Recorder

S = 1_000_000_000
PATIENCE_S = 60.0


class TwoEngines:
    """The readings of two engines, recorded; who asks for steps gets those of both."""

    def __init__(self, recorder: Recorder | None, readings: list[AnyReading]) -> None:
        self.pipeline = Pipeline(Model(), recorder)
        self.readings = readings
        self.now_ns = 31 * S
        self.recall = LiveRecall(self.pipeline, lambda: self.now_ns)
        self.remember(300 * S)

    def remember(self, kept_ns: int) -> None:
        """Forget what is longer ago."""
        recent = RecentReadings(kept_ns=kept_ns)
        for each in self.readings:
            recent.take(each)
        self.pipeline.recent = recent

    @property
    def steps(self) -> list[Step]:
        made = [each for each in self.readings if isinstance(each, Step)]
        return sorted(made, key=lambda each: each.end_ns)

    def between(self, start_ns: int, end_ns: int) -> list[Step]:
        return [each for each in self.steps if start_ns < each.end_ns <= end_ns]


@pytest.fixture(scope="module")
def readings(traffic_of: Callable[..., Any]) -> list[AnyReading]:
    """Half a minute, in which the second engine's steps come a second late."""
    traffic = traffic_of(step_ms=10.0)
    made = [*traffic.start(), *traffic.run(30)]
    late: list[Step] = []
    both: list[AnyReading] = []
    for each in made:
        both.append(each)
        if isinstance(each, Step):
            late.append(
                msgspec.structs.replace(
                    each,
                    source="engine-2",
                    start_ns=each.start_ns + 1_000,
                    end_ns=each.end_ns + 1_000,
                )
            )
            while late and late[0].end_ns < each.end_ns - S:
                both.append(late.pop(0))
    return [*both, *late]


@pytest.fixture(scope="module")
def recorder(
    tmp_path_factory: pytest.TempPathFactory, readings: list[AnyReading]
) -> Iterator[Recorder]:
    """All of it is in its file, and it still goes on."""
    path = tmp_path_factory.mktemp("steps") / "s.db"
    clock: Any = type("Clock", (), {"start_ns": 0, "now_ns": lambda _: 31 * S})()
    recorder = Recorder.open(path, clock=clock, floor_bytes=0)
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)
    deadline_s = monotonic() + PATIENCE_S
    while recorder.health.written < len(readings):
        assert monotonic() < deadline_s, f"written: {recorder.health.written}"
        sleep(0.01)
    yield recorder
    recorder.close()


@pytest.fixture
def engines(recorder: Recorder, readings: list[AnyReading]) -> TwoEngines:
    return TwoEngines(recorder, readings)


SPANS = [(0, 31 * S), (9 * S, 11 * S), (27 * S, 30 * S), (3 * S, 3 * S + 1)]


@pytest.mark.parametrize("kept_s", [300, 20, 0], ids=["memory", "both", "record"])
@pytest.mark.parametrize("span", SPANS, ids=str)
async def test_steps_of_a_span_are_all_there_whoever_remembers(
    engines: TwoEngines, kept_s: int, span: tuple[int, int]
) -> None:
    engines.remember(kept_s * S)

    found = await engines.recall.steps(*span)
    of_one = await engines.recall.steps(*span, "engine-2")

    assert list(found) == engines.between(*span)
    assert list(of_one) == [each for each in found if each.source == "engine-2"]


async def test_only_what_is_past_at_the_moment_shown_is_told(
    engines: TwoEngines,
) -> None:
    engines.now_ns = 12 * S

    found = await engines.recall.steps(10 * S, 30 * S)

    assert list(found) == engines.between(10 * S, 12 * S)


@pytest.mark.soak
async def test_a_replay_tells_the_same_as_of_its_position(
    engines: TwoEngines, recorder: Recorder
) -> None:
    player = Player.open(recorder.path, "last")
    try:
        await player.playback.seek(20 * S)

        found = await player.recall.steps(15 * S, 25 * S)
    finally:
        player.close()

    assert list(found) == engines.between(15 * S, player.now_ns())
    assert player.now_ns() < 25 * S


async def test_of_more_than_can_be_told_the_latest_are(
    engines: TwoEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferwatch.live.past.live_recall.MOST_STEPS", 50)
    engines.remember(S // 5)

    found = await engines.recall.steps(0, 31 * S, "engine-2")

    assert list(found) == [e for e in engines.steps if e.source == "engine-2"][-50:]


async def test_without_a_record_there_is_what_memory_holds(
    readings: list[AnyReading],
) -> None:
    engines = TwoEngines(None, readings)
    engines.pipeline.recent = RecentReadings(kept_ns=10 * S)
    engines.pipeline.take(readings)

    found = await engines.recall.steps(0, 31 * S)

    since_ns = engines.pipeline.recent.steps.since_ns
    assert since_ns is not None
    assert list(found) == engines.between(since_ns, 31 * S)
    assert len(found) > 100


def test_memory_stays_bounded_whatever_comes(make_step: Any) -> None:
    recent = RecentSteps(most_bytes=1_000_000)

    for at in range(20_000):
        members = dict.fromkeys(range(at, at + 64), 1)
        recent.add(make_step(at * 10, members, index=at))

    assert recent.bytes <= 1_000_000
    assert 300 < len(recent) < 1_000


def test_steps_of_the_same_batch_share_what_they_have_in_common(make_step: Any) -> None:
    recent = RecentSteps()

    for at in range(3):
        recent.add(make_step(at * 10, dict.fromkeys(range(64), 1), index=at))

    first, second, third = recent.snapshot().between(-1, 10**9, None, 99)
    assert first.members is second.members is third.members
    assert first == make_step(0, dict.fromkeys(range(64), 1), index=0)
