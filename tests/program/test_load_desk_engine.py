"""Load on real vLLM through the desk of a watch: the engine sees what is asked."""

import asyncio
import socket
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.clock import SessionClock
from collectors.contract.readings import (
    AnyReading,
    EventKind,
    LoadEvent,
    LoadKind,
    RequestEvent,
    RequestRecord,
)
from embedded_engine.engine.launch import Engine
from inferwatch.live.engine.demo import demo_load
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.engine_source import LiveEngine
from inferwatch.live.load import load_desk
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.writing.recorder import Recorder
from tests.conftest import living_in
from tests.program.conftest import adopted, until

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("shared engine")]

S = 1_000_000_000
LEFT = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def even_load(engine: LiveEngine, known: Snapshot) -> LoadPlan:
    """The demo's, without chance and bursts, so that it can be counted."""
    plan = demo_load(seed=1)(engine, known)
    return msgspec.structs.replace(
        plan,
        arrivals=Arrivals.CONSTANT,
        rate_per_s=2.0,
        warmup_s=0.0,
        burst_every_s=None,
        burst_tokens=0,
    )


def in_engine(watch: EngineSession) -> float:
    """Requests that are still in it, by its own count."""
    url = watch.present().endpoints[0].url
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in LEFT
    )


def live_ids(watch: EngineSession) -> list[str]:
    """Requests of which the watch has not heard an end."""
    rows = watch.snapshot(SnapshotQuery(Window.SESSION)).requests
    return [row.request_id for row in rows if row.state.live]


def asked_per_s(watch: EngineSession) -> float | None:
    """Once the steady part goes on."""
    client = watch.snapshot(
        SnapshotQuery(Window.SESSION, requests=False, client=True)
    ).client
    if client is None or not client.events:
        return None
    return client.rate_per_s if client.events[-1].kind is LoadKind.RATE else None


def sent(watch: EngineSession) -> int:
    client = watch.snapshot(
        SnapshotQuery(Window.SESSION, requests=False, client=True)
    ).client
    return client.run.sent if client and client.run else 0


async def sent_more(watch: EngineSession, count: int) -> None:
    enough = sent(watch) + count
    await until(lambda: sent(watch) >= enough, f"{enough} are sent")


@dataclass
class Story:
    """What was seen on the way, and the record."""

    began_ns: int = 0
    """What was before were others' requests."""
    in_flight: float = 0
    stopped_ns: int = 0
    asked_for: list[str | None] = field(default_factory=list)
    """Hosts to be named: while we load, after that, and after another's request."""
    readings: list[AnyReading] = field(default_factory=list)

    def of(self, kind: EventKind) -> list[RequestEvent]:
        events = [each for each in self.readings if isinstance(each, RequestEvent)]
        ours = [each for each in events if each.t_ns > self.began_ns]
        return [each for each in ours if each.kind is kind]

    def arrivals(self, begin_ns: float, end_ns: float = float("inf")) -> list[int]:
        """When requests reached the engine's front end, in a span."""
        times = [each.t_ns for each in self.of(EventKind.ARRIVED)]
        return [t_ns for t_ns in times if begin_ns < t_ns <= end_ns]

    def changes_ns(self) -> list[int]:
        events = [each for each in self.readings if isinstance(each, LoadEvent)]
        return [each.t_ns for each in events if ", was " in each.text]


async def ask_as_another(watch: EngineSession) -> None:
    endpoint = watch.present().endpoints[0]
    body = {"model": endpoint.model, "prompt": [300] * 8, "max_tokens": 4}
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{endpoint.url}/v1/completions", json=body)
    assert answer.status_code == 200


async def live_through(watch: EngineSession, story: Story) -> None:
    desk = watch.load_desk
    await until(lambda: asked_per_s(watch) is not None, "the load begins")
    for rate_per_s, count in ((4.0, 10), (16.0, 40)):
        await desk.change(rate_per_s=rate_per_s)
        await sent_more(watch, count)
    story.in_flight = in_engine(watch)
    story.asked_for.append(desk.must_name_host)
    await desk.stop()
    await until(lambda: not in_engine(watch), "none is in the engine")
    await until(lambda: watch.present().flow.running == 0, "none runs")
    await until(lambda: not live_ids(watch), "all ends are told")
    story.stopped_ns = watch.clock.now_ns()
    story.asked_for.append(desk.must_name_host)
    await ask_as_another(watch)
    await until(lambda: desk.must_name_host is not None, "it has another user")
    story.asked_for.append(desk.must_name_host)
    # The answer may overtake the readings.
    await until(lambda: not live_ids(watch), "the other's end is told")


@pytest.fixture(scope="module")
def story(
    shared_engine: Engine, shared_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Story:
    database, story = tmp_path_factory.mktemp("desk") / "sessions.db", Story()

    async def live() -> None:
        clock = SessionClock()
        story.began_ns = clock.now_ns()
        pipeline = Pipeline(Model(), Recorder.open(database, clock=clock))
        watched = adopted(shared_engine, even_load, clock=clock, pipeline=pipeline)
        async with watched as watch:
            await live_through(watch, story)
        async for batch in RecordedReadings(database, "last").batches():
            story.readings += batch

    with living_in(shared_home), pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_desk, "RECENT_NS", S)  # tests before us are others, too
        asyncio.run(live())
    return story


def per_s(times_ns: list[int]) -> float:
    """By the gap in the middle: a machine that freezes makes few of them long."""
    return S / median(after - before for before, after in pairwise(times_ns))


def test_the_engine_sees_each_change_of_the_rate(story: Story) -> None:
    first_ns, second_ns = story.changes_ns()

    slow = story.arrivals(first_ns, second_ns)
    fast = story.arrivals(second_ns, story.stopped_ns)
    assert per_s(slow) == pytest.approx(4, rel=0.25)
    assert per_s(fast) == pytest.approx(16, rel=0.25)


def test_the_stop_leaves_no_request_in_the_engine(story: Story) -> None:
    records = [each for each in story.readings if isinstance(each, RequestRecord)]
    arrived = {each.request_id for each in story.of(EventKind.ARRIVED)}
    finished = {each.request_id for each in story.of(EventKind.FINISHED)}

    assert story.in_flight > 0
    assert {each.failure for each in records} == {None, "aborted"}
    assert len(story.arrivals(story.stopped_ns)) == 1  # the other's
    assert arrived == finished


def test_only_the_requests_of_others_ask_for_the_hosts_name(story: Story) -> None:
    assert story.asked_for == [None, None, socket.gethostname()]
