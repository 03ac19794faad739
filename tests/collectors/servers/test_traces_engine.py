"""What real vLLM tells in traces and cache events, against what it counts itself."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import platformdirs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.collector import Collector
from collectors.contract.readings import AnyReading, KvCacheEvents, RequestSpan
from collectors.http.server import Server
from collectors.servers.kv_events import KvEventStream
from collectors.servers.otlp import PATH, SpanReceiver
from embedded_engine.engine.config import demo_dtype
from embedded_engine.engine.startup import make_tiny_model
from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.embedded_engine.loaded_vllm import Program, loaded_vllm

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("loaded vLLM")]

DEADLINE_S = 120.0
BLOCK = 32
SUMS = {
    "ttft_ns": "vllm:time_to_first_token_seconds",
    "queue_ns": "vllm:request_queue_time_seconds",
    "prefill_ns": "vllm:request_prefill_time_seconds",
    "decode_ns": "vllm:request_decode_time_seconds",
    "e2el_ns": "vllm:e2e_request_latency_seconds",
    "prompt_tokens": "vllm:request_prompt_tokens",
    "output_tokens": "vllm:request_generation_tokens",
}


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class Plain:
    """A server as somebody else starts it, and all that is heard of it.

    But for vLLM being loaded when it starts.
    """

    def __init__(self, log: Path, model: Path) -> None:
        self.port, pub, replay, self.traces = free_ports(4)
        self.server = Server(url=f"127.0.0.1:{self.port}")
        self.clock = SessionClock()
        self.readings: list[AnyReading] = []
        self.log = log
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{pub}",
            "replay_endpoint": f"tcp://*:{replay}",
        }
        self._arguments = [
            *("--model", str(model), "--served-model-name", "tiny"),
            *("--port", str(self.port), "--max-num-seqs", "32", "--enforce-eager"),
            *("--num-gpu-blocks-override", "256", "--block-size", str(BLOCK)),
            *("--kv-cache-memory-bytes", "33554432", "--max-model-len", "4096"),
            *("--dtype", demo_dtype()),
            *("--otlp-traces-endpoint", f"http://127.0.0.1:{self.traces}{PATH}"),
            *("--kv-events-config", json.dumps(events)),
        ]
        self._program: Program | None = None
        self._listening: list[tuple[Collector, asyncio.Task[None]]] = []

    async def start(self) -> None:
        self._program = loaded_vllm().run(
            self.log,
            "vllm.entrypoints.openai.api_server",
            *self._arguments,
            VLLM_PLUGINS="",
            OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
        )
        async with asyncio.timeout(DEADLINE_S):
            while True:
                assert self._program.alive, self._program.log()
                with suppress(httpx.HTTPError, AssertionError):
                    await self.metrics()
                    return
                await asyncio.sleep(0.2)

    def kill(self) -> None:
        if self._program is not None:
            self._program.close()

    def listen(self) -> None:
        receiver = SpanReceiver(self.clock, port=self.traces, servers=[self.server])
        for each in (receiver, KvEventStream(self.clock, self.server, lambda: True)):
            self._listening.append((each, asyncio.create_task(self._hear(each))))

    async def _hear(self, collector: Collector) -> None:
        async for batch in collector.batches():
            self.readings.extend(batch)

    async def close(self) -> None:
        for collector, task in self._listening:
            await collector.close()
            await task
        self.kill()

    async def metrics(self) -> dict[str, float]:
        async with self.server.client(timeout_s=10) as client:
            answer = await client.get("/metrics")
        assert answer.status_code == 200
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
            if sample.name.endswith(("_sum", "_count", "_total"))
        }

    async def complete(self, prompts: list[list[int]], tokens: int) -> None:
        """Send them, eight at a time."""
        room = asyncio.Semaphore(8)

        async def one(prompt: list[int]) -> None:
            asked = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
            async with room:
                answer = await client.post(
                    "/v1/completions", json={"model": "tiny", **asked}
                )
            assert answer.json()["usage"]["completion_tokens"] == tokens

        async with self.server.client(timeout_s=DEADLINE_S) as client:
            await asyncio.gather(*map(one, prompts))

    async def until_told(self, count: int, prompt_tokens: int) -> list[RequestSpan]:
        """Requests of that length; they come some seconds after they ended."""
        async with asyncio.timeout(30):
            while True:
                told = [
                    each
                    for each in self.readings
                    if isinstance(each, RequestSpan)
                    and each.prompt_tokens == prompt_tokens
                ]
                if len(told) >= count:
                    return told
                await asyncio.sleep(0.1)

    def cache(self) -> PrefixCache:
        """What the events heard so far come to."""
        model = Model()
        for each in self.readings:
            if isinstance(each, KvCacheEvents):
                model.fold(each)
        now_ns = self.clock.now_ns()
        return (
            model.snapshot(now_ns, SnapshotQuery(Window.SESSION)).prefix_cache
            or PrefixCache()
        )

    async def until_cache(self, seconds: float = 30, **expected: object) -> PrefixCache:
        async with asyncio.timeout(seconds):
            while True:
                cache = self.cache()
                if all(getattr(cache, name) == it for name, it in expected.items()):
                    return cache
                await asyncio.sleep(0.1)


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Plain]:
    model = await make_tiny_model(Path(platformdirs.user_cache_dir("inferwatch")))
    made = Plain(tmp_path / "log", model)
    await made.start()
    yield made
    await made.close()


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [chance.choices(range(300, 900), k=length) for _ in range(count)]


async def test_traces_and_cache_events_agree_with_what_the_server_counts(
    plain: Plain,
) -> None:
    # The past of the cache comes to whoever joins late: 100 tokens and 9 more are
    # three full blocks; of the last token nothing is kept.
    early = prompts(4, 100, seed=1)
    await plain.complete(early, tokens=10)
    plain.listen()
    cache = await plain.until_cache(blocks=12)
    assert (cache.partial, cache.beginnings, cache.deepest) == (False, 4, 3)
    assert cache.block_tokens == BLOCK

    # Each request is told of once, and what is told adds up to what is counted.
    before = await plain.metrics()
    await plain.complete(prompts(30, 200, seed=2), tokens=40)
    after = await plain.metrics()
    told = await plain.until_told(30, prompt_tokens=200)
    assert len(told) == 30
    for field, metric in SUMS.items():
        name = f"{metric}_sum"
        counted = after[name] - before[name]
        unit = NS_PER_S if field.endswith("_ns") else 1
        ours = sum(getattr(span, field) for span in told) / unit
        assert ours == pytest.approx(counted, rel=0.01), field

    # A shared beginning is stored once, and is where prompts branch.
    shared = await plain.until_cache(blocks=12 + 30 * 7)
    (first,) = prompts(1, 64, seed=3)
    tails = prompts(2, 32, seed=4)
    await plain.complete([first + tails[0]], tokens=2)
    await plain.complete([first + tails[1]], tokens=2)
    cache = await plain.until_cache(blocks=shared.blocks + 4)
    assert cache.branches == 1
    assert cache.evicted == 0

    # What is evicted and comes back was evicted too early; nothing is lost count of.
    await plain.complete(prompts(12, 200, seed=5), tokens=40)
    await plain.complete(early, tokens=2)
    cache = await plain.until_cache(stored_again=12)
    assert cache.blocks == cache.stored - cache.evicted <= 255
    assert cache.lifetime_s.n == cache.evicted
    assert (cache.missed, cache.partial) == (0, False)


@pytest.mark.soak
async def test_another_life_of_a_server_begins_with_an_empty_cache(
    plain: Plain,
) -> None:
    plain.listen()
    await plain.complete(prompts(4, 100, seed=1), tokens=10)
    cache = await plain.until_cache(blocks=12)

    plain.kill()
    await plain.start()

    # All of it is told of, once a batch comes after we were heard of again.
    for sent in range(1, 11):
        await plain.complete(prompts(1, 100, seed=10 + sent), tokens=10)
        with suppress(TimeoutError):
            cache = await plain.until_cache(3, blocks=3 * sent)
            break
    assert (cache.blocks, cache.missed, cache.partial) == (3 * sent, 0, False)
