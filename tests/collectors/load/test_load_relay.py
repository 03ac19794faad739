"""A load run is passed on to whoever else watches the engine, and disturbs nobody."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.plain_file import write_plain
from collectors.contract.readings import AnyReading, LoadEvent, LoadKind, Note, NoteKind
from collectors.contract.wire import EnvelopePacker
from collectors.load.load_relay import LoadNotice, LoadRelay, RelayedLoad, notices

START_NS = 1_000
DEAD = 2**22 + 1
"""No process has it."""


def give(directory: Path, notice: LoadNotice) -> Path:
    """The notice's file alone, as whoever has died leaves it."""
    path = directory / notice.file
    write_plain(path, msgspec.json.encode(notice))
    return path


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
    )


@pytest.fixture
def relay(notice: LoadNotice) -> Iterator[LoadRelay]:
    made = LoadRelay(notice)
    yield made
    made.close()


async def heard(
    relay: LoadRelay, load: RelayedLoad, sender: EnvelopePacker
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

    got = await heard(relay, load, EnvelopePacker("whoever"))

    events = [each for each in got if isinstance(each, LoadEvent)]
    assert {each.source for each in events} == {"load-1"}
    assert events[0].t_ns == 5
    assert events[-1].kind is LoadKind.STOPPED


async def test_what_was_missed_is_counted(relay: LoadRelay, notice: LoadNotice) -> None:
    sender = EnvelopePacker("whoever")
    for _ in range(7):
        sender.pack([event(START_NS)])  # before anybody listened

    got = await heard(relay, RelayedLoad(SessionClock(START_NS), notice), sender)

    notes = [each for each in got if isinstance(each, Note)]
    assert {each.kind for each in notes} == {NoteKind.DROPPED}
    assert sum(each.count or 0 for each in notes) >= 7


def test_a_relay_that_nobody_hears_never_waits(relay: LoadRelay) -> None:
    message = EnvelopePacker("whoever").pack([event(START_NS)] * 50)

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
    dead = msgspec.structs.replace(notice, run_id="gone", pid=DEAD)
    left = give(directory, dead)
    dead.relay.touch()  # no socket, so whose it is cannot be told: all of it stays
    assert notices() == [notice]
    assert left.exists()

    dead.relay.unlink()
    with closing(socket.socket(socket.AF_UNIX)) as unheard:
        unheard.bind(str(dead.relay))
    assert notices() == [notice]
    assert not left.exists()
    assert not dead.relay.exists()


def test_a_relay_of_a_process_that_cannot_be_seen_is_left_alone(
    directory: Path, notice: LoadNotice
) -> None:
    away = msgspec.structs.replace(notice, pid=DEAD)  # as one in a container
    path = give(directory, away)
    with closing(socket.socket(socket.AF_UNIX)) as relay:
        relay.bind(str(away.relay))
        relay.listen()

        assert notices() == []
        assert path.exists()
        assert away.relay.exists()


def test_a_notice_names_nothing_outside_its_directory(
    directory: Path, notice: LoadNotice, tmp_path_factory: pytest.TempPathFactory
) -> None:
    another = tmp_path_factory.mktemp("another") / "precious"
    another.touch()
    told = {**msgspec.to_builtins(notice), "pid": DEAD, "address": f"ipc://{another}"}
    climbs = msgspec.structs.replace(notice, run_id=f"../{another.parent.name}/x")
    (directory / f"load-1.{DEAD}.notice").write_bytes(msgspec.json.encode(told))
    renamed = directory / f"else.{os.getppid()}.notice"
    renamed.write_bytes(msgspec.json.encode(climbs))

    assert notices() == []
    assert another.exists()


def test_a_pipe_or_a_link_that_is_called_a_notice_holds_nobody_up(
    directory: Path, notice: LoadNotice, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pid = notice.pid
    os.mkfifo(directory / f"pipe.{pid}.notice", 0o600)
    behind = give(tmp_path_factory.mktemp("another"), notice)
    (directory / notice.file).symlink_to(behind)

    assert notices() == []


def test_a_notice_that_others_may_write_to_is_not_believed(
    directory: Path, notice: LoadNotice
) -> None:
    give(directory, notice).chmod(0o620)

    assert notices() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_notice_of_another_user_is_not_believed(
    directory: Path, notice: LoadNotice
) -> None:
    os.chown(give(directory, notice), 12_345, 12_345)

    assert notices() == []


def test_what_cannot_be_removed_stays_and_is_no_fault(
    directory: Path, notice: LoadNotice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **_more: object) -> None:
        raise PermissionError

    give(directory, msgspec.structs.replace(notice, pid=DEAD))
    monkeypatch.setattr(Path, "unlink", refuse)

    assert notices() == []


def test_giving_notice_writes_through_no_link(
    directory: Path, notice: LoadNotice, tmp_path_factory: pytest.TempPathFactory
) -> None:
    another = tmp_path_factory.mktemp("another") / "precious"
    another.write_text("theirs")
    for name in (notice.file, f"{notice.file.removesuffix('notice')}new"):
        (directory / name).symlink_to(another)

    LoadRelay(notice).close()

    assert another.read_text() == "theirs"
