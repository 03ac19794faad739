"""Load on a watched engine: begun, changed, ended, and recorded."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import psutil
import pytest

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import (
    Endpoint,
    EventKind,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Note,
    NoteKind,
    RequestEvent,
    RequestRecord,
    Vantage,
)
from collectors.contract.wire import EnvelopePacker
from collectors.load.load_relay import LoadNotice, LoadRelay
from inferwatch.errors import SourceError, UsageError
from inferwatch.feed import FeedState
from inferwatch.live.load.elsewhere_loads import is_load_on
from inferwatch.live.load.running_load import public_plan
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.metrics.load.view import RunState
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery

Watching = Callable[..., Any]
Until = Callable[..., Awaitable[None]]
S = 1_000_000_000


def plan_for(**changes: Any) -> LoadPlan:
    plan = LoadPlan(
        run_id="as-typed",
        model="as-typed",
        url="http://as.typed",
        rate_per_s=20.0,
        warmup_s=0.0,
        prompt_tokens=fixed(12),
        output_tokens=fixed(8),
        slo="ttft_s<0.5",
        headers={"Authorization": "Bearer secret"},
    )
    return msgspec.structs.replace(plan, **changes)


def sent(run: Any) -> int:
    client = run.watch.snapshot(SnapshotQuery(Window.SESSION, client=True)).client
    return sum(view.run.sent for view in client.runs) if client else 0


def generators() -> list[psutil.Process]:
    children = psutil.Process(os.getpid()).children()
    live = [each for each in children if each.status() != psutil.STATUS_ZOMBIE]
    return [each for each in live if "inferwatch.loadgen" in each.cmdline()]


def arrived(request_id: str, external_id: str | None, t_ns: int) -> RequestEvent:
    return RequestEvent(
        source="engine-1",
        t_ns=t_ns,
        kind=EventKind.ARRIVED,
        vantage=Vantage.FRONTEND,
        request_id=request_id,
        external_id=external_id,
    )


def finished(request_id: str, t_ns: int) -> RequestEvent:
    return msgspec.structs.replace(
        arrived(request_id, None, t_ns), kind=EventKind.FINISHED
    )


async def test_a_plan_is_followed_on_the_watched_server_whatever_it_says(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)
        assert not run.desk.running

        await run.desk.start(plan_for())

        assert run.desk.running
        followed = run.desk.plan
        assert (followed.url, followed.uds) == (truth_url, None)
        assert followed.model == "ttft=0.02,itl=0.01"
        assert followed.run_id.startswith("load-")
        await until(lambda: sent(run) > 5)


async def test_the_record_has_the_plan_without_its_secrets_then_the_run(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)
        await run.desk.start(plan_for())
        followed = run.desk.plan
        await until(lambda: sent(run) > 5)

    readings = await run.readings()
    (planned,) = [each for each in readings if isinstance(each, LoadPlanned)]
    assert planned.source == followed.run_id
    recorded = msgspec.json.decode(planned.plan, type=LoadPlan)
    assert recorded == msgspec.structs.replace(followed, headers={})
    assert recorded.slo == "ttft_s<0.5"
    kinds = [each.kind for each in readings if isinstance(each, LoadEvent)]
    assert (kinds[0], kinds[-1]) == (LoadKind.STARTED, LoadKind.STOPPED)
    sources = {each.source for each in readings if isinstance(each, RequestRecord)}
    assert sources == {followed.run_id}


async def test_a_change_is_followed_marked_and_part_of_the_plan(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)
        await run.desk.start(plan_for())
        await until(lambda: sent(run) > 5)

        await run.desk.change(rate_per_s=80.0)

        assert run.desk.plan.rate_per_s == 80
        await until(lambda: sent(run) > 40)
        await run.desk.stop()

    events = [each for each in await run.readings() if isinstance(each, LoadEvent)]
    told = [(e.rate_per_s, e.text) for e in events if e.kind is LoadKind.RATE]
    assert told[1] == (80.0, "poisson 80.00 requests/s, was 20.00")


async def test_who_does_not_wait_for_the_end_leaves_no_generator(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)
        await run.desk.start(plan_for())
        await until(lambda: sent(run) > 5)

        os.kill(run.desk.pid, signal.SIGSTOP)  # so that it does not obey
        stopping = asyncio.create_task(run.desk.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.wait([stopping])

        assert not run.desk.running
        assert not generators()


async def test_users_are_changed_alike(
    truth_url: str, watching: Watching, until: Until
) -> None:
    closed = plan_for(arrivals=Arrivals.CLOSED, rate_per_s=None, concurrency=2)
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)
        await run.desk.start(closed)
        await until(lambda: sent(run) > 5)

        await run.desk.change(concurrency=6)

        assert run.desk.plan.concurrency == 6
        await until(lambda: run.desk.plan.concurrency == 6 and sent(run) > 30)
        with pytest.raises(UsageError, match="a closed loop has no rate"):
            await run.desk.change(rate_per_s=3.0)


async def test_stopping_ends_the_generator_and_tells_of_it(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)
        await run.desk.start(plan_for())
        await until(lambda: sent(run) > 5)

        await run.desk.stop()

        assert not run.desk.running
        assert not generators()
        client = run.watch.snapshot(SnapshotQuery(Window.SESSION, client=True)).client
        assert client.events[-1].kind is LoadKind.STOPPED
        await run.desk.change(rate_per_s=5.0)  # late: nothing comes of it
        await run.desk.stop()


async def test_a_run_that_came_to_its_end_makes_room_for_another(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)
        await run.desk.start(plan_for(duration_s=0.3))
        first = run.desk.plan.run_id
        await until(lambda: not run.desk.running)

        await run.desk.start(run.desk.plan)

        assert run.desk.plan.run_id != first
        before = sent(run)
        await until(lambda: sent(run) > before)


async def test_a_start_ends_the_run_before_it(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)

        await asyncio.gather(*(run.desk.start(plan_for()) for _ in range(3)))

        assert len(generators()) == 1
    assert not generators()


@pytest.mark.process
@pytest.mark.process
async def test_a_generator_that_fails_is_told(watching: Watching, until: Until) -> None:
    async with watching("http://127.0.0.1:9") as run:
        await until(run.watch.live.is_set)
        await run.desk.start(plan_for(rate_per_s=None, warmup_s=0.2))
        await until(lambda: not run.desk.running)
        notes = run.watch.present().notes

    failed = [each.text for each in notes if each.kind is NoteKind.STOPPED]
    assert failed[0].startswith("the load generator failed with status 3: ")
    assert "refused" in failed[0]


async def test_without_an_engine_no_load_can_be_started(
    watching: Watching, until: Until
) -> None:
    async with watching(None) as run:
        await until(run.watch.lost.is_set)

        assert run.desk.unavailable.startswith("no engine is up")
        with pytest.raises(SourceError, match="no engine is up"):
            await run.desk.start(plan_for())


async def test_load_ends_with_its_engine_and_can_begin_with_the_next(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)
        await run.desk.start(plan_for())
        await until(lambda: sent(run) > 5)

        run.source.engines[-1].die("the core died")
        await until(run.watch.lost.is_set)

        assert run.watch.state is FeedState.LOST
        assert not run.desk.running
        assert not generators()
        assert run.desk.unavailable
        await run.watch.restart()
        await until(run.watch.live.is_set)
        assert run.desk.unavailable is None
        await run.desk.start(run.desk.plan)
        before = sent(run)
        await until(lambda: sent(run) > before)


async def test_a_planned_load_begins_with_each_life_and_obeys_the_desk(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url, make_load=lambda *_: plan_for()) as run:
        await until(run.watch.live.is_set)
        first = run.desk.plan.run_id
        assert run.desk.running
        await until(lambda: sent(run) > 5)
        await run.desk.change(rate_per_s=40.0)
        await run.desk.stop()
        assert not run.desk.running

        run.source.engines[-1].die()
        await until(run.watch.lost.is_set)
        await run.watch.restart()
        await until(run.watch.live.is_set)

        assert run.desk.running
        assert run.desk.plan.run_id != first
        assert run.desk.plan.rate_per_s == 20


async def test_a_served_engine_that_works_for_others_is_loaded_by_name_only(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url, served=True) as run:
        await until(run.watch.live.is_set)
        now_ns = run.watch.clock.now_ns()
        assert run.desk.must_name_host is None

        run.hear(arrived("r1", "cmpl-chat-with-bob-0", now_ns - 90 * S))
        assert run.desk.must_name_host == socket.gethostname()

        run.hear(finished("r1", now_ns - 31 * S))
        assert run.desk.must_name_host is None

        run.hear(finished("r1", now_ns), arrived("r2", None, now_ns - 1 * S))
        run.hear(finished("r2", now_ns - 1 * S))
        assert run.desk.must_name_host == socket.gethostname()


async def test_our_own_requests_ask_for_no_name(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url, served=True) as run:
        await until(run.watch.live.is_set)
        await run.desk.start(plan_for())
        run_id, now_ns = run.desk.plan.run_id, run.watch.clock.now_ns()

        run.hear(arrived("r1", f"cmpl-{run_id}-0-0", now_ns))
        assert run.desk.must_name_host is None
        await run.desk.stop()
        assert run.desk.must_name_host is None

        run.hear(arrived("r2", "cmpl-load-ffffff-0-0", now_ns))
        assert run.desk.must_name_host == socket.gethostname()


async def test_the_demos_engine_is_nobody_elses(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)

        run.hear(arrived("r1", "curl", run.watch.clock.now_ns()))

        assert run.desk.must_name_host is None


async def test_leaving_the_watch_ends_its_load(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url, served=True) as run:
        await until(run.watch.live.is_set)
        await run.desk.start(plan_for())
        await until(lambda: sent(run) > 5)

    assert not generators()
    assert not run.source.engines[-1].stopped


async def test_an_engine_is_stopped_after_its_load(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url, served=True) as run:
        await until(run.watch.live.is_set)
        await run.desk.start(plan_for())
        await until(lambda: sent(run) > 5)

        await run.watch.stop_engine()

        assert run.source.engines[-1].stopped
        assert not run.desk.running
        assert run.desk.unavailable
        assert not generators()


async def test_a_load_started_elsewhere_on_this_engine_is_watched_and_left_alone(
    truth_url: str, watching: Watching, until: Until
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)
        notice = LoadNotice(
            run_id="load-else",
            pid=os.getppid(),
            url=truth_url.replace("127.0.0.1", "localhost"),
            uds=None,
            plan=public_plan(plan_for(run_id="load-else", url=truth_url)),
        )
        relay, sender = LoadRelay(notice), EnvelopePacker("load")

        def view() -> Any:
            return run.watch.snapshot(SnapshotQuery(Window.SESSION, client=True)).client

        def sends() -> bool:
            now_ns = monotonic_ns()
            begun = LoadEvent(t_ns=now_ns, kind=LoadKind.STARTED)
            relay.send(sender.pack([begun]))
            return view() is not None

        await until(sends)
        shown = view()
        assert shown.elsewhere
        assert shown.run.run_id == "load-else"
        assert not run.desk.running
        relay.send(sender.pack([LoadEvent(t_ns=9, kind=LoadKind.STOPPED)]))
        await until(lambda: view().run.state is RunState.ENDED)
        relay.close()

    notes = [each.text for each in await run.readings() if isinstance(each, Note)]
    assert any("load-else was started elsewhere" in text for text in notes)


def test_a_load_on_another_engine_is_not_ours_to_watch() -> None:
    truth_url = "http://127.0.0.1:8000"
    notice = LoadNotice(run_id="a", pid=1, url="http://localhost:1", uds=None, plan="")
    here = msgspec.structs.replace(notice, url=truth_url)
    unix = msgspec.structs.replace(notice, uds="/tmp/engine.sock")

    def at(url: str | None, uds: str | None = None) -> Endpoint:
        return Endpoint(t_ns=0, pid=1, model="m", url=url, uds=uds)

    assert is_load_on(here, at(truth_url))
    assert not is_load_on(notice, at(truth_url))
    assert is_load_on(unix, at(None, "/tmp/engine.sock"))
    assert not is_load_on(unix, at(truth_url))
