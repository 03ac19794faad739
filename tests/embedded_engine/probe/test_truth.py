"""What the probe recorded against what the server itself counted, on real vLLM."""

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    BoundBy,
    EngineInfo,
    EventKind,
    Note,
    Refusals,
    RequestEvent,
    Step,
    Totals,
    Vantage,
)
from collectors.probe.hello import Role
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.config import EngineConfig, demo_config
from embedded_engine.engine.launch import Engine
from inferwatch.metrics.floor.derived import DerivedTraffic

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("shared engine"),
]

DEADLINE_S = 120.0
POLL_S = 0.05
HELD_UP_S = 1.0
PREFIX = list(range(300, 396))
"""Three KV blocks that some prompts share."""


@asynccontextmanager
async def running(config: EngineConfig) -> AsyncIterator[Engine]:
    engine = await Engine.start(config, lambda _: None)
    try:
        yield engine
    finally:
        await engine.stop()


@dataclass
class Recorded:
    """What a stream yielded."""

    stream: ProbeStream
    readings: list[AnyReading] = field(default_factory=list)

    @property
    def steps(self) -> list[Step]:
        return [r for r in self.readings if isinstance(r, Step)]

    @property
    def tokens(self) -> int:
        return sum(step.output_tokens for step in self.steps)

    @property
    def losses(self) -> list[Note]:
        return [r for r in self.readings if isinstance(r, Note)]

    def events(self, kind: EventKind, vantage: Vantage) -> dict[str, RequestEvent]:
        events = [r for r in self.readings if isinstance(r, RequestEvent)]
        found = [e for e in events if e.kind is kind and e.vantage is vantage]
        assert len({e.request_id for e in found}) == len(found)
        return {e.request_id: e for e in found}

    def at_rest(self) -> bool:
        """All that arrived is finished, and the engine says it holds nothing."""
        arrived = self.events(EventKind.ARRIVED, Vantage.FRONTEND)
        ended = [self.events(EventKind.FINISHED, v) for v in (SEEN, DONE)]
        if any(arrived.keys() != finished.keys() for finished in ended):
            return False
        last_ns = max((e.t_ns for e in ended[1].values()), default=0)
        totals = [r for r in self.readings if isinstance(r, Totals)]
        return bool(totals and totals[-1].t_ns > last_ns and totals[-1].running == 0)

    def last_has_ended(self) -> bool:
        """Both of those who tell have told the end of the request that came last."""
        *_, last = self.events(EventKind.ARRIVED, SEEN)
        return all(last in self.events(EventKind.FINISHED, v) for v in (SEEN, DONE))

    @property
    def totals_at_rest(self) -> Totals:
        """The last that EngineCore told."""
        told = (r for r in reversed(self.readings) if isinstance(r, Totals))
        return next(each for each in told if each.running is not None)

    def kv_used_at_rest(self) -> int | None:
        return self.totals_at_rest.kv_used_blocks

    def token_times(self) -> dict[int, list[tuple[int, int]]]:
        """When tokens of each ordinal came, and how many."""
        times: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for step in self.steps:
            for ordinal, count in zip(step.members, step.produced, strict=True):
                if count:
                    times[ordinal].append((step.end_ns, count))
        return times

    def mean_itl_s(self) -> float:
        gaps = [
            later - earlier
            for times in self.token_times().values()
            for (earlier, _), (later, _) in pairwise(times)
        ]
        return sum(gaps) / len(gaps) / NS_PER_S

    def mean_ttft_s(self) -> float:
        arrived = self.events(EventKind.ARRIVED, SEEN)
        first = self.events(EventKind.FIRST_TOKEN, SEEN)
        spans = [first[name].t_ns - arrived[name].t_ns for name in first]
        return sum(spans) / len(spans) / NS_PER_S


SEEN, DONE = Vantage.FRONTEND, Vantage.ENGINE


@asynccontextmanager
async def watching(
    engine: Engine, *, front_ends: int = 1, backfill: bool = False
) -> AsyncIterator[Recorded]:
    """From before the first request: all processes have answered."""
    stream = ProbeStream(SessionClock(), engine.engine_id, backfill=backfill)
    recorded = Recorded(stream)
    pump = asyncio.create_task(_pump(recorded))
    try:
        await until(lambda: len(stream.hellos) == 1 + front_ends)
        yield recorded
    finally:
        await stream.close()
        await pump


async def _pump(recorded: Recorded) -> None:
    async for batch in recorded.stream.batches():
        recorded.readings += batch


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - what it waits for is another process
            await asyncio.sleep(POLL_S)


class Counters:
    """The server's own, over a span."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._before: dict[str, float] = {}
        self.now: dict[str, float] = {}

    async def begin(self) -> None:
        self._before = await self._scrape()

    async def end(self) -> None:
        self.now = await self._scrape()

    def rise(self, name: str) -> float:
        return self.now[f"vllm:{name}"] - self._before[f"vllm:{name}"]

    def mean(self, name: str) -> float:
        return self.rise(f"{name}_sum") / self.rise(f"{name}_count")

    async def _scrape(self) -> dict[str, float]:
        text = (await self._client.get("/metrics")).raise_for_status().text
        found: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] += sample.value
        return found


@asynccontextmanager
async def client_of(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    # A kept connection may be closed by the server just as it is used again.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=engine.url or "", timeout=DEADLINE_S, limits=limits
    ) as client:
        yield client


@asynccontextmanager
async def measured(
    engine: Engine, *, front_ends: int = 1
) -> AsyncIterator[tuple[httpx.AsyncClient, Recorded, Counters]]:
    """Record and count what happens inside; complete when it is left."""
    async with (
        client_of(engine) as client,
        watching(engine, front_ends=front_ends) as recorded,
    ):
        counters = Counters(client)
        await counters.begin()
        yield client, recorded, counters
        await until(recorded.at_rest)
        await counters.end()
        assert recorded.losses == []


async def complete(client: httpx.AsyncClient, prompt: list[int], tokens: int) -> int:
    body = {
        "model": "tiny-llama",
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0.5,
        "top_p": 0.75,
    }
    response = await client.post("/v1/completions", json=body)
    return int(response.raise_for_status().json()["usage"]["completion_tokens"])


async def abandon(client: httpx.AsyncClient, prompt: list[int], chunks: int) -> None:
    """Ask for much and go away after a few chunks."""
    body = {
        "model": "tiny-llama",
        "prompt": prompt,
        "max_tokens": 1000,
        "ignore_eos": True,
        "stream": True,
    }
    async with client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.aiter_lines()
        while chunks:
            chunks -= (await anext(lines)).startswith("data:")


def prompts(count: int, seed: int = 7) -> list[list[int]]:
    """Of many lengths, every third with the shared prefix."""
    dice = random.Random(seed)
    own = [dice.choices(range(300, 4000), k=dice.randint(1, 300)) for _ in range(count)]
    return [[*PREFIX, *p] if not n % 3 else p for n, p in enumerate(own)]


async def gather(*tasks: Awaitable[int]) -> int:
    return sum(await asyncio.gather(*tasks))


async def test_what_is_recorded_is_what_the_server_counted(engine: Engine) -> None:
    async with measured(engine) as (client, recorded, server):
        asked = await complete(client, [300] * 1500, 10)
        asked += await gather(
            *(complete(client, p, 10 + 7 * n) for n, p in enumerate(prompts(30)))
        )

    assert recorded.tokens == server.rise("generation_tokens_total") == asked
    finished = recorded.events(EventKind.FINISHED, DONE)
    assert len(finished) == server.rise("request_success_total") == 31
    assert {e.reason for e in finished.values()} == {"length"}
    with_output = [step for step in recorded.steps if step.output_tokens]
    assert len(with_output) == server.rise("iteration_tokens_total_count")
    assert len(with_output) < len(recorded.steps)  # chunks of prefill alone
    assert recorded.mean_ttft_s() == pytest.approx(
        server.mean("time_to_first_token_seconds"), rel=0.01
    )
    assert recorded.mean_itl_s() == pytest.approx(
        server.mean("inter_token_latency_seconds"), rel=0.01
    )
    assert recorded.kv_used_at_rest() == server.now["vllm:kv_cache_usage_perc"] == 0
    assert recorded.steps[-1].kv_used_blocks == 0


async def test_every_field_of_steps_and_requests_adds_up(engine: Engine) -> None:
    given = prompts(30, seed=8)
    async with measured(engine) as (client, recorded, server):
        await gather(*(complete(client, p, 5 + n) for n, p in enumerate(given)))

    info = next(r for r in recorded.readings if isinstance(r, EngineInfo))
    assert (info.num_kv_blocks, info.kv_block_tokens) == (255, 32)
    assert (info.max_num_seqs, info.max_num_batched_tokens) == (32, 512)
    assert (info.device, info.executor, info.rank) == ("cpu", "uni", 0)
    for step in recorded.steps:
        assert step.prefill_tokens + step.decode_tokens == sum(step.scheduled)
        assert step.prefill_requests + step.decode_requests == len(step.members)
        assert len(step.members) <= step.running <= 32
        assert sum(step.scheduled) <= 512
        assert step.decode_tokens == step.decode_requests
        assert step.start_ns < step.end_ns
        assert 0 < step.duration_ns <= step.end_ns - step.start_ns
        assert (step.bound_by is BoundBy.NOTHING) == (step.waiting == 0)
        blocks = step.kv_used_blocks, step.kv_cached_blocks, step.kv_free_blocks
        assert sum(b for b in blocks if b is not None) == 255
    computed = sum(
        step.prefill_tokens - step.recomputed_tokens for step in recorded.steps
    )
    cached = recorded.events(EventKind.SCHEDULED, DONE).values()
    assert computed == sum(map(len, given)) - sum(e.cached_tokens or 0 for e in cached)
    assert sum(e.cached_tokens or 0 for e in cached) > 0
    for name, counted in (("queries", "prefix_queries"), ("hits", "prefix_hits")):
        assert server.rise(f"prefix_cache_{name}_total") == sum(
            getattr(step, counted) for step in recorded.steps
        )
    added = recorded.events(EventKind.ADDED, DONE)
    arrived = recorded.events(EventKind.ARRIVED, SEEN)
    assert (
        added.keys()
        == arrived.keys()
        == recorded.events(EventKind.FINISHED, SEEN).keys()
    )
    assert sorted(e.prompt_tokens or 0 for e in added.values()) == sorted(
        map(len, given)
    )
    assert sorted(e.max_tokens or 0 for e in added.values()) == list(range(5, 35))
    assert {e.temperature for e in added.values()} == {0.5}
    for event in recorded.events(EventKind.FINISHED, SEEN).values():
        assert event.processed_ns is not None
        assert 0 <= event.processed_ns - event.t_ns < 1_000_000_000
    assert {e.top_p for e in (*added.values(), *arrived.values())} == {0.75}
    for name, event in arrived.items():
        assert event.external_id is not None
        assert event.external_id.startswith("cmpl-")
        assert event.t_ns <= (event.tokenised_ns or 0) <= added[name].t_ns


async def test_block_maps_agree_with_the_steps_they_were_taken_after(
    engine: Engine,
) -> None:
    async with measured(engine) as (client, recorded, _):
        for seed in (17, 18):
            await gather(*(complete(client, p, 80) for p in prompts(32, seed)))

    maps = [r for r in recorded.readings if isinstance(r, BlockMap)]
    steps = {step.end_ns: step for step in recorded.steps}
    alive = {e.ordinal for e in recorded.events(EventKind.ADDED, DONE).values()}
    held: dict[int, list[int]] = {}
    cached: set[int] = set()
    compared = 0
    for told in maps[next(n for n, each in enumerate(maps) if each.whole) :]:
        if told.whole:
            held, cached = {}, set()
        for gone in told.gone:
            del held[gone]
        for holder, kept, blocks in zip(
            told.holders, told.kept, told.blocks, strict=True
        ):
            held[holder] = held.get(holder, [])[:kept] + blocks
        cached = cached.difference(told.uncached).union(told.cached)
        used = {block for blocks in held.values() for block in blocks}
        assert held.keys() <= alive
        assert told.cost_ns is not None
        step = steps.get(told.t_ns)
        if step is not None:
            assert len(used) == step.kv_used_blocks
            assert len(cached - used) == step.kv_cached_blocks
            assert set(step.members) >= held.keys() or step.waiting
            compared += 1
    assert compared > 3


async def test_what_steps_read_is_derived_from_the_context_of_each_request(
    engine: Engine,
) -> None:
    async with measured(engine) as (client, recorded, _):
        await gather(*(complete(client, p, 30) for p in prompts(20, seed=13)))

    info = next(r for r in recorded.readings if isinstance(r, EngineInfo))
    assert info.weight_bytes is not None
    assert info.kv_bytes_per_token is not None
    context = {
        event.ordinal: event.cached_tokens or 0
        for event in recorded.events(EventKind.SCHEDULED, DONE).values()
    }
    traffic = DerivedTraffic()
    told = 0
    for reading in recorded.readings:
        if isinstance(reading, EngineInfo):
            traffic.info(reading)
        elif isinstance(reading, RequestEvent):
            traffic.event(reading)
        elif isinstance(reading, Step):
            assert not reading.preempted
            for ordinal, scheduled in zip(
                reading.members, reading.scheduled, strict=True
            ):
                context[ordinal] += scheduled
            tokens = sum(context[ordinal] for ordinal in reading.members)
            read = traffic.step(reading)
            assert read is not None
            assert read.context == tokens
            told += 1
    assert told > 30


async def test_an_api_server_tells_how_late_its_event_loop_ran(engine: Engine) -> None:
    async with measured(engine) as (client, recorded, _):
        load = asyncio.create_task(complete(client, [300] * 30, 400))
        await until(lambda: len(lags(recorded.readings)) > 1)
        before = len(recorded.readings)
        hellos = recorded.stream.hellos.values()
        api = next(hello.pid for hello in hellos if hello.role is Role.API)
        os.kill(api, signal.SIGSTOP)
        await asyncio.sleep(HELD_UP_S)
        os.kill(api, signal.SIGCONT)
        await until(lambda: len(lags(recorded.readings[before:])) > 1)
        await load

    worst_s = max(lags(recorded.readings[before:])) / NS_PER_S
    assert HELD_UP_S - 0.3 < worst_s < DEADLINE_S  # it may have been at rest
    of_core = [r for r in recorded.readings if isinstance(r, Totals) and r.steps]
    assert {each.loop_lag_max_ns for each in of_core} == {None}


def lags(readings: list[AnyReading]) -> list[int]:
    totals = [r for r in readings if isinstance(r, Totals)]
    return [r.loop_lag_max_ns for r in totals if r.loop_lag_max_ns is not None]


async def test_each_life_is_told_in_its_order(engine: Engine) -> None:
    async with measured(engine) as (client, recorded, _):
        await gather(*(complete(client, p, 5) for p in prompts(5)))

    times = recorded.token_times()
    scheduled = recorded.events(EventKind.SCHEDULED, DONE)
    finished = recorded.events(EventKind.FINISHED, DONE)
    first = recorded.events(EventKind.FIRST_TOKEN, SEEN)
    for name, added in recorded.events(EventKind.ADDED, DONE).items():
        tokens = times[added.ordinal or 0]
        assert added.t_ns < scheduled[name].t_ns < tokens[0][0] < first[name].t_ns
        assert finished[name].t_ns == tokens[-1][0]
        assert finished[name].output_tokens == sum(count for _, count in tokens) == 5


@pytest.mark.soak
async def test_a_hundred_at_once(engine: Engine) -> None:
    async with measured(engine) as (client, recorded, server):
        asked = await gather(*(complete(client, p, 12) for p in prompts(100, seed=9)))

    assert (
        recorded.tokens == server.rise("generation_tokens_total") == asked == 100 * 12
    )
    assert len(recorded.events(EventKind.FINISHED, DONE)) == 100
    assert server.rise("request_success_total") == 100
    bound = Counter(step.bound_by for step in recorded.steps)
    assert bound[BoundBy.SEQS] > 0
    assert bound[BoundBy.TOKENS] > 0
    assert max(step.running for step in recorded.steps) == 32


async def test_what_aborted_clients_did_not_get_is_listed_by_request(
    engine: Engine,
) -> None:
    async with measured(engine) as (client, recorded, server):
        given = prompts(12, seed=10)
        stayed = [complete(client, p, 60) for p in given[:6]]
        await asyncio.gather(
            *stayed, *(abandon(client, p, 4 + n) for n, p in enumerate(given[6:]))
        )

    assert server.rise("request_success_total") == 6
    sent = recorded.events(EventKind.FINISHED, SEEN)
    made = recorded.events(EventKind.FINISHED, DONE)
    aborted = {name for name, event in sent.items() if event.reason == "abort"}
    assert len(aborted) == 6
    assert {name for name, e in sent.items() if e.processed_ns is None} == aborted
    assert {made[name].reason for name in aborted} == {"abort"}
    surplus = {
        name: (made[name].output_tokens or 0) - (sent[name].output_tokens or 0)
        for name in made
    }
    assert recorded.tokens == sum(e.output_tokens or 0 for e in made.values())
    assert recorded.tokens - server.rise("generation_tokens_total") == sum(
        surplus.values()
    )
    assert all(surplus[name] == 0 for name in surplus.keys() - aborted)
    assert recorded.kv_used_at_rest() == server.now["vllm:kv_cache_usage_perc"] == 0


async def test_a_prompt_that_is_too_long_is_no_request(engine: Engine) -> None:
    async with measured(engine) as (client, recorded, server):
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            await complete(client, [300] * 3000, 5)
        await complete(client, [300] * 30, 5)

    assert recorded.tokens == server.rise("generation_tokens_total") == 5
    assert len(recorded.events(EventKind.ARRIVED, SEEN)) == 1


async def test_preemptions_and_what_they_cost(engine: Engine) -> None:
    async with measured(engine) as (client, recorded, server):
        given = prompts(30, seed=11)
        asked = await gather(*(complete(client, p[:150], 220) for p in given))

    assert recorded.tokens == server.rise("generation_tokens_total") == asked
    preempted = Counter(o for step in recorded.steps for o in step.preempted)
    assert preempted.total() == server.rise("num_preemptions_total") > 0
    finished = recorded.events(EventKind.FINISHED, DONE)
    assert preempted == Counter(
        {e.ordinal: e.preemptions for e in finished.values() if e.preemptions}
    )
    assert any(step.recomputed_tokens for step in recorded.steps)
    for step in recorded.steps:
        if step.preempted:
            assert step.bound_by is BoundBy.KV
        assert step.recomputed_tokens <= step.prefill_tokens
    assert recorded.kv_used_at_rest() == server.now["vllm:kv_cache_usage_perc"] == 0
    assert recorded.mean_itl_s() == pytest.approx(
        server.mean("inter_token_latency_seconds"), rel=0.01
    )


async def test_who_comes_late_leaves_and_returns_misses_nothing(engine: Engine) -> None:
    async with client_of(engine) as client:
        load = [asyncio.create_task(complete(client, p, 150)) for p in prompts(40)]
        async with watching(engine, backfill=True) as left_early:
            await until(lambda: len(left_early.steps) > 20)
        await asyncio.gather(*load)

        async with watching(engine, backfill=True) as returned:
            await until(returned.at_rest)

    assert returned.losses == left_early.losses == []
    for recorded in (left_early, returned):
        indices = [step.index for step in recorded.steps]
        assert indices == list(range(len(indices)))
    assert len(returned.steps) == returned.totals_at_rest.steps
    assert returned.tokens == returned.totals_at_rest.output_tokens


@pytest.mark.soak
async def test_two_front_ends(engine_home: Path) -> None:
    config = demo_config()
    flags = (*config.flags, "--api-server-count=2")
    async with (
        running(replace(config, flags=flags)) as engine,
        measured(engine, front_ends=2) as (client, recorded, server),
    ):
        asked = await gather(*(complete(client, p, 40) for p in prompts(40, seed=12)))
        unknown = {"model": "unknown", "prompt": [300]}
        for _ in range(40):
            await client.post("/v1/completions", json=unknown)
        await until(lambda: len(refused(recorded.readings)) == 2)
        await until(lambda: sum(refused(recorded.readings).values()) == 40)
        hellos = recorded.stream.hellos

    assert recorded.tokens == server.rise("generation_tokens_total") == asked == 1600
    assert len(recorded.events(EventKind.FINISHED, DONE)) == 40
    assert server.rise("request_success_total") == 40
    assert Counter(h.role for h in hellos.values()) == {Role.API: 2, Role.CORE: 1}


def refused(readings: Iterable[AnyReading]) -> dict[int, int]:
    """How many requests each API server refused."""
    return {
        each.pid: sum(kind.count for kind in each.refused)
        for each in readings
        if isinstance(each, Refusals) and each.refused
    }
