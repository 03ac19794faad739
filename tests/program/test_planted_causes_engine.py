"""On real vLLM each cause of slowness is found where it was planted, and none else."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import httpx
import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading, RequestEvent, Step, Totals
from collectors.probe.hello import Role
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.launch import Engine
from inferwatch.live.past.live_recall import LiveRecall
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request_row import RequestRow, RequestState
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.story.story import RequestStory, SpanKind

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("shared engine"),
]

DEADLINE_S = 120.0
HELD_UP_S = 0.3
SHORT_S = 0.001
"""Between two processes of a busy machine this much may be lost sight of."""
ATTEMPTS = 6
MS = 1_000_000


@dataclass
class Watched:
    """The engine's readings, folded and remembered, and a client that makes them."""

    client: httpx.AsyncClient
    stream: ProbeStream
    clock: SessionClock
    pipeline: Pipeline = field(default_factory=lambda: Pipeline(Model()))
    readings: list[AnyReading] = field(default_factory=list)

    async def pump(self) -> None:
        async for batch in self.stream.batches():
            self.readings += batch
            self.pipeline.take(batch)

    async def ask(self, name: str, prompt: int, tokens: int, first: int = 300) -> None:
        """A request of so many tokens; prompts that begin differently share nothing."""
        body = {
            "model": "tiny-llama",
            "prompt": [first] * prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        answer = await self.client.post(
            "/v1/completions", json=body, headers={"X-Request-Id": name}
        )
        answer.raise_for_status()

    @property
    def steps(self) -> list[Step]:
        return [each for each in self.readings if isinstance(each, Step)]

    @property
    def rows(self) -> dict[str, RequestRow]:
        """By what their client called them."""
        snapshot = self.pipeline.snapshot(
            self.clock.now_ns(), SnapshotQuery(Window.SESSION)
        )
        return {name_of(row): row for row in snapshot.requests}

    async def stories(self) -> dict[str, RequestStory]:
        """Of all, once they have ended and the engine says that it is at rest."""
        await until(self.at_rest)
        recall = LiveRecall(self.pipeline, self.clock.now_ns)
        found = {name: await recall.request(row.key) for name, row in self.rows.items()}
        told = {name: story for name, story in found.items() if story is not None}
        assert told.keys() == found.keys()
        for name, story in told.items():
            holds_together(story, self.rows[name])
        return told

    def at_rest(self) -> bool:
        rows = self.rows.values()
        if any(row.state is not RequestState.FINISHED for row in rows):
            return False
        events = [e for e in self.readings if isinstance(e, RequestEvent)]
        totals = [e for e in self.readings if isinstance(e, Totals)]
        return bool(totals and totals[-1].t_ns > events[-1].t_ns)

    def core(self) -> int:
        hellos = self.stream.hellos.values()
        return next(each.pid for each in hellos if each.role is not Role.API)


def name_of(row: RequestRow) -> str:
    assert row.external_id is not None
    return row.external_id.removeprefix("cmpl-").rpartition("-")[0]


def holds_together(story: RequestStory, row: RequestRow) -> None:
    """What is true of every story, whatever was planted."""
    assert row.ttft_s is not None
    parts = dict(story.ttft_parts)
    assert sum(parts.values()) == pytest.approx(row.ttft_s, rel=0.01)
    assert parts.get(Cause.UNKNOWN, 0) <= max(0.01 * row.ttft_s, SHORT_S)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(story.spans))
    assert story.missing == ()
    assert len(story.token_ns) == row.output_tokens
    assert story.ttft_parts == row.ttft_parts
    assert story.row.cause is row.cause
    if row.itl_cause and story.row.itl_cause:
        assert story.row.itl_cause is row.itl_cause


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():  # noqa: ASYNC110 - what it waits for is another process
            await asyncio.sleep(0.05)


@asynccontextmanager
async def watched(engine: Engine) -> AsyncIterator[Watched]:
    """From before the first request on."""
    clock = SessionClock()
    stream = ProbeStream(clock, engine.engine_id, backfill=False)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=engine.url or "", timeout=DEADLINE_S, limits=limits
    ) as client:
        made = Watched(client, stream, clock)
        pump = asyncio.create_task(made.pump())
        try:
            await until(lambda: len(stream.hellos) == 2)
            yield made
        finally:
            await stream.close()
            await pump


def queued_ns(story: RequestStory, cause: Cause) -> int:
    return sum(
        each.end_ns - each.start_ns
        for each in story.spans
        if each.kind is SpanKind.QUEUE and each.cause is cause
    )


async def test_where_nothing_happens_nothing_is_blamed(engine: Engine) -> None:
    async with watched(engine) as here:
        await here.ask("warm", 40, 5)
        await here.ask("quiet", 400, 120, first=299)
        story = (await here.stories())["quiet"]

    assert story.row.cause is Cause.PREFILL
    assert dict(story.ttft_parts).keys() <= {
        *(Cause.API, Cause.QUEUE_STEP, Cause.PREFILL, Cause.PREFILL_SHARED),
        *(Cause.SEND, Cause.UNKNOWN),
    }
    assert Cause.LONG_PREFILL not in {each.cause for each in story.spikes}
    assert Cause.RECOMPUTE not in {each.cause for each in story.spikes}
    assert story.companions == ()
    assert story.kv_peak_blocks == -(-(400 + 119) // 32)
    assert [each.tokens for each in story.spans if each.step is not None] == [400]


async def test_a_long_prompt_is_named_by_whom_it_delayed(engine: Engine) -> None:
    """Where others slow the machine no prefill may stand out: it is tried again."""
    for attempt in range(ATTEMPTS):
        async with watched(engine) as here:
            first = 301 + 2 * attempt
            slow = asyncio.create_task(here.ask("decoding", 20, 300, first=first))
            await until(lambda: len(here.steps) > 60)
            await here.ask("culprit", 1_900, 4, first=first + 1)
            await slow
            stories = await here.stories()

        story, culprit = stories["decoding"], stories["culprit"]
        (companion,) = [each for each in story.companions if "culprit" in each.name]
        assert companion.prefill_tokens == 1_900
        assert companion.steps == 4  # three of 511 tokens, for one decodes beside them
        assert sum(each.tokens or 0 for each in culprit.spans if each.step) == 1_900
        blamed = [each for each in story.spikes if each.cause is Cause.LONG_PREFILL]
        assert {each.blamed for each in blamed} <= {culprit.row.key}
        assert all("culprit" in each.evidence for each in blamed)
        if len(blamed) >= 2:
            return
    pytest.fail(f"no long prefill was named in {ATTEMPTS} attempts")


async def test_those_beyond_max_num_seqs_waited_for_sequences(engine: Engine) -> None:
    async with watched(engine) as here:
        await asyncio.gather(
            *(here.ask(f"many-{n}", 6, 40, first=400 + n) for n in range(48))
        )
        stories = await here.stories()

    waited = [each for each in stories.values() if each.row.cause is Cause.QUEUE_SEQS]
    assert 8 <= len(waited) <= 16
    assert max(step.running for step in here.steps) == 32
    for story in waited:
        told_ns = queued_ns(story, Cause.QUEUE_SEQS)
        part_s = dict(story.ttft_parts)[Cause.QUEUE_SEQS]
        assert told_ns / 1e9 == pytest.approx(part_s, rel=0.01)


async def test_prompts_beyond_the_token_budget_waited_for_it(engine: Engine) -> None:
    async with watched(engine) as here:
        await asyncio.gather(
            *(here.ask(f"long-{n}", 1_200, 3, first=500 + n) for n in range(4))
        )
        stories = await here.stories()

    last = max(stories.values(), key=lambda each: each.row.ttft_s or 0)
    assert last.row.cause is Cause.QUEUE_TOKENS
    shared = [each for each in stories.values() if each.companions]
    assert shared
    assert any(Cause.PREFILL_SHARED in dict(each.ttft_parts) for each in shared)


async def test_a_full_cache_makes_requests_wait_and_others_compute_again(
    engine: Engine,
) -> None:
    async with watched(engine) as here:
        await asyncio.gather(
            *(here.ask(f"kv-{n}", 450, 300, first=600 + n) for n in range(22))
        )
        stories = await here.stories()

    waited = [each for each in stories.values() if each.row.cause is Cause.QUEUE_KV]
    assert waited
    put_back = [each for each in stories.values() if each.row.preemptions]
    assert put_back
    for story in put_back:
        kinds = [each.kind for each in story.spans]
        assert kinds.count(SpanKind.PREEMPTED) == story.row.preemptions
        assert SpanKind.RECOMPUTE in kinds
        assert [held for _, held in story.kv_blocks].count(0) == (
            story.row.preemptions + 1
        )
        late = [each.cause for each in story.spikes]
        assert late.count(Cause.RECOMPUTE) == story.row.preemptions
    for story in stories.values():
        if not story.row.preemptions:
            assert Cause.RECOMPUTE not in {each.cause for each in story.spikes}


async def test_an_engine_that_was_held_up_is_told_as_it_was(engine: Engine) -> None:
    async with watched(engine) as here:
        asked = asyncio.create_task(here.ask("held up", 20, 600, first=700))
        held: list[int] = []
        for _ in range(5):
            more = len(here.steps) + 40  # in between it must have made tokens
            await until(lambda: len(here.steps) > more)  # noqa: B023 - at once
            os.kill(here.core(), signal.SIGSTOP)
            held.append(here.clock.now_ns())
            await asyncio.sleep(HELD_UP_S)
            os.kill(here.core(), signal.SIGCONT)
        await asked
        story = (await here.stories())["held up"]

    steps = {each.index: each for each in here.steps}
    told = [each for each in story.spikes if each.gap_ns > 250 * MS]
    assert len(told) == len(held)
    for spike in told:
        in_step = steps[spike.step].duration_ns > 200 * MS
        assert spike.cause is (Cause.SLOW_STEP if in_step else Cause.HOST_STALL)
        assert any(0 < spike.t_ns - t_ns < 3_000 * MS for t_ns in held)
