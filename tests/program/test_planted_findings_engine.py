"""On real vLLM each fault is planted, and its finding is named first, soon.

What is left to a soak here, a simulated engine shows in seconds
(``tests/inferwatch/metrics/findings``).
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count

import httpx
import pytest

from collectors.contract.clock import SessionClock
from collectors.probe.hello import Role
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.launch import Engine
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.findings.finding import Effort, Finding
from inferwatch.metrics.model.model import Model

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("shared engine"),
]

WITHIN_S = 60
CALM_S = 12
NUMBERS = count(1_000)
"""What prompts begin with, that none shares anything with another."""
Ask = Callable[[], Awaitable[None]]


class Here:
    """A session of the engine, judged once a second, and clients that ask it."""

    def __init__(
        self, client: httpx.AsyncClient, stream: ProbeStream, clock: SessionClock
    ) -> None:
        self.client, self.stream, self.clock = client, stream, clock
        self.model = Model()
        self.pipeline = Pipeline(self.model)

    async def pump(self) -> None:
        async for batch in self.stream.batches():
            self.pipeline.take(batch)

    async def ask(
        self, prompt: int, tokens: int, *, gives_up_s: float | None = None
    ) -> None:
        number = next(NUMBERS)
        begin = [300 + number % 97, 300 + number // 97 % 97]
        body = {
            "model": "tiny-llama",
            "prompt": (begin + [400] * prompt)[:prompt],
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        with suppress(httpx.TimeoutException):
            await self.client.post("/v1/completions", json=body, timeout=gives_up_s)

    async def named(self, name: str, within_s: float = WITHIN_S) -> Finding:
        """Ticks until it holds; then nothing may rank above it."""
        found: dict[str, Finding] = {}
        for _ in range(round(within_s)):
            await asyncio.sleep(1)
            self.pipeline.tick(self.clock.now_ns())
            found = {each.name: each for each in self.model.findings}
            if name in found:
                assert next(iter(found)) == name, found
                return found[name]
        pytest.fail(f"not {name} within {within_s} s, but {list(found)}")

    def core(self) -> int:
        hellos = self.stream.hellos.values()
        return next(each.pid for each in hellos if each.role is not Role.API)


@asynccontextmanager
async def watching(engine: Engine) -> AsyncIterator[Here]:
    clock = SessionClock()
    stream = ProbeStream(clock, engine.engine_id, backfill=False)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=engine.url or "", timeout=120, limits=limits
    ) as client:
        here = Here(client, stream, clock)
        pump = asyncio.create_task(here.pump())
        try:
            async with asyncio.timeout(30):
                while len(stream.hellos) < 2:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
            yield here
        finally:
            await stream.close()
            await pump


@asynccontextmanager
async def asking(clients: int, ask: Ask, pause_s: float = 0.0) -> AsyncIterator[None]:
    """So many clients that ask again when they are answered, until it is enough."""

    async def client() -> None:
        while True:
            await ask()
            await asyncio.sleep(pause_s)

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_calm_traffic_is_no_finding(engine: Engine) -> None:
    async with watching(engine) as here, asking(2, lambda: here.ask(60, 40), 0.2):
        for _ in range(CALM_S):
            await asyncio.sleep(1)
            here.pipeline.tick(here.clock.now_ns())

    assert here.model.findings == ()
    assert here.model.past_findings == ()


@pytest.mark.soak
async def test_more_clients_than_sequences(engine: Engine) -> None:
    async with watching(engine) as here, asking(56, lambda: here.ask(8, 150)):
        found = await here.named("batch_too_small")

    (knob,) = (e for e in found.knobs if (e.flag or "").startswith("--max-num-seqs"))
    assert knob.present == "32"
    assert found.knobs[0].effort == (Effort.NOW,)


@pytest.mark.soak
async def test_more_tokens_than_the_cache_holds(engine: Engine) -> None:
    async with watching(engine) as here, asking(24, lambda: here.ask(300, 900)):
        found = await here.named("kv_bound")

    assert any(each.page == "kv" for each in found.evidence)


@pytest.mark.soak
async def test_prompts_larger_than_the_token_budget(engine: Engine) -> None:
    async with watching(engine) as here, asking(12, lambda: here.ask(1_500, 2)):
        found = await here.named("token_budget")

    flags = {each.flag: each.present for each in found.knobs}
    assert flags["--max-num-batched-tokens"] == "512"


@pytest.mark.soak
async def test_short_prompts_behind_long_ones(engine: Engine) -> None:
    async with (
        watching(engine) as here,
        asking(3, lambda: here.ask(1_900, 2)),
        asking(6, lambda: here.ask(10, 4)),
    ):
        await here.named("head_of_line")


@pytest.mark.soak
async def test_clients_that_give_up(engine: Engine) -> None:
    async with (
        watching(engine) as here,
        asking(3, lambda: here.ask(10, 1_500, gives_up_s=0.5), 0.5),
        asking(2, lambda: here.ask(20, 20), 0.2),
    ):
        await here.named("aborts")


async def test_an_engine_core_that_is_stopped(engine: Engine) -> None:
    async with watching(engine) as here, asking(4, lambda: here.ask(20, 40)):
        for _ in range(3):
            await asyncio.sleep(1)
            here.pipeline.tick(here.clock.now_ns())
        # It is told in the seconds before silence counts as readings that are late:
        # a busy machine may sleep through them.
        found, tries = None, 3
        while found is None and tries:
            tries -= 1
            os.kill(here.core(), signal.SIGSTOP)
            try:
                with suppress(pytest.fail.Exception):
                    found = await here.named("stopped", within_s=9)
            finally:
                os.kill(here.core(), signal.SIGCONT)
            await asyncio.sleep(2)

    assert found is not None, "never called stopped"
    assert found.cost == 1.0
