"""Single steps are told alike from memory, from the record and from both."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.readings import AnyReading, Step
from inferwatch.metrics.model import Model
from inferwatch.replay.player import Player
from inferwatch.session.live_recall import LiveRecall
from inferwatch.session.pipeline import Pipeline
from inferwatch.session.recent_readings import RecentReadings, RecentSteps
from inferwatch.storage.recording.recorder import Recorder

S = 1_000_000_000
Until = Callable[..., Awaitable[None]]


class TwoEngines:
    """The readings of two engines, recorded; who asks for steps gets those of both."""

    def __init__(self, recorder: Recorder | None, readings: list[AnyReading]) -> None:
        self.recorder = recorder
        self.pipeline = Pipeline(Model(), recorder)
        self.readings = readings
        self.now_ns = 31 * S
        self.recall = LiveRecall(self.pipeline, lambda: self.now_ns)

    @property
    def steps(self) -> list[Step]:
        made = [each for each in self.readings if isinstance(each, Step)]
        return sorted(made, key=lambda each: each.end_ns)

    def between(self, start_ns: int, end_ns: int) -> list[Step]:
        return [each for each in self.steps if start_ns < each.end_ns <= end_ns]


@pytest.fixture(scope="module")
def readings(traffic_of: Callable[..., Any]) -> list[AnyReading]:
    """Half a minute, in which the second engine's steps come a second late."""
    traffic = traffic_of()
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


@pytest.fixture
async def engines(
    tmp_path: Path, readings: list[AnyReading], until: Until
) -> AsyncIterator[TwoEngines]:
    clock: Any = type("Clock", (), {"start_ns": 0, "now_ns": lambda _: 31 * S})()
    recorder = Recorder.open(tmp_path / "s.db", clock=clock, floor_bytes=0)
    made = TwoEngines(recorder, readings)
    yield made
    await asyncio.to_thread(recorder.close)


async def taken(engines: TwoEngines, until: Until) -> None:
    engines.pipeline.take(engines.readings)
    recorder = engines.recorder
    assert recorder is not None
    await until(lambda: recorder.health.written == len(engines.readings))


SPANS = [(0, 31 * S), (9 * S, 11 * S), (27 * S, 30 * S), (3 * S, 3 * S + 1)]


@pytest.mark.parametrize("kept_s", [300, 20, 0], ids=["memory", "both", "record"])
@pytest.mark.parametrize("span", SPANS, ids=str)
async def test_steps_of_a_span_are_all_there_whoever_remembers(
    engines: TwoEngines, until: Until, kept_s: int, span: tuple[int, int]
) -> None:
    engines.pipeline.recent = RecentReadings(kept_ns=kept_s * S)
    await taken(engines, until)

    found = await engines.recall.steps(*span)
    of_one = await engines.recall.steps(*span, "engine-2")

    assert list(found) == engines.between(*span)
    assert list(of_one) == [each for each in found if each.source == "engine-2"]


async def test_only_what_is_past_at_the_moment_shown_is_told(
    engines: TwoEngines, until: Until
) -> None:
    await taken(engines, until)
    engines.now_ns = 12 * S

    found = await engines.recall.steps(10 * S, 30 * S)

    assert list(found) == engines.between(10 * S, 12 * S)


async def test_a_replay_tells_the_same_as_of_its_position(
    engines: TwoEngines, until: Until, tmp_path: Path
) -> None:
    await taken(engines, until)
    player = Player.open(tmp_path / "s.db", "last")
    try:
        await player.playback.seek(20 * S)

        found = await player.recall.steps(15 * S, 25 * S)
    finally:
        player.close()

    assert list(found) == engines.between(15 * S, player.now_ns())
    assert player.now_ns() < 25 * S


async def test_of_more_than_can_be_told_the_latest_are(
    engines: TwoEngines, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferwatch.session.live_recall.MOST_STEPS", 50)
    await taken(engines, until)
    engines.pipeline.recent = RecentReadings(kept_ns=S // 5)
    for each in engines.readings:
        engines.pipeline.recent.take(each)

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

    first, second, third = recent.as_they_are().between(-1, 10**9, None, 99)
    assert first.members is second.members is third.members
    assert first == make_step(0, dict.fromkeys(range(64), 1), index=0)
