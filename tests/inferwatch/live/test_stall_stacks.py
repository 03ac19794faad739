"""Stacks are taken once in a stall, at most once a minute, and from logs later on."""

import asyncio
from collections.abc import Sequence
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any, cast

import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import (
    AnyReading,
    Note,
    NoteKind,
    Stacks,
    StackSource,
    ThreadStack,
)
from inferwatch.live import stall_stacks
from inferwatch.live.live_session import LiveSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.stall_stacks import StallStacks
from inferwatch.metrics.model.model import Model

S = 1_000_000_000


class Scripted(Pipeline):
    """A pipeline in which engines stall as a test says."""

    def __init__(self, heard: list[AnyReading]) -> None:
        super().__init__(Model(), listener=heard.append)
        self.stuck: dict[str, int] = {}

    def stalls(self, now_ns: int) -> dict[str, int]:
        del now_ns
        return self.stuck


class Scene:
    """A session at a moment of its own, and what its processes are made to say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard: list[AnyReading] = []
        self.now_s = 0.0
        self.frames: list[str] = ["f (a.py:1)"]
        self.pipeline = Scripted(self.heard)
        session = LiveSession(SessionClock(), self.pipeline)
        monkeypatch.setattr(session, "now_ns", lambda: round(self.now_s * S))
        monkeypatch.setattr(stall_stacks, "take_stacks", self._read)
        self.searched: list[str] = []
        self.stacks = StallStacks(
            session,
            lambda source: [] if source == "elsewhere" else [(7, "api"), (8, "core")],
            self._log_tail,
        )

    def _log_tail(self, source: str, lines: int) -> Sequence[str]:
        del lines
        self.searched.append(source)
        return ()

    def _read(self, pid: int, process: str, stalled_ns: int) -> Stacks:
        threads = [ThreadStack(name="MainThread", frames=self.frames)]
        return Stacks(
            t_ns=stalled_ns,
            pid=pid,
            process=process,
            stalled_ns=stalled_ns,
            threads=threads if self.frames else [],
        )

    async def look(self, now_s: float, **stuck: int) -> int:
        """Returns how many processes have been read by then."""
        self.now_s, self.pipeline.stuck = now_s, stuck
        await self.stacks._look()
        return len(self.taken)

    @property
    def taken(self) -> list[Stacks]:
        return [each for each in self.heard if isinstance(each, Stacks)]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.delenv("INFERWATCH_STACKS", raising=False)
    return Scene(monkeypatch)


async def test_stacks_are_taken_once_in_a_stall(scene: Scene) -> None:
    assert await scene.look(1) == 0
    assert await scene.look(3, here=5) == 2
    assert await scene.look(300, here=5) == 2

    assert [each.process for each in scene.taken] == ["EngineCore", "API server"]
    assert {(each.source, each.stalled_ns) for each in scene.taken} == {("here", 5)}
    (note,) = (cast("Any", each) for each in scene.heard if isinstance(each, Note))
    assert note.kind is NoteKind.STACKS
    assert note.text == "stalled: EngineCore is in f (a.py:1)"


async def test_a_stall_that_flaps_is_read_once_a_minute(scene: Scene) -> None:
    counts = [await scene.look(at_s, here=at_s) for at_s in range(10, 100, 5)]

    assert counts == [2] * 12 + [4] * 6


async def test_engines_elsewhere_are_left_alone(scene: Scene) -> None:
    assert await scene.look(3, elsewhere=5) == 0
    assert scene.heard == []


async def test_what_the_watchdog_wrote_is_taken_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.frames = []
    dump = [ThreadStack(name="MainThread", frames=["g (b.py:2)"])]
    monkeypatch.setattr(
        stall_stacks, "watchdog_threads", lambda _, pid: dump if pid == 8 else []
    )

    assert await scene.look(3, here=5) == 2
    assert not any(isinstance(each, Note) for each in scene.heard)
    assert await scene.look(14, here=5) == 3
    assert await scene.look(40, here=5) == 3  # the other one has none

    assert scene.taken[-1].taken_by is StackSource.WATCHDOG


async def test_a_log_is_searched_only_for_what_was_not_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.look(3, here=5)
    await scene.look(14, here=5)
    assert scene.searched == []

    scene.frames = []
    dump = [ThreadStack(name="MainThread", frames=["g (b.py:2)"])]
    monkeypatch.setattr(stall_stacks, "watchdog_threads", lambda *_: dump)
    await scene.look(70, here=6)
    await scene.look(81, here=6)
    await scene.look(92, here=6)
    assert scene.searched == ["here"]


async def test_the_logs_of_all_engines_are_searched(scene: Scene) -> None:
    scene.frames = []
    for now_s in (3, 14, 25):
        await scene.look(now_s, here=5, there=6)

    assert scene.searched == ["here", "there"] * 2


async def test_who_leaves_waits_for_no_process_that_is_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, may_end = asyncio.Event(), Event()
    loop = asyncio.get_running_loop()

    def hang(*_: object) -> None:
        loop.call_soon_threadsafe(reads.set)
        may_end.wait(20)

    monkeypatch.setattr(stall_stacks, "take_stacks", hang)
    ended = []
    monkeypatch.setattr(stall_stacks, "end_running", lambda: ended.append(1))
    scene.pipeline.stuck = {"here": 5}
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(scene.stacks.run())
        await reads.wait()
        task.cancel()

    mine = [each for each in enumerate_threads() if each.name == "stacks"]
    may_end.set()
    assert ended == [1]
    assert mine
    assert all(each.daemon for each in mine)


async def test_it_can_be_switched_off(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.stacks.is_on = False
    async with asyncio.timeout(1):
        await scene.stacks.run()

    monkeypatch.setenv("INFERWATCH_STACKS", "0")
    assert not Scene(monkeypatch).stacks.is_on
