"""A load run is passed on to whoever else watches the engine, and disturbs nobody."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from collectors.clock import SessionClock
from collectors.load_relay import LoadNotice, LoadRelay, RelayedLoad, notices
from collectors.readings import AnyReading, LoadEvent, LoadKind, Note, NoteKind
from collectors.wire import Sender

START_NS = 1_000


def event(t_ns: int, kind: LoadKind = LoadKind.RATE) -> LoadEvent:
    return LoadEvent(t_ns=t_ns, kind=kind, rate_per_s=3.5)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def notice(directory: Path) -> LoadNotice:
    """Of somebody else, who lives."""
    return LoadNotice(
        run_id="load-1",
        pid=os.getppid(),
        url="http://localhost:8000",
        uds=None,
        plan="{}",
        address=f"ipc://{directory}/load-1.relay",
    )


@pytest.fixture
def relay(notice: LoadNotice) -> Iterator[LoadRelay]:
    made = LoadRelay(notice)
    yield made
    made.close()


async def heard(
    relay: LoadRelay, load: RelayedLoad, sender: Sender
) -> list[AnyReading]:
    """What a listener gets until the end; to be heard at all takes it a moment."""
    got: list[AnyReading] = []

    async def listen() -> None:
        async for batch in load.batches():
            got.extend(batch)

    listening = asyncio.create_task(listen())
    async with asyncio.timeout(30):
        while not got:
            relay.send(sender.pack([event(START_NS + 5)]))
            await asyncio.sleep(0.01)
        relay.send(sender.pack([event(START_NS + 9, LoadKind.STOPPED)]))
        await listening
    return got


async def test_readings_come_in_session_time_until_the_run_ends(
    relay: LoadRelay, notice: LoadNotice
) -> None:
    load = RelayedLoad(SessionClock(START_NS), notice)

    got = await heard(relay, load, Sender("whoever"))

    events = [each for each in got if isinstance(each, LoadEvent)]
    assert {each.source for each in events} == {"load-1"}
    assert events[0].t_ns == 5
    assert events[-1].kind is LoadKind.STOPPED


async def test_what_was_missed_is_counted(relay: LoadRelay, notice: LoadNotice) -> None:
    sender = Sender("whoever")
    for _ in range(7):
        sender.pack([event(START_NS)])  # before anybody listened

    got = await heard(relay, RelayedLoad(SessionClock(START_NS), notice), sender)

    notes = [each for each in got if isinstance(each, Note)]
    assert {each.kind for each in notes} == {NoteKind.DROPPED}
    assert sum(each.count or 0 for each in notes) >= 7


def test_a_relay_that_nobody_hears_never_waits(relay: LoadRelay) -> None:
    message = Sender("whoever").pack([event(START_NS)] * 50)

    for _ in range(5_000):
        relay.send(message)


def test_notice_is_given_of_runs_of_others_while_they_last(
    directory: Path, relay: LoadRelay, notice: LoadNotice
) -> None:
    ours = LoadRelay.of("load-2", "http://localhost", None, "{}")
    assert ours is not None

    assert notices() == [notice]
    assert len(list(directory.glob("*.notice"))) == 2

    ours.close()
    relay.close()
    assert list(directory.glob("*")) == []


def test_what_the_dead_left_behind_is_removed(
    directory: Path, notice: LoadNotice, relay: LoadRelay
) -> None:
    dead = msgspec.structs.replace(notice, run_id="gone", pid=2**22 + 1)
    left = directory / "gone.notice"
    left.write_bytes(msgspec.json.encode(dead))

    assert notices() == [notice]
    assert not left.exists()
