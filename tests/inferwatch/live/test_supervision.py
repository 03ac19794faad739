"""A fault of one collector is told, and neither it nor the others stop for it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from collectors.contract.clock import SessionClock
from collectors.contract.collector import CollectorError, TappedCollector, name_of
from collectors.contract.readings import AnyReading, NoteKind, Tick
from collectors.http.server import Server
from collectors.load.load_relay import LoadNotice
from collectors.servers.scrape import ServerScraper
from inferwatch import faults
from inferwatch.live import supervision
from inferwatch.live.attached.agent import Agent
from inferwatch.live.live_session import LiveSession
from inferwatch.live.load import elsewhere_loads
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.writing.recorder import Recorder


class BadSource:
    """Tells one reading each time it is asked, then fails as long as it should."""

    def __init__(self, *faults_to_come: Exception) -> None:
        self._faults = list(faults_to_come)
        self.lives = 0

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        self.lives += 1
        yield [Tick(t_ns=self.lives)]
        if self._faults:
            raise self._faults.pop(0)
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing is held."""


class GoodSource(BadSource):
    """Never fails."""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where reports of faults are kept; nobody waits for the next try."""
    monkeypatch.delenv(faults.SWITCH)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.0)
    return tmp_path


async def watched(session: LiveSession, until: Callable[[], bool]) -> None:
    """Collect for so long."""
    async with session.recorded():
        collecting = asyncio.create_task(session.collect())
        async with asyncio.timeout(10):
            while not until() and not collecting.done():  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.01)
        assert not collecting.done()
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


def told(session: LiveSession) -> list[str]:
    return [n.text for n in session.pipeline.notes if n.kind is NoteKind.PROBE]


async def test_a_fault_of_one_collector_is_noted_and_ends_nothing(
    record: Callable[[], Recorder], path: Path, state: Path
) -> None:
    session = LiveSession(SessionClock(), Pipeline(Model(), record()))
    bad, good = BadSource(ValueError("a long number")), GoodSource()
    session.collectors = [bad, good]

    await watched(session, lambda: bad.lives == 2)

    (note,) = told(session)
    assert note.startswith("bad source: a fault in inferwatch: ValueError: a long")
    (report,) = state.rglob("fault-*.txt")
    assert str(report) in note
    assert "Traceback" in report.read_text()
    assert good.lives == 1
    (row,) = list_sessions(path)
    assert row.state is SessionState.COMPLETE


async def test_a_fault_that_comes_again_is_told_once() -> None:
    session = LiveSession(SessionClock(), Pipeline(Model()))
    bad = BadSource(*[ValueError(f"no {number}") for number in range(3)])
    session.collectors = [bad]

    await watched(session, lambda: bad.lives == 4)

    assert len(told(session)) == 1


async def test_what_cannot_be_taken_ends_neither_its_collector_nor_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = LiveSession(SessionClock(), Pipeline(Model()))
    good, taken = GoodSource(), session.pipeline.take
    session.collectors = [good]

    def take(readings: Sequence[AnyReading]) -> None:
        if readings == [Tick(t_ns=1)]:
            raise OverflowError("too large")
        taken(readings)

    monkeypatch.setattr(session.pipeline, "take", take)
    await watched(session, lambda: bool(told(session)))

    assert "good source: a fault in inferwatch: OverflowError" in told(session)[0]
    assert good.lives == 1


async def test_a_source_that_fails_is_no_fault_of_ours(state: Path) -> None:
    session = LiveSession(SessionClock(), Pipeline(Model()))
    bad = BadSource(CollectorError("nobody is there"))
    session.collectors = [bad]

    await watched(session, lambda: bool(told(session)))

    assert told(session) == ["nobody is there"]
    assert not list(state.rglob("fault-*.txt"))
    assert bad.lives == 1


async def test_an_agent_outlives_a_fault_and_says_it(tmp_path: Path) -> None:
    said: list[str] = []
    agent = Agent("gpu1", tmp_path / "a.sock", said.append)
    bad, good = BadSource(ValueError("a long number")), GoodSource()
    agent._collectors = [bad, good]
    agent.open()
    running = asyncio.create_task(agent.run())

    async with asyncio.timeout(10):
        while bad.lives < 2 and not running.done():  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.01)

    assert not running.done()
    assert "bad source: a fault in inferwatch: ValueError" in said[0]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_load_elsewhere_that_cannot_be_followed_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(url="http://gpu1:8000")
    odd = LoadNotice(run_id="odd", pid=1, url="http://[", uds=None, plan="")
    deaf = replace(odd, run_id="deaf", url=server.url)
    too_long = Path("/", "x" * 200)
    monkeypatch.setattr(LoadNotice, "relay", too_long)
    monkeypatch.setattr(elsewhere_loads, "notices", lambda: [odd, deaf])
    session = LiveSession(SessionClock(), Pipeline(Model()))
    loads = elsewhere_loads.ExternalLoadWatcher(session, lambda: [server])
    following = asyncio.create_task(loads.run())

    async with asyncio.timeout(10):
        while not told(session) and not following.done():  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.01)

    assert not following.done()
    assert told(session)[0].startswith("load deaf cannot be followed")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def test_a_collector_is_called_by_what_it_is_and_of_which_server() -> None:
    server = Server(url="http://gpu1:8000", name="gpu1")
    scraper = TappedCollector(ServerScraper(SessionClock(), server), lambda _: None)

    assert name_of(scraper) == "server scraper of gpu1"
