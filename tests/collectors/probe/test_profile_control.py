"""Asking an engine for a profile: on all ranks or on none, and off when we are gone."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from collectors.contract.collector import CollectorError, SourceLostError
from collectors.probe import control_connection
from collectors.probe.profile_control import (
    NoProfilerError,
    ProfileControl,
    ProfileRefusedError,
    can_profile,
)
from collectors.probe.profiling import (
    ProfileAction,
    ProfileAnswer,
    ProfileRequest,
    profiling_path,
)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))


class ScriptedRank:
    """An EngineCore that speaks the protocol, and profiles nothing."""

    def __init__(self, rank: int = 0, refuses: str | None = None) -> None:
        self.rank, self.refuses = rank, refuses
        self.is_on = False
        self.asked: list[ProfileRequest] = []
        self.says: bytes | None = None
        self.silent_s = 0.0
        self.callers = 0

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.callers += 1
        try:
            await self._answer(reader, writer)
        finally:
            self.is_on = False
            writer.close()
            await writer.wait_closed()
            self.callers -= 1

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while line := await reader.readline():
            request = msgspec.json.decode(line, type=ProfileRequest)
            self.asked.append(request)
            await asyncio.sleep(self.silent_s)
            if request.action is ProfileAction.START and not self.refuses:
                self.is_on = True
            elif request.action is ProfileAction.STOP:
                self.is_on = False
            starts = request.action is ProfileAction.START
            refused = self.refuses if starts else None
            answer = ProfileAnswer(rank=self.rank, is_on=self.is_on, refused=refused)
            writer.write(self.says or msgspec.json.encode(answer) + b"\n")


@asynccontextmanager
async def engine(*ranks: ScriptedRank) -> AsyncIterator[None]:
    servers = []
    for pid, rank in enumerate(ranks, 7):
        path = profiling_path("eng", pid)
        servers.append(await asyncio.start_unix_server(rank.serve, path))
    try:
        yield
    finally:
        for each in servers:
            each.close()
        async with asyncio.timeout(5):
            while any(each.callers for each in ranks):  # noqa: ASYNC110 - their end
                await asyncio.sleep(0.01)


async def is_off(rank: ScriptedRank) -> None:
    async with asyncio.timeout(5):
        while rank.is_on:  # noqa: ASYNC110 - the other end of a socket
            await asyncio.sleep(0.01)


async def test_all_ranks_are_profiled_and_share_the_room() -> None:
    ranks = ScriptedRank(0), ScriptedRank(1)
    async with engine(*ranks):
        control = await ProfileControl.open("eng", by="us")

        await control.start(steps=7, most_s=3, most_bytes=1_000)

        assert [each.is_on for each in await control.state()] == [True, True]
        asked = ranks[1].asked[0]
        assert (asked.steps, asked.most_s, asked.by) == (7, 3, "us")
        assert asked.most_bytes == 500
        await control.close()


async def test_who_closes_leaves_it_off() -> None:
    rank = ScriptedRank()
    async with engine(rank):
        control = await ProfileControl.open("eng")
        await control.start()

        await control.close()

        await is_off(rank)


async def test_where_a_rank_refuses_none_is_profiled() -> None:
    ranks = ScriptedRank(0), ScriptedRank(1, refuses="no\nroom")
    async with engine(*ranks):
        control = await ProfileControl.open("eng")

        with pytest.raises(ProfileRefusedError, match="no room"):
            await control.start()

        await is_off(ranks[0])
        await control.close()


async def test_who_was_refused_may_ask_again() -> None:
    rank = ScriptedRank(refuses="a profile is on already")
    async with engine(rank):
        control = await ProfileControl.open("eng")
        with pytest.raises(ProfileRefusedError):
            await control.start()
        rank.refuses = None

        await control.start()

        assert rank.is_on
        await control.close()


async def test_it_is_stopped_on_all_ranks() -> None:
    ranks = ScriptedRank(1), ScriptedRank(0)
    async with engine(*ranks):
        control = await ProfileControl.open("eng")
        await control.start()

        answers = await control.stop()

        assert [(each.rank, each.is_on) for each in answers] == [(0, False), (1, False)]
        await control.close()


async def test_without_a_profiler_the_flags_are_named() -> None:
    assert not can_profile("eng")
    with pytest.raises(NoProfilerError) as raised:
        await ProfileControl.open("eng")

    assert "inferwatch serve --profiler" in str(raised.value)
    assert "--profiler-config.profiler=torch" in str(raised.value)
    assert "--profiler-config.torch_profiler_dir=/some/directory" in str(raised.value)


async def test_an_engine_that_died_is_gone() -> None:
    path = profiling_path("eng", 7)
    path.touch()

    assert can_profile("eng")
    with pytest.raises(SourceLostError):
        await ProfileControl.open("eng")


async def test_of_another_user_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_connection, "ROOT", -1)
    monkeypatch.setattr(control_connection, "peer_uid", lambda _: 12_345)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(profiling_path("eng", 7)))
        theirs.listen()

        with pytest.raises(NoProfilerError, match="only the user"):
            await ProfileControl.open("eng")


async def test_nonsense_is_an_error_and_no_profile() -> None:
    rank = ScriptedRank()
    rank.says = b"[1, 2]\n"
    async with engine(rank):
        control = await ProfileControl.open("eng")

        with pytest.raises(CollectorError, match="means nothing"):
            await control.start()

        await is_off(rank)
        await control.close()


async def test_a_rank_that_is_lost_ends_no_profile_of_the_others() -> None:
    ranks = [ScriptedRank(0), ScriptedRank(1)]
    async with engine(*ranks):
        control = await ProfileControl.open("eng")
        await control.start()
        ranks[0].says = b"?\n"

        for _ in range(2):
            (answer,) = await control.state()
            assert (answer.rank, answer.is_on) == (1, True)
        await control.close()
        for each in ranks:
            await is_off(each)


async def test_an_engine_may_be_silent_for_longer_as_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = ScriptedRank()
    async with engine(rank):
        control = await ProfileControl.open("eng")
        await control.start()
        monkeypatch.setattr(control_connection, "ANSWER_S", 0.01)
        rank.silent_s = 0.3

        (answer,) = await control.state()

        assert answer.is_on
        await control.close()
        await is_off(rank)
