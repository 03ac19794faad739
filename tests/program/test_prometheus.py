"""A real Prometheus: we read the engines it scrapes, and it scrapes us."""

import asyncio
import json
import math
import random
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from collectors.contract.clock import SessionClock
from collectors.contract.readings import Contact, EngineInfo, EngineSample
from collectors.http.server import Server
from collectors.servers.prometheus_server import PrometheusReader
from inferwatch.live.outlets.endpoint import MetricsEndpoint
from inferwatch.live.outlets.exact import PER_DOUBLING, ExactNumbers
from inferwatch.live.outlets.exposed import exposed_points
from tests.collectors.http_server import serving
from tests.collectors.made_up_engine import MadeUpEngine

PROGRAM = shutil.which("prometheus")
PATIENCE_S = 60.0
S = 1_000_000_000
TTFT = "inferwatch_time_to_first_token_seconds"
ENGINE = "engine-1"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(PROGRAM is None, reason="no prometheus is installed"),
]


class RealPrometheus:
    """Debian's Prometheus, which scrapes what a test names, twice a second."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.AsyncClient(base_url=url, trust_env=False)

    async def asked(self, query: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        answer = await self._client.get("/api/v1/query", params={"query": query})
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    async def awaited(self, query: str) -> list[dict[str, Any]]:
        """Its first result that is not empty."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    if found := await self.asked(query):
                        return found
                except (httpx.TransportError, KeyError, json.JSONDecodeError):
                    pass  # it is coming up
                await asyncio.sleep(0.2)

    async def close(self) -> None:
        """Ask no more."""
        await self._client.aclose()


@asynccontextmanager
async def running(folder: Path, target: str) -> AsyncIterator[RealPrometheus]:
    """A Prometheus that scrapes ``target`` as job ``seen``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    scrape = {"job_name": "seen", "static_configs": [{"targets": [target]}]}
    settings = {"global": {"scrape_interval": "500ms"}, "scrape_configs": [scrape]}
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(settings), "utf-8")
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [
                str(PROGRAM),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=native-histograms",
            ],
            stderr=log,
        )
    prometheus = RealPrometheus(f"http://127.0.0.1:{port}")
    try:
        yield prometheus
    finally:
        await prometheus.close()
        process.terminate()
        await asyncio.to_thread(process.wait)


async def test_it_tells_us_what_the_engine_exposed(tmp_path: Path) -> None:
    engine = MadeUpEngine()
    for number in range(50):
        engine.request(ttft_s=0.01 * number, itl_s=0.02)
    async with (
        serving({"/metrics": engine.text}) as server,
        running(tmp_path, server.url.removeprefix("http://")) as prometheus,
    ):
        await prometheus.awaited('up{job="seen"} == 1')
        clock = SessionClock()
        reader = PrometheusReader(clock, Server(url=prometheus.url), 'job="seen"')
        first = await reader.look()
        engine.request(ttft_s=3.0, itl_s=0.02)
        server.answers["/metrics"] = engine.text
        await prometheus.awaited("vllm:request_success_total > 50")
        readings = [*first, *await reader.look()]
        await reader.close()

    samples = [each for each in readings if isinstance(each, EngineSample)]
    ttft = samples[-1].histograms["ttft_s"]
    assert [each.finished["stop"] for each in (samples[0], samples[-1])] == [50, 51]
    assert (ttft.counts[-1], ttft.counts[-2]) == (51, 50)
    assert ttft.sum == pytest.approx(sum(0.01 * each for each in range(50)) + 3.0)
    assert [each.answers for each in readings if isinstance(each, Contact)] == [True]
    times = [each.t_ns for each in samples]
    assert times == sorted(set(times))
    assert len(times) == len(samples) >= 2


async def test_percentiles_of_our_native_histogram_are_true_to_a_bucket(
    tmp_path: Path,
) -> None:
    numbers, draw = ExactNumbers(), random.Random(7)
    numbers.fold(
        EngineInfo(source=ENGINE, t_ns=0, pid=1, model="tiny", vllm_version="0.32")
    )
    collect = lambda: exposed_points(numbers, S, None)  # noqa: E731
    endpoint = MetricsEndpoint("127.0.0.1", 0, collect)
    answering = asyncio.create_task(endpoint.serve())
    target = endpoint.url.split("/")[2]
    async with running(tmp_path, target) as prometheus:
        await prometheus.awaited(f"histogram_count({TTFT}) == 0")
        values = [
            round(draw.lognormvariate(math.log(0.05 * S), 1)) for _ in range(5000)
        ]
        for value in values:
            numbers.servers[ENGINE].add("ttft_s", S // 2, value)
        await prometheus.awaited(f"histogram_count({TTFT}) == 5000")
        values.sort()
        for share in (0.5, 0.9, 0.99):
            exact_s = values[math.ceil(share * len(values)) - 1] / S
            told = await prometheus.asked(f"histogram_quantile({share}, {TTFT})")
            grown = await prometheus.asked(
                f"histogram_quantile({share}, sum(increase({TTFT}[1m])))"
            )
            for found in (told, grown):
                value_s = float(found[0]["value"][1])
                assert value_s == pytest.approx(
                    exact_s, rel=2 ** (1 / PER_DOUBLING) - 1
                )
        gauge = TTFT.replace("_seconds", '_window_seconds{quantile="0.99"}')
        (beside,) = await prometheus.awaited(gauge)
        assert float(beside["value"][1]) == values[math.ceil(0.99 * 5000) - 1] / S
        assert beside["metric"]["server"] == ENGINE
    answering.cancel()
    await endpoint.close()
