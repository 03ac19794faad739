"""A request's story is the same from memory, from the record and from both."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    GpuSample,
    Note,
    NoteKind,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
)
from inferwatch.live.past.live_recall import LiveRecall
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.recent_readings import RecentReadings
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.story.story import RequestStory
from inferwatch.record.replay.player import Player
from inferwatch.record.writing.recorder import Recorder

S = 1_000_000_000
END_NS = 11 * S
LONG = "x" * 190 + "長い名前"
EVERY = (4, pytest.param(1, marks=pytest.mark.soak))
"""Of the requests, the first and so many on; those that are live come last."""
Until = Callable[..., Awaitable[None]]


class Recorded:
    """Ten seconds of a small engine, recorded."""

    def __init__(self, path: Path, readings: list[AnyReading]) -> None:
        clock: Any = type("Clock", (), {"start_ns": 0, "now_ns": lambda _: END_NS})()
        self.path, self.readings = path, readings
        self.recorder = Recorder.open(path, clock=clock, floor_bytes=0)
        self.pipeline = Pipeline(Model(), self.recorder)
        self.pipeline.take(readings)
        self.now_ns = END_NS
        self.recall = LiveRecall(self.pipeline, lambda: self.now_ns)

    def remember(self, seconds: float) -> None:
        """Forget what is longer ago."""
        recent = RecentReadings(kept_ns=round(seconds * S))
        for each in self.readings:
            recent.take(each)
        self.pipeline.recent = recent

    def rows(self, now_ns: int) -> dict[str, RequestRow]:
        model = Model()
        for each in self.readings:
            if happened_ns(each) <= now_ns:
                model.fold(each)
        rows = model.snapshot(now_ns, SnapshotQuery(Window.SESSION)).requests
        return {row.key: row for row in rows}


def happened_ns(reading: Any) -> int:
    if isinstance(reading, Step):
        return reading.end_ns
    if isinstance(reading, RequestRecord):
        return reading.end_ns or 0
    if isinstance(reading, TokenTimes):
        return reading.first_ns + sum(reading.gaps_ns)
    return int(reading.t_ns)


def renamed(reading: AnyReading) -> AnyReading:
    """Ids as long and as wide as they come."""
    changed = {
        name: f"{value}{LONG}"
        for name in ("request_id", "external_id")
        if (value := getattr(reading, name, None))
    }
    return msgspec.structs.replace(reading, **changed) if changed else reading


@pytest.fixture(scope="module")
def readings(traffic_of: Callable[..., Any]) -> list[AnyReading]:
    traffic = traffic_of(slots=4, step_ms=10.0)
    made = [renamed(each) for each in [*traffic.start(), *traffic.run(10)]]
    sample = GpuSample(source="GPU-1", t_ns=0, sm_active=0.5, sm_clock_mhz=1500)
    samples = [msgspec.structs.replace(sample, t_ns=at * S // 10) for at in range(100)]
    return sorted([*made, *samples], key=happened_ns)


@pytest.fixture
async def recorded(
    tmp_path: Path, readings: list[AnyReading], until: Until
) -> AsyncIterator[Recorded]:
    made = Recorded(tmp_path / "s.db", readings)
    await until(lambda: made.recorder.health.written == len(readings))
    yield made
    await asyncio.to_thread(made.recorder.close)


async def stories(recorded: Recorded, keys: list[str]) -> list[RequestStory | None]:
    return [await recorded.recall.request(key) for key in keys]


def some(rows: dict[str, RequestRow]) -> list[str]:
    return list(rows)[:: max(1, len(rows) // 12)]


@pytest.mark.parametrize("now_s", [11, 6.345], ids=["at the end", "held"])
async def test_memory_and_record_tell_the_same(
    recorded: Recorded, now_s: float
) -> None:
    recorded.now_ns = round(now_s * S)
    keys = some(recorded.rows(recorded.now_ns))

    remembered = await stories(recorded, keys)
    recorded.remember(3)
    both = await stories(recorded, keys)
    recorded.remember(0)
    player = Player.open(recorded.path, "last")
    try:
        await player.playback.seek(recorded.now_ns)
        replayed = [await player.recall.request(key) for key in keys]
        position_ns = player.now_ns()
    finally:
        player.close()

    assert None not in remembered
    assert len(keys) >= 10
    assert both == remembered
    if position_ns == recorded.now_ns:  # the record may end before
        assert replayed == remembered
    assert await stories(recorded, keys) == remembered


@pytest.mark.parametrize("every", EVERY)
async def test_a_story_has_the_row_that_the_table_shows(
    recorded: Recorded, every: int
) -> None:
    for now_ns in (END_NS, 4 * S + 1):
        recorded.now_ns = now_ns
        for key, row in list(recorded.rows(now_ns).items())[::every]:
            story = await recorded.recall.request(key)
            assert story is not None
            assert told(story.row) == told(row)


def told(row: RequestRow) -> dict[str, Any]:
    """All but why its longest gap is long: by its own median, or what was usual."""
    names = [each.name for each in fields(RequestRow) if each.name != "itl_cause"]
    return {name: getattr(row, name) for name in names}


@pytest.mark.parametrize("every", EVERY)
async def test_spans_follow_one_another_and_parts_add_up(
    recorded: Recorded, every: int
) -> None:
    for key, row in list(recorded.rows(END_NS).items())[::every]:
        story = await recorded.recall.request(key)
        assert story is not None
        spans = story.spans
        assert all(a.end_ns == b.start_ns for a, b in pairwise(spans))
        assert all(each.end_ns > each.start_ns for each in spans)
        assert spans[-1].end_ns <= END_NS
        if row.ttft_s is not None:
            total_s = sum(part for _, part in story.ttft_parts)
            assert total_s == pytest.approx(row.ttft_s, abs=1e-8)


async def test_what_nobody_told_of_has_no_story(recorded: Recorded) -> None:
    assert await recorded.recall.request("engine-1/nobody") is None
    recorded.remember(0)
    assert await recorded.recall.request("engine-1/nobody") is None
    assert await recorded.recall.request("") is None


async def test_as_of_a_moment_before_it_came_there_is_no_story(
    recorded: Recorded,
) -> None:
    key, row = next(iter(recorded.rows(END_NS).items()))
    recorded.now_ns = row.arrived_ns - 1

    assert await recorded.recall.request(key) is None


async def test_without_a_record_what_is_forgotten_is_said_to_be_missing(
    readings: list[AnyReading],
) -> None:
    pipeline = Pipeline(Model())
    pipeline.take(readings)
    first = next(each for each in readings if isinstance(each, RequestEvent))
    key = f"{first.source}/{first.request_id}"
    events = [
        each
        for each in readings
        if not isinstance(each, RequestEvent)
        or each.request_id != first.request_id
        or each.kind is not EventKind.FINISHED
    ]
    pipeline.recent = RecentReadings(kept_ns=5 * S)
    for each in events:
        pipeline.recent.take(each)

    story = await LiveRecall(pipeline, lambda: END_NS).request(key)

    assert story is not None
    assert story.row.state.live
    assert any("not remembered" in each for each in story.missing)


async def test_one_that_the_engine_took_with_it_has_failed(
    recorded: Recorded, readings: list[AnyReading]
) -> None:
    live = next(row for row in recorded.rows(END_NS).values() if row.state.live)
    died = Note(
        source="engine-1", t_ns=END_NS - 5, kind=NoteKind.LOST, text="it was killed"
    )
    recorded.pipeline.take([died])
    recorded.readings = [*readings, died]

    story = await recorded.recall.request(live.key)

    assert story is not None
    assert story.row.reason == "lost"
    assert story.end_ns == died.t_ns


def test_memory_of_requests_stays_bounded(make_event: Any) -> None:
    recent = RecentReadings()

    for number in range(40_000):
        fields = {"ordinal": number, "external_id": f"{number}"}
        recent.take(make_event(number, EventKind.ADDED, f"r{number}", **fields))
        if number % 2:
            recent.take(make_event(number, EventKind.FINISHED, f"r{number}", **fields))

    held = recent.requests
    assert len(held._live) + len(held._events) < 26_000
    assert len(held._members) < 26_000
    assert recent.requests.of("engine-1/r39998")
    assert held.names("engine-1", [39_999], 10**18)


async def test_gpus_are_told_where_they_were_sampled(recorded: Recorded) -> None:
    row = max(recorded.rows(END_NS).values(), key=lambda each: each.e2el_s or 0)

    story = await recorded.recall.request(row.key)

    assert story is not None
    assert story.gpu
    assert {each[1:] for each in story.gpu} == {(None, 0.5, 1500.0)}


async def test_a_client_of_ours_adds_what_it_saw(
    recorded: Recorded, readings: list[AnyReading]
) -> None:
    record = next(each for each in readings if isinstance(each, RequestRecord))
    event = next(
        each
        for each in readings
        if isinstance(each, RequestEvent) and each.external_id == record.external_id
    )

    story = await recorded.recall.request(f"{event.source}/{event.request_id}")

    assert story is not None
    assert dict(story.client)[Cause.CLIENT] == pytest.approx(0.001)


async def test_who_no_longer_waits_leaves_the_file_alone(recorded: Recorded) -> None:
    recorded.remember(0)
    key = next(iter(recorded.rows(END_NS)))

    asked = asyncio.create_task(recorded.recall.request(key))
    await asyncio.sleep(0.001)
    asked.cancel()
    ended = await asyncio.gather(asked, return_exceptions=True)

    assert isinstance(ended[0], asyncio.CancelledError)
    assert await recorded.recall.request(key) is not None
    await asyncio.to_thread(recorded.recorder.close)
    assert [each.name for each in recorded.path.parent.glob("s.db*")] == ["s.db"]
