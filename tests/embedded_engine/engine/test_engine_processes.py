"""Whoever belongs to an engine is found, watched and ended."""

import asyncio
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from collectors.contract.liveness import BIRTH
from embedded_engine.engine.engine_processes import (
    GRACE_S,
    DeathWatch,
    EngineProcess,
    EngineProcesses,
    ProcessDeath,
    command_line,
    first_death,
)

pytestmark = pytest.mark.process

Start = Callable[[str], EngineProcesses]
CORE = "bash -c 'exec -a VLLM::EngineCore sleep 60'"
WORKER = "bash -c 'exec -a VLLM::Worker_TP0 sleep 60'"
DEADLINE_S = 60.0


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a shell script in a session of its own, as the root of a family."""
    with ExitStack() as ending:

        def run(script: str) -> EngineProcesses:
            root = subprocess.Popen(["bash", "-c", script], start_new_session=True)
            ending.enter_context(root)
            ending.callback(root.kill)
            family = EngineProcesses(EngineProcess(root.pid, born(root.pid)))
            ending.callback(kill, family)
            return family

        yield run


def born(pid: int) -> int:
    """A child's birth, even if it ended before we looked."""
    stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    return int(stat.rpartition(")")[2].split()[BIRTH])


def kill(family: EngineProcesses) -> None:
    for member in family.members():
        member.signal(signal.SIGKILL)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def named(family: EngineProcesses, text: str) -> list[EngineProcess]:
    return [m for m in family.members() if command_line(m.pid).startswith(text)]


async def test_roles_come_from_the_titles_that_vllm_gives(start: Start) -> None:
    family = start(f"{CORE} & {WORKER} & sleep 61 & wait")
    await until(lambda: len(family.roles()) == 3)

    roles = sorted(family.roles().values())

    assert roles == ["api", "core", "worker"]
    assert family.roles()[family.root] == "api"


async def test_who_lost_the_parent_still_belongs(start: Start) -> None:
    family = start("(sleep 60 &) ; sleep 61")

    await until(lambda: named(family, "sleep 60"))


async def test_who_left_the_session_still_belongs(start: Start) -> None:
    family = start("setsid sleep 60 & sleep 61")

    await until(lambda: named(family, "sleep 60"))


async def test_who_was_seen_belongs_even_without_session_and_parent(
    start: Start,
) -> None:
    family = start("setsid sleep 60 & sleep 61")
    await until(lambda: named(family, "sleep 60"))

    family.root.signal(signal.SIGKILL)
    await until(lambda: not family.root.alive)

    assert named(family, "sleep 60")


async def test_a_session_whose_number_came_again_is_not_ours(start: Start) -> None:
    stranger = start("(sleep 60 &) ; sleep 61")
    await until(lambda: named(stranger, "sleep 60"))
    ended = EngineProcesses(EngineProcess(stranger.root.pid, stranger.root.birth - 1))

    await ended.end()

    assert ended.members() == set()
    assert stranger.root.alive
    assert named(stranger, "sleep 60")


async def test_a_session_is_ours_while_somebody_known_is_in_it(start: Start) -> None:
    family = start("(sleep 60 &) ; sleep 61")
    await until(lambda: named(family, "sleep 60"))
    known = EngineProcesses(EngineProcess(family.root.pid, family.root.birth - 1))
    known._seen |= set(named(family, "sleep 60"))

    assert named(known, "sleep 61")


async def test_who_lost_a_parent_that_is_not_buried_yet_still_belongs(
    start: Start,
) -> None:
    family = start("(sleep 60 &) ; exit 0")
    root = family.root
    await until(lambda: not root.alive)

    await until(lambda: named(EngineProcesses(root), "sleep 60"))


async def test_the_end_is_the_end_of_all_even_of_who_will_not_hear(
    start: Start,
) -> None:
    family = start("trap '' TERM; setsid sleep 60 & sleep 61; sleep 62")
    await until(lambda: named(family, "sleep 60"))
    began_s = time.monotonic()

    await family.end()

    assert family.members() == set()
    assert GRACE_S < time.monotonic() - began_s < 5


async def test_who_hears_ends_at_once(start: Start) -> None:
    family = start("exec sleep 60")
    await until(lambda: named(family, "sleep 60"))
    began_s = time.monotonic()

    await family.end()

    assert time.monotonic() - began_s < GRACE_S


@pytest.mark.parametrize("role", ["core", "worker", "api"])
async def test_whoever_is_killed_is_named_at_once(start: Start, role: str) -> None:
    family = start(f"{CORE} & {WORKER} & wait")
    await until(lambda: len(family.roles()) == 3)
    (killed,) = [who for who, name in family.roles().items() if name == role]
    watching = asyncio.create_task(first_death(family))
    await asyncio.sleep(0)  # it watches now
    began_s = time.monotonic()

    killed.signal(signal.SIGKILL)
    death = await asyncio.wait_for(watching, DEADLINE_S)

    assert time.monotonic() - began_s < 0.5
    assert (death.role, death.pid) == (role, killed.pid)
    assert death.status in {-signal.SIGKILL, None}  # an old kernel may not tell


async def test_the_exit_status_of_our_own_child_is_known(start: Start) -> None:
    family = start("exit 3")

    death = await asyncio.wait_for(first_death(family), DEADLINE_S)

    assert death == ProcessDeath("api", family.root.pid, 3)


async def test_a_helpers_end_is_no_death(start: Start) -> None:
    family = start("sleep 0.05 & exec sleep 60")

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(first_death(family), 0.5)


async def test_watching_leaves_no_descriptor_open(start: Start) -> None:
    family = start("exec sleep 60")
    before = open_descriptors()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(first_death(family), 0.05)

    assert open_descriptors() == before


async def test_a_core_and_each_worker_compute_and_the_api_server_does_not(
    start: Start,
) -> None:
    family = start(f"{CORE} & {WORKER} & {WORKER} & wait")

    await until(lambda: len(family.roles()) == 4)

    assert family.computing() == 3


async def test_who_cannot_be_watched_for_want_of_a_descriptor_is_not_called_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    watch = DeathWatch()
    watch.add(EngineProcess(os.getpid(), born(os.getpid())), "api")

    assert not watch.died.done()
