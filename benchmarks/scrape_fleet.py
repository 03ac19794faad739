"""Measures what scraping a fleet costs, as a share of one core.

Local servers in another process answer with a scrape of 60 kB from real vLLM, whose
numbers change. Counts CPU seconds of the scraping process alone, after the first
scrapes. The peer scrapes as often with the same client and parses each text completely
with prometheus_client.
"""

import asyncio
import multiprocessing
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from collectors.contract.clock import SessionClock
from collectors.contract.readings import EngineSample
from collectors.http.server import Server
from collectors.servers.scrape import ServerScraper

BODY = (
    Path(__file__).parents[1]
    / "tests/collectors/servers/families/scrapes/vllm_0.32.0.txt"
)
WARM_S = 8
MEASURED_S = 15
FLEETS = ((64, 1.0, 0.15), (256, 5.0, 0.15))
"""Number of servers, scrape interval, and largest share of a core."""

PEERS = 8
"""Number of servers for the peer, which could not keep up with all."""

Watch = Callable[[Server, list[int]], Coroutine[None, None, None]]


class Cost(NamedTuple):
    """CPU seconds, and the number of samples in that time."""

    cpu_s: float
    samples: int

    @property
    def share(self) -> float:
        """The share of one core."""
        return self.cpu_s / MEASURED_S

    @property
    def each_ms(self) -> float:
        return self.cpu_s / max(self.samples, 1) * 1e3


def serve(servers: int, parent: Connection) -> None:
    """Answer scrapes on one port per server, until killed."""
    lines = BODY.read_text("utf-8").splitlines()
    tokens = next(
        at for at, line in enumerate(lines) if "generation_tokens_total{" in line
    )
    turns = count(852)

    def body() -> bytes:
        fresh = f"{lines[tokens].rpartition(' ')[0]} {next(turns)}.0"
        return "\n".join([*lines[:tokens], fresh, *lines[tokens + 1 :], ""]).encode()

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                text = body() if b" /metrics " in request else b'{"data": []}'
                head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n"
                writer.write(head.encode() + text)
        writer.close()

    async def listen() -> None:
        ports = []
        for _ in range(servers):
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            ports.append(server.sockets[0].getsockname()[1])
        parent.send(ports)
        await asyncio.Event().wait()

    asyncio.run(listen())


async def ours(server: Server, samples: list[int]) -> None:
    scraper = ServerScraper(SessionClock(), server)
    async for batch in scraper.batches():
        samples[0] += sum(isinstance(each, EngineSample) for each in batch)


async def peer(server: Server, samples: list[int]) -> None:
    async with server.client(timeout_s=60) as client:
        while True:
            answer = await client.get("/metrics")
            list(text_string_to_metric_families(answer.text))
            samples[0] += 1
            await asyncio.sleep(server.every_s)


async def watched(watch: Watch, ports: Sequence[int], every_s: float) -> Cost:
    """Measure the cost of scraping these ports."""
    samples = [0]
    tasks = [
        asyncio.create_task(
            watch(Server(url=f"127.0.0.1:{port}", every_s=every_s), samples)
        )
        for port in ports
    ]
    await asyncio.sleep(WARM_S)
    before, samples[0] = process_time(), 0
    await asyncio.sleep(MEASURED_S)
    spent = process_time() - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return Cost(spent, samples[0])


def main() -> int:
    print("servers  every  samples/s  of a core  limit  ms each  peer  ratio")
    missed = False
    for servers, every_s, limit in FLEETS:
        ours_told, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(servers, theirs), daemon=True
        )
        process.start()
        ports = ours_told.recv()
        cost = asyncio.run(watched(ours, ports, every_s))
        peers = asyncio.run(watched(peer, ports[:PEERS], 1.0))
        process.terminate()
        print(
            f"{servers:7} {every_s:4.0f} s {cost.samples / MEASURED_S:10.1f} "
            f"{cost.share:10.1%} {limit:6.0%} {cost.each_ms:8.2f} {peers.each_ms:5.1f} "
            f"{cost.each_ms / peers.each_ms:6.2f}",
            flush=True,
        )
        missed |= cost.share > limit
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
