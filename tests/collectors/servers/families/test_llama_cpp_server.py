"""llama.cpp's real server, on a model made on the spot, is told as it is."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import Contact, ServerInfo
from collectors.http.server import Server
from collectors.servers.scrape import ServerScraper
from embedded_engine.tiny_model import CONTEXT_TOKENS
from tests.collectors.servers.families import llama_cpp
from tests.collectors.servers.test_scrape import Watching

pytestmark = pytest.mark.process
PROMPTS = ("hello", "hello world", "hello world", "one two three four five")
ANSWER_TOKENS = 12


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("llama")
    command = [sys.executable, "-P", str(Path(llama_cpp.__file__)), str(directory)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


async def complete(client: httpx.AsyncClient, prompt: str) -> tuple[int, int]:
    """Prompt and output tokens, as the server counts them in its answer."""
    asked = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    answer = await client.post("/v1/completions", json=asked, timeout=60)
    usage = answer.json()["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"]


async def test_its_counters_are_what_clients_were_answered(url: str) -> None:
    watching, scraper = Watching(), ServerScraper(SessionClock(), Server(url=url))
    task = asyncio.create_task(watching.watch(scraper))
    first = (await watching.samples(1))[0]
    async with httpx.AsyncClient(base_url=url) as client:
        answers = [await complete(client, each) for each in PROMPTS]
    prompts, outputs = map(sum, zip(*answers, strict=True))
    seen = len(await watching.samples(1))
    last = (await watching.samples(seen + 2))[-1]
    await scraper.close()
    await task

    assert outputs == ANSWER_TOKENS * len(PROMPTS)
    assert (last.output_tokens or 0) - (first.output_tokens or 0) == outputs
    assert (last.prompt_tokens or 0) - (first.prompt_tokens or 0) == prompts
    assert (last.running, last.waiting) == (0, 0)
    assert last.prefix_hits  # the third prompt was the second again
    assert not last.histograms  # it has none: no percentile is made up
    assert last.kv_usage is None
    (info,) = watching.of(ServerInfo)
    assert (info.family, len(info.models)) == ("llamacpp", 1)
    assert info.max_model_len == CONTEXT_TOKENS // llama_cpp.SLOTS
    assert all(each.answers and not each.restarted for each in watching.of(Contact))
