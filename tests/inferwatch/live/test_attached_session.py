"""Servers that run already are watched: asked for ever, named, never ended."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from collectors.contract.clock import SessionClock
from collectors.contract.collector import Collector
from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineInfo,
    EngineSample,
    NoteKind,
    ServerInfo,
)
from collectors.http.server import Server
from collectors.probe.server_probe import ServerProbe
from collectors.servers.kv_events import KvEventStream
from collectors.servers.otlp import SpanReceiver
from collectors.servers.scrape import ServerScraper
from collectors.servers.server_steps import StepStream
from inferwatch.feed import FeedState
from inferwatch.live.attached.attached_session import (
    AttachedSession,
    collectors_of,
    receivers_of,
)
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery

SERVERS = [Server(url="http://one:8000"), Server(url="http://two:8000")]


class Told:
    """A collector that reports what it is told to."""

    def __init__(self) -> None:
        self._readings: asyncio.Queue[AnyReading] = asyncio.Queue()
        self.closed = False

    def tell(self, reading: AnyReading) -> None:
        self._readings.put_nowait(reading)

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        while True:
            yield [await self._readings.get()]

    async def close(self) -> None:
        self.closed = True


class LateProbe(ServerProbe):
    """One that tells nothing until the test has it tell."""

    def __init__(self, clock: SessionClock, server: Server, told: Told) -> None:
        super().__init__(clock, server)
        self._by_test = told

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        async for batch in self._by_test.batches():
            self.is_awaited = False
            yield batch


class Attached:
    """A session over two servers that say what the test has them say."""

    def __init__(self) -> None:
        self.told = {server.source: Told() for server in SERVERS}
        self.probe = Told()
        self.watch = AttachedSession(
            SessionClock(), Pipeline(Model()), SERVERS, (), self._collect
        )

    def _collect(self, clock: SessionClock, server: Server) -> list[Collector]:
        probes: list[Collector] = []
        if server is SERVERS[0]:
            probes = [LateProbe(clock, server, self.probe)]
        return [self.told[server.source], *probes]

    async def contact(
        self,
        source: str,
        *,
        answers: bool,
        why: str | None = None,
        restarted: bool = False,
    ) -> None:
        reading = Contact(
            t_ns=self.watch.clock.now_ns(),
            source=source,
            answers=answers,
            why=why,
            restarted=restarted,
        )
        await self.tell(source, reading)

    async def tell(self, source: str, reading: AnyReading) -> None:
        """It is folded when this returns."""
        self.told[source].tell(reading)
        for _ in range(5):
            await asyncio.sleep(0)

    def state(self) -> FeedState:
        return self.watch.state

    def notes(self, kind: NoteKind) -> list[str]:
        found = self.watch.snapshot(SnapshotQuery(Window.MINUTE)).notes
        return [note.text for note in found if note.kind is kind]


@asynccontextmanager
async def attached() -> AsyncIterator[Attached]:
    session = Attached()
    going = asyncio.create_task(session.watch.run())
    await asyncio.sleep(0)
    try:
        yield session
    finally:
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)


async def test_rates_are_known_once_all_were_read_twice_and_a_probe_has_told() -> None:
    async with attached() as session:
        for t_ns in (1, 2):
            for server in SERVERS:
                await session.tell(
                    server.source, EngineSample(t_ns=t_ns, source=server.source)
                )
        assert not session.watch.settled.is_set()

        session.probe.tell(EngineInfo(t_ns=3, pid=1, model="m", vllm_version="0.32.0"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert session.watch.settled.is_set()


async def test_the_dashboard_opens_at_once_and_says_who_is_asked() -> None:
    async with attached() as session:
        assert session.state() is FeedState.LIVE
        assert session.notes(NoteKind.STAGE) == ["asking one:8000", "asking two:8000"]


async def test_time_counts_from_the_first_answer() -> None:
    async with attached() as session:
        assert not session.watch.begun.is_set()

        await session.contact("one:8000", answers=True)

        assert session.watch.begun.is_set()


async def test_it_is_lost_once_all_of_them_have_failed() -> None:
    async with attached() as session:
        await session.contact("one:8000", answers=False, why="refused")
        assert session.state() is FeedState.LIVE
        assert session.watch.begun.is_set()

        await session.contact("two:8000", answers=False, why="time-out")

        assert session.state() is FeedState.LOST
        assert not session.watch.lost.is_set(), "they are asked again, for ever"
        assert session.notes(NoteKind.LOST) == ["two:8000 does not answer: time-out"]


async def test_it_is_live_while_any_of_them_answers() -> None:
    async with attached() as session:
        await session.contact("one:8000", answers=True)
        await session.contact("two:8000", answers=True)
        await session.contact("one:8000", answers=False, why="reset by peer")

        assert session.state() is FeedState.LIVE
        assert session.watch.failure is None
        assert session.notes(NoteKind.LOST) == []
        assert session.notes(NoteKind.STOPPED) == [
            "one:8000 does not answer: reset by peer"
        ]


async def test_a_lost_server_that_answers_again_is_live_again() -> None:
    async with attached() as session:
        await session.contact("one:8000", answers=True)
        await session.contact("two:8000", answers=False, why="refused")
        await session.contact("one:8000", answers=False, why="time-out")
        assert session.watch.failure == "one:8000: time-out; two:8000: refused"
        assert session.watch.came_up

        await session.contact("one:8000", answers=True, restarted=True)

        assert session.state() is FeedState.LIVE
        assert session.watch.failure is None
        assert session.notes(NoteKind.RESTARTED) == [
            "one:8000 was restarted: its counters began anew"
        ]


async def test_who_never_answered_is_named() -> None:
    async with attached() as session:
        assert session.watch.failure == "no answer came from one:8000, two:8000"


async def test_leaving_ends_its_own_collectors_and_nothing_else() -> None:
    async with attached() as session:
        assert session.watch.runs_on
        assert session.watch.served
        assert not session.watch.can_restart

    assert all(told.closed for told in session.told.values())
    assert session.state() is FeedState.ENDED


def test_servers_of_this_host_are_heard_without_being_asked() -> None:
    clock = SessionClock()
    here, afar = Server(url="localhost:8000"), Server(url="gpu7:8000")
    kinds = [type(each) for each in collectors_of(clock, here)]
    assert kinds == [ServerProbe, ServerScraper, KvEventStream, StepStream]
    assert [type(each) for each in receivers_of(clock, [here, afar])] == [SpanReceiver]
    assert not receivers_of(clock, [afar])


def test_events_of_a_prefix_cache_can_be_left_alone() -> None:
    found = collectors_of(SessionClock(), SERVERS[0], kv_events=False)
    assert not [each for each in found if isinstance(each, KvEventStream)]


def info(source: str, *models: str) -> ServerInfo:
    return ServerInfo(
        t_ns=0, source=source, name=source, family="vllm", models=list(models)
    )


async def test_load_goes_to_the_server_that_is_looked_at_and_asks_for_its_host() -> (
    None
):
    async with attached() as session:
        desk = session.watch.load_desk
        await session.contact("one:8000", answers=True)
        await session.contact("two:8000", answers=False, why="refused")
        await session.tell("one:8000", info("one:8000", "chat", "draft"))
        assert "open one first" in str(desk.unavailable)

        session.watch.snapshot(SnapshotQuery(Window.MINUTE, source="one:8000"))
        assert desk.unavailable is None
        assert desk.must_name_host == "one"
        assert (desk.plan.url, desk.plan.model) == ("http://one:8000", "chat")

        session.watch.snapshot(SnapshotQuery(Window.MINUTE, source="two:8000"))
        assert desk.unavailable == "two:8000 does not answer"
