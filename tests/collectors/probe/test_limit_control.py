"""Turning the limits of an engine: what is asked, and what is made of the answers."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from collectors.contract.collector import CollectorError, SourceLostError
from collectors.contract.readings import LimitChange
from collectors.probe import control_connection, limit_control
from collectors.probe.control import LimitAction
from collectors.probe.limit_control import (
    LimitConflictError,
    LimitControl,
    LimitRefusedError,
    NoControlError,
)
from tests.collectors.fake_control import (
    START_SEQS,
    START_TOKENS,
    FakeRank,
    controlled,
)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


async def test_a_limit_is_turned_and_turned_back() -> None:
    rank = FakeRank()
    async with controlled(rank):
        control = await LimitControl.open("eng", by="us")

        now = await control.set(max_num_seqs=8, keep=True)

        assert [each.max_num_seqs for each in now] == [8]
        assert now[0].max_num_batched_tokens == START_TOKENS
        assert (now[0].by, now[0].kept) == ("us", True)
        back = await control.reset()
        assert back[0].max_num_seqs == START_SEQS
        await control.close()


async def test_who_watches_stays_on_one_connection() -> None:
    rank = FakeRank()
    async with controlled(rank):
        control = await LimitControl.open("eng")

        await control.set(max_num_seqs=8)
        await control.limits()
        await control.reset()

        assert rank.callers == 1
        await control.close()


async def test_an_engine_without_control_is_told_apart() -> None:
    async with controlled(FakeRank(), engine_id="other"):
        with pytest.raises(NoControlError, match="serve --control"):
            await LimitControl.open("eng")


async def test_an_engine_of_a_longer_name_is_another() -> None:
    rank = FakeRank()
    async with controlled(rank, engine_id="eng.2"):
        with pytest.raises(NoControlError):
            await LimitControl.open("eng")

    assert rank.callers == 0


async def test_the_socket_of_a_dead_rank_is_passed_over() -> None:
    rank = FakeRank()
    async with controlled(rank) as (path,):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path.with_name("eng.7.ctl")))

        control = await LimitControl.open("eng")

        assert len(control.known) == 1
        await control.close()


async def test_sockets_are_found_where_the_directory_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    rank = FakeRank()
    async with controlled(rank) as (path,):
        assert "x" * 100 not in str(path)
        control = await LimitControl.open("eng")

        assert control.known[0].max_num_seqs == START_SEQS
        await control.close()


async def test_what_another_user_put_there_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_connection, "ROOT", -1)
    monkeypatch.setattr(control_connection, "peer_uid", lambda _: os.geteuid() + 1)
    rank = FakeRank()
    async with controlled(rank):
        with pytest.raises(NoControlError, match="only the user"):
            await LimitControl.open("eng")

    assert not rank.requests


async def test_whom_the_system_does_not_let_in_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def closed(*_: object, **__: object) -> None:
        raise PermissionError

    async with controlled(FakeRank()):
        monkeypatch.setattr(asyncio, "open_unix_connection", closed)
        with pytest.raises(NoControlError, match="only the user"):
            await LimitControl.open("eng")


@pytest.mark.parametrize(
    ("says", "told"),
    [
        pytest.param(b"", "hung up", id="it hangs up on us"),
        pytest.param(b"hello\n", "means nothing", id="no JSON"),
        pytest.param(b"[1]\n", "means nothing", id="another shape"),
        pytest.param(b"{" * 9_000, "means nothing", id="no end of a line"),
        pytest.param(b"\xff\xfe\n", "means nothing", id="no text"),
    ],
)
async def test_what_is_no_answer_is_an_error(says: bytes, told: str) -> None:
    rank = FakeRank()
    rank.says = says
    async with controlled(rank):
        with pytest.raises(CollectorError, match=told):
            await LimitControl.open("eng")


async def test_an_engine_that_says_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_connection, "ANSWER_S", 0.05)
    rank = FakeRank()
    rank.is_slow = True
    async with controlled(rank):
        with pytest.raises(CollectorError, match="does not answer"):
            await LimitControl.open("eng")


async def test_an_engine_that_ends_is_gone() -> None:
    rank = FakeRank()
    async with controlled(rank):
        control = await LimitControl.open("eng")
    with pytest.raises(SourceLostError, match="gone"):
        await control.set(max_num_seqs=8)
    with pytest.raises(SourceLostError, match="gone"):
        await control.reset()


async def test_an_engine_that_hung_up_and_lives_is_called_again() -> None:
    rank = FakeRank()
    async with controlled(rank):
        control = await LimitControl.open("eng")
        rank.hang_up()
        await asyncio.sleep(0.05)

        now = await control.set(max_num_seqs=8)

        assert now[0].max_num_seqs == 8
        assert rank.callers == 2
        await control.close()


async def test_who_changed_it_meanwhile_is_told_and_the_next_try_goes() -> None:
    rank = FakeRank()
    async with controlled(rank):
        control = await LimitControl.open("eng")
        rank.turn(LimitChange.SET, "bob", max_num_seqs=16)

        with pytest.raises(LimitConflictError, match=r"by bob \(max_num_seqs 16,"):
            await control.set(max_num_seqs=8)

        assert control.known[0].max_num_seqs == 16
        now = await control.set(max_num_seqs=8)
        assert now[0].max_num_seqs == 8
        await control.close()


async def test_start_up_values_that_came_back_are_told_as_that() -> None:
    rank = FakeRank()
    async with controlled(rank):
        control = await LimitControl.open("eng")
        rank.turn(LimitChange.WATCHER_GONE, None)

        with pytest.raises(LimitConflictError, match="start-up values came back"):
            await control.set(max_num_seqs=8)
        await control.close()


async def test_a_refusal_is_told_in_the_words_of_the_engine() -> None:
    rank = FakeRank()
    rank.refuses = "hybrid\x1b[31m models\n fix it"
    async with controlled(rank):
        control = await LimitControl.open("eng")

        with pytest.raises(LimitRefusedError, match=r"^hybrid \[31m models fix it$"):
            await control.set(max_num_batched_tokens=64)
        await control.close()


async def test_where_one_rank_refuses_the_others_go_back() -> None:
    willing, unwilling = FakeRank(0), FakeRank(1)
    unwilling.refuses = "not here"
    async with controlled(willing, unwilling):
        control = await LimitControl.open("eng")

        with pytest.raises(LimitRefusedError, match="rank 1: not here"):
            await control.set(max_num_seqs=8)

        assert willing.limits.max_num_seqs == START_SEQS
        assert willing.limits.change is LimitChange.RESET
        assert unwilling.limits.version == 1
        await control.close()


async def test_they_go_back_to_what_was_in_force_not_to_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limit_control, "BETWEEN_CHANGES_S", 0.1)
    ranks = FakeRank(0, between_s=0.1), FakeRank(1, between_s=0.1)
    async with controlled(*ranks):
        control = await LimitControl.open("eng")
        await control.set(max_num_seqs=16, keep=True)
        await asyncio.sleep(0.15)
        ranks[1].refuses = "not here"

        with pytest.raises(LimitRefusedError):
            await control.set(max_num_seqs=8)

        assert [each.limits.max_num_seqs for each in ranks] == [16, 16]
        assert ranks[0].limits.kept
        await control.close()


async def test_a_rank_that_may_have_done_it_is_told_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_connection, "ANSWER_S", 0.1)
    rank = FakeRank()
    async with controlled(rank):
        control = await LimitControl.open("eng")
        rank.is_slow = True

        with pytest.raises(CollectorError, match="does not answer"):
            await control.set(max_num_seqs=8, keep=True)

        assert [each.action for each in rank.requests[-2:]] == [
            LimitAction.SET,
            LimitAction.RESET,
        ]
        assert rank.limits.max_num_seqs == START_SEQS
        await control.close()


async def test_a_reset_reaches_the_ranks_that_are_left() -> None:
    lives, dies = FakeRank(0), FakeRank(1)
    async with controlled(lives, dies) as paths:
        control = await LimitControl.open("eng")
        await control.set(max_num_seqs=8)
        paths[1].unlink()
        dies.hang_up()
        await asyncio.sleep(0.05)

        with pytest.raises(SourceLostError):
            await control.reset()

        assert lives.limits.max_num_seqs == START_SEQS
        await control.close()
