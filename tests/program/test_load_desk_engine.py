"""Load on real vLLM through the desk of a watch: the engine sees what is asked."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.clock import SessionClock
from collectors.readings import (
    AnyReading,
    EventKind,
    LoadEvent,
    LoadKind,
    RequestEvent,
    RequestRecord,
)
from embedded_engine.config import demo_config
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.metrics.model import Model
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.session.demo import demo_load
from inferwatch.session.engine_session import EngineSession
from inferwatch.session.engine_source import LiveEngine, StartedEngine
from inferwatch.session.pipeline import Pipeline
from inferwatch.storage.recorded_readings import RecordedReadings
from inferwatch.storage.recording.recorder import Recorder

pytestmark = [pytest.mark.engine, pytest.mark.timing]

S = 1_000_000_000
LEFT = ("vllm:num_requests_running", "vllm:num_requests_waiting")


async def until(holds: Callable[[], bool], seconds: float = 90) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - another process tells nothing
            await asyncio.sleep(0.05)


def even_load(engine: LiveEngine, known: Snapshot) -> LoadPlan:
    """The demo's, without chance and bursts, so that it can be counted."""
    plan = demo_load(seed=1)(engine, known)
    return msgspec.structs.replace(
        plan, arrivals=Arrivals.CONSTANT, burst_every_s=None, burst_tokens=0
    )


@asynccontextmanager
async def watched(database: Path) -> AsyncIterator[EngineSession]:
    """As if others might use the engine, too; it is ended with the watch."""
    clock = SessionClock()
    pipeline = Pipeline(Model(), Recorder.open(database, clock=clock))
    source = StartedEngine(configure=demo_config, served=True)
    watch = EngineSession(clock, pipeline, source, even_load)
    watching = asyncio.create_task(watch.run())
    try:
        await asyncio.wait_for(watch.live.wait(), 90)
        yield watch
    finally:
        await watch.stop_engine()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


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
    rows = watch.snapshot(Window.SESSION).requests
    return [row.request_id for row in rows if row.state.live]


def asked_per_s(watch: EngineSession) -> float | None:
    """Once the steady part goes on."""
    client = watch.snapshot(Window.SESSION, requests=False, client=True).client
    if client is None or not client.events:
        return None
    return client.rate_per_s if client.events[-1].kind is LoadKind.RATE else None


def sent(watch: EngineSession) -> int:
    client = watch.snapshot(Window.SESSION, requests=False, client=True).client
    return client.run.sent if client and client.run else 0


async def sent_more(watch: EngineSession, count: int) -> None:
    enough = sent(watch) + count
    await until(lambda: sent(watch) >= enough)


@dataclass
class Story:
    """What was seen on the way, and the record."""

    in_flight: float = 0
    stopped_ns: int = 0
    asked_for: list[str | None] = field(default_factory=list)
    """Hosts to be named: while we load, after that, and after another's request."""
    readings: list[AnyReading] = field(default_factory=list)

    def of(self, kind: EventKind) -> list[RequestEvent]:
        events = [each for each in self.readings if isinstance(each, RequestEvent)]
        return [each for each in events if each.kind is kind]

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
    await until(lambda: asked_per_s(watch) is not None)
    for rate_per_s, count in ((4.0, 16), (16.0, 64)):
        await desk.change(rate_per_s=rate_per_s)
        await sent_more(watch, count)
    story.in_flight = in_engine(watch)
    story.asked_for.append(desk.must_name_host)
    await desk.stop()
    await until(lambda: not in_engine(watch))
    await until(lambda: watch.present().flow.running == 0)
    await until(lambda: not live_ids(watch))
    story.stopped_ns = watch.clock.now_ns()
    story.asked_for.append(desk.must_name_host)
    await ask_as_another(watch)
    await until(lambda: desk.must_name_host is not None)
    story.asked_for.append(desk.must_name_host)
    await until(lambda: not live_ids(watch))  # the answer may overtake the readings


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    home, story = tmp_path_factory.mktemp("desk"), Story()

    async def live() -> None:
        async with watched(home / "sessions.db") as watch:
            await live_through(watch, story)
        async for batch in RecordedReadings(home / "sessions.db", "last").batches():
            story.readings += batch

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("INFERWATCH_RUNTIME_DIR", str(home / "run"))
        environment.setenv("XDG_STATE_HOME", str(home / "state"))
        asyncio.run(live())
    return story


def per_s(times_ns: list[int]) -> float:
    """By the gap in the middle: a machine that freezes makes few of them long."""
    return S / median(after - before for before, after in pairwise(times_ns))


def test_the_engine_sees_each_change_of_the_rate(story: Story) -> None:
    first_ns, second_ns = story.changes_ns()

    slow = story.arrivals(first_ns, second_ns)
    fast = story.arrivals(second_ns, story.stopped_ns)
    assert per_s(slow) == pytest.approx(4, rel=0.1)
    assert per_s(fast) == pytest.approx(16, rel=0.1)


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
