"""A load as real vLLM serves it, recorded: what predictions are made from."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random

import httpx

from collectors.contract.clock import SessionClock
from collectors.contract.readings import AnyReading
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.config import demo_config
from embedded_engine.engine.launch import Engine
from inferwatch.studies.what_if.recorded import RecordedRun, recorded_run

SECONDS = 14.0
PER_S = 9.0
BURST_EVERY_S = 3.0
BURST = 16
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Sent:
    """A request of the plan."""

    at_s: float
    prompt: tuple[int, ...]
    tokens: int


def plan(seconds: float) -> list[Sent]:
    """Requests at random, and a burst now and then; the same each time."""
    random, at_s, moments = Random(11), 0.0, []
    while at_s < seconds:
        at_s += random.expovariate(PER_S)
        moments.append(at_s)
    for burst in range(1, int(seconds / BURST_EVERY_S)):
        moments += [burst * BURST_EVERY_S] * BURST
    return [
        Sent(
            moment,
            tuple(random.randint(300, 400) for _ in range(random.randint(40, 280))),
            random.randint(16, 72),
        )
        for moment in sorted(moments)
    ]


@asynccontextmanager
async def listening(engine: Engine) -> AsyncIterator[list[AnyReading]]:
    """All that its probe tells, from now on."""
    stream = ProbeStream(SessionClock(), engine.engine_id, backfill=False)
    heard: list[AnyReading] = []

    async def pump() -> None:
        async for batch in stream.batches():
            heard.extend(batch)

    task = asyncio.create_task(pump())
    try:
        async with asyncio.timeout(DEADLINE_S):
            while len(stream.hellos) < 2:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        yield heard
        await asyncio.sleep(1.2)  # the last of it
    finally:
        await stream.close()
        await task


async def served(*flags: str) -> RecordedRun:
    """What an engine that is set so makes of the plan."""
    config = demo_config()
    names = {flag.partition("=")[0] for flag in flags}
    kept = [each for each in config.flags if each.partition("=")[0] not in names]
    config = replace(
        config,
        flags=(*kept, *flags),
        env={**config.env, "INFERWATCH_CORE_NICE": "0"},
    )
    engine = await Engine.start(config, lambda _: None)
    try:
        return await served_by(engine)
    finally:
        await engine.stop()


async def served_by(engine: Engine, seconds: float = SECONDS) -> RecordedRun:
    """What that one makes of the plan, or of its beginning."""
    async with listening(engine) as heard:
        await load(engine, plan(seconds))
    return recorded_run(heard)


async def load(engine: Engine, requests: Sequence[Sent]) -> None:
    """Send each when it is due, whatever became of those before."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=engine.url or "", timeout=DEADLINE_S, limits=limits
    ) as client:

        async def ask(sent: Sent) -> None:
            body = {
                "model": "tiny-llama",
                "prompt": list(sent.prompt),
                "max_tokens": sent.tokens,
                "ignore_eos": True,
            }
            answer = await client.post("/v1/completions", json=body)
            answer.raise_for_status()

        await asyncio.gather(*(ask(each) for each in requests[:4]))
        loop, asked = asyncio.get_running_loop(), []
        begun_s = loop.time()
        for each in requests:
            await asyncio.sleep(max(begun_s + each.at_s - loop.time(), 0))
            asked.append(asyncio.create_task(ask(each)))
        await asyncio.gather(*asked)
