"""Measures what watching costs the engine: tokens/s with and without a subscriber.

A subscriber comes and goes on one server, in alternating pairs, as two starts of a
server differ by 10%. The client requests whole answers, so that it costs little; tokens
are counted by the server.
"""

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from statistics import median, quantiles

import httpx

from collectors.contract.clock import SessionClock
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.config import EngineConfig, demo_config
from embedded_engine.engine.launch import Engine

COUNTER = "vllm:generation_tokens_total{"
OUTPUT_TOKENS = (512, 960)
"""Varied lengths, so that users do not begin and end at the same time."""


def config() -> EngineConfig:
    """Return the demo's configuration with room for 256 sequences."""
    kept = [
        flag
        for flag in demo_config().flags
        if not flag.startswith(("--max-num-seqs", "--num-gpu-blocks", "--kv-cache"))
    ]
    flags = (*kept, "--max-num-seqs=256", "--kv-cache-memory-bytes=536870912")
    return replace(demo_config(), flags=flags)


async def generated(client: httpx.AsyncClient) -> float:
    """Return the tokens that the server has generated so far."""
    text = (await client.get("/metrics")).text
    lines = (line for line in text.splitlines() if line.startswith(COUNTER))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def stream_forever(client: httpx.AsyncClient, model: str) -> None:
    """Send the requests of one user, each when the one before is answered."""
    body = {"model": model, "prompt": [300] * 16, "ignore_eos": True}
    shortest = 16  # only at first, so that users spread out
    while True:
        body["max_tokens"] = random.randint(shortest, OUTPUT_TOKENS[1])
        (await client.post("/v1/completions", json=body)).raise_for_status()
        shortest = OUTPUT_TOKENS[0]


@asynccontextmanager
async def users(engine: Engine, count: int) -> AsyncIterator[httpx.AsyncClient]:
    """Run a closed loop with ``count`` users."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=engine.url or "", timeout=120, limits=limits, trust_env=False
    ) as client:
        model = engine.endpoint.model
        tasks = [
            asyncio.create_task(stream_forever(client, model)) for _ in range(count)
        ]
        try:
            yield client
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def subscriber(engine: Engine) -> AsyncIterator[None]:
    """Subscribe to the probe, and discard the readings."""
    stream = ProbeStream(SessionClock(), engine.engine_id, backfill=False)

    async def take() -> None:
        async for _ in stream.batches():
            pass

    taking = asyncio.create_task(take())
    try:
        await asyncio.sleep(0.5)  # the subscription itself is not measured
        yield
    finally:
        await stream.close()
        with suppress(asyncio.CancelledError):
            await taking


async def rate(client: httpx.AsyncClient, seconds: float) -> float:
    """Measure tokens per second over some seconds."""
    before, since = await generated(client), time.monotonic()
    await asyncio.sleep(seconds)
    after, until = await generated(client), time.monotonic()
    return (after - before) / (until - since)


async def compare(engine: Engine, batch: int, pairs: int, seconds: float) -> None:
    """Print the ratio of tokens/s with and without a subscriber, at one batch size."""
    ratios, bare_rates = [], []
    async with users(engine, batch) as client:
        await asyncio.sleep(5)
        for number in range(pairs):
            rates: dict[bool, float] = {}
            for watched in (True, False) if number % 2 else (False, True):
                if watched:
                    async with subscriber(engine):
                        rates[watched] = await rate(client, seconds)
                else:
                    await asyncio.sleep(0.5)
                    rates[watched] = await rate(client, seconds)
            ratios.append(rates[True] / rates[False])
            bare_rates.append(rates[False])
    low, _, high = quantiles(ratios, n=4)
    print(
        f"batch {batch:4d}  {median(bare_rates):8.0f} tok/s  ratio median "
        f"{median(ratios):.3f}  quartiles {low:.3f}-{high:.3f}  "
        f"range {min(ratios):.3f}-{max(ratios):.3f}  pairs {pairs}",
        flush=True,
    )


async def main() -> None:
    """Start the engine once, and compare at each batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    engine = await Engine.start(config(), lambda _: None)
    try:
        for batch in (1, 32, 256):
            await compare(engine, batch, options.pairs, options.seconds)
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(main())
