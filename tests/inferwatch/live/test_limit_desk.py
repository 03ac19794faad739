"""Limits of a watched engine: turned from the desk, by its control sockets."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import LimitChange, LiveLimits
from collectors.http.server import Server
from inferwatch.errors import SourceError, UsageError
from inferwatch.feed import LimitPair
from inferwatch.live.attached.attached_session import AttachedSession
from inferwatch.live.limit_desk import ELSEWHERE, NO_ENGINE, NO_PROBE
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from tests.collectors.fake_control import START_SEQS, FakeRank, controlled

Watching = Callable[..., Any]
Until = Callable[..., Awaitable[None]]
URL = "http://127.0.0.1:9"


def attached(*servers: Server) -> AttachedSession:
    clock = SessionClock()
    return AttachedSession(clock, Pipeline(Model()), servers)


def shows(run: Any, monkeypatch: pytest.MonkeyPatch, *limits: LiveLimits) -> None:
    """What people see of them, whatever the engine says."""
    session = run.watch._session
    known = session.snapshot()
    told = tuple(limits)
    monkeypatch.setattr(
        session, "snapshot", lambda *_: replace(known, live_limits=told)
    )


async def test_a_limit_is_turned_and_turned_back(
    watching: Watching, until: Until
) -> None:
    rank = FakeRank()
    async with watching(URL) as run, controlled(rank, engine_id="engine-1"):
        desk = run.watch.limit_desk
        await until(run.watch.live.is_set)
        assert desk.unavailable is None
        assert desk.must_name_host is None
        assert desk.answered == ()

        await desk.set(LimitPair(max_num_seqs=8), keep=True)

        assert (rank.limits.max_num_seqs, rank.limits.kept) == (8, True)
        assert [each.max_num_seqs for each in desk.answered] == [8]
        await desk.reset()
        assert rank.limits.max_num_seqs == START_SEQS


async def test_an_engine_without_control_says_how_it_would_have_one(
    watching: Watching, until: Until
) -> None:
    async with watching(URL) as run:
        desk = run.watch.limit_desk
        assert desk.unavailable == NO_ENGINE
        await until(run.watch.live.is_set)

        assert "serve --control" in desk.unavailable
        with pytest.raises(UsageError, match="serve --control"):
            await desk.set(LimitPair(max_num_seqs=8))


async def test_a_refusal_is_told_and_nothing_is_changed(
    watching: Watching, until: Until
) -> None:
    rank = FakeRank()
    rank.refuses = "a hybrid model aligns its prefills with the budget"
    async with watching(URL) as run, controlled(rank, engine_id="engine-1"):
        await until(run.watch.live.is_set)

        with pytest.raises(UsageError, match="a hybrid model"):
            await run.watch.limit_desk.set(LimitPair(max_num_batched_tokens=64))


async def test_what_others_changed_unseen_is_told_first(
    watching: Watching, until: Until
) -> None:
    rank = FakeRank()
    async with watching(URL) as run, controlled(rank, engine_id="engine-1"):
        desk = run.watch.limit_desk
        await until(run.watch.live.is_set)
        await desk.set(LimitPair(max_num_seqs=8))
        rank.turn(LimitChange.SET, "bob", max_num_seqs=16)

        with pytest.raises(UsageError, match="by bob"):
            await desk.set(LimitPair(max_num_seqs=4))

        assert desk.answered[0].max_num_seqs == 16
        await desk.set(LimitPair(max_num_seqs=4))
        assert rank.limits.max_num_seqs == 4


async def test_what_others_changed_in_sight_is_no_news(
    watching: Watching, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = FakeRank()
    async with watching(URL) as run, controlled(rank, engine_id="engine-1"):
        await until(run.watch.live.is_set)
        rank.turn(LimitChange.SET, "bob", max_num_seqs=16)
        seen = msgspec.structs.replace(rank.limits, source="engine-1")
        shows(run, monkeypatch, seen)

        await run.watch.limit_desk.set(LimitPair(max_num_seqs=4))

        assert rank.limits.max_num_seqs == 4


async def test_the_first_change_does_not_go_over_what_nobody_saw(
    watching: Watching, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = FakeRank()
    async with watching(URL) as run, controlled(rank, engine_id="engine-1"):
        await until(run.watch.live.is_set)
        seen = msgspec.structs.replace(rank.limits, source="engine-1")
        rank.turn(LimitChange.SET, "bob", max_num_seqs=16)
        shows(run, monkeypatch, seen)

        with pytest.raises(UsageError, match="by bob"):
            await run.watch.limit_desk.set(LimitPair(max_num_seqs=4))

        assert rank.limits.max_num_seqs == 16


async def test_an_engine_that_died_is_gone(watching: Watching, until: Until) -> None:
    rank = FakeRank()
    async with watching(URL) as run:
        desk = run.watch.limit_desk
        async with controlled(rank, engine_id="engine-1"):
            await until(run.watch.live.is_set)
            await desk.set(LimitPair(max_num_seqs=8))

        with pytest.raises(SourceError, match="gone"):
            await desk.set(LimitPair(max_num_seqs=4))
        run.source.engines[0].die()
        await until(run.watch.lost.is_set)
        assert desk.unavailable == NO_ENGINE
        assert desk.answered == ()


async def test_who_leaves_is_no_watcher_any_more(
    watching: Watching, until: Until
) -> None:
    rank = FakeRank()
    async with controlled(rank, engine_id="engine-1"):
        async with watching(URL) as run:
            await until(run.watch.live.is_set)
            await run.watch.limit_desk.set(LimitPair(max_num_seqs=8))
            assert rank.watched == 1

        await until(lambda: rank.watched == 0)


async def test_without_a_probe_nothing_is_turned() -> None:
    session = attached(Server(url=URL))

    assert session.limit_desk.unavailable == NO_PROBE


async def test_of_several_servers_one_is_to_be_looked_at() -> None:
    session = attached(Server(url=URL), Server(url="http://127.0.0.1:10"))

    told = session.limit_desk.unavailable
    assert told is not None
    assert "open one first" in told


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(Server(url=URL, probe="tcp://10.0.0.1:9000"), id="by a relay"),
        pytest.param(Server(url=URL, ssh="ssh://far", uds="/tmp/x"), id="by ssh"),
    ],
)
async def test_an_engine_elsewhere_is_not_turned_from_here(server: Server) -> None:
    assert attached(server).limit_desk.unavailable == ELSEWHERE


async def test_an_attached_engine_is_turned_by_who_names_its_host(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    del watching  # it chooses the directory of sockets
    rank = FakeRank()
    session = attached(Server(url=URL))
    probe = session._probes[0]
    monkeypatch.setattr(type(probe), "engine_id", "eng")
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    async with controlled(rank):
        desk = session.limit_desk
        assert desk.unavailable is None
        assert desk.must_name_host == "box"

        await desk.set(LimitPair(max_num_seqs=8))

        assert rank.limits.max_num_seqs == 8
        await desk.close()
