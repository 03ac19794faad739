"""What scraping a fleet costs: a share of one core.

Local servers in another process answer the 60 kB of a real vLLM, with numbers that
change; CPU seconds of the scrapers' process alone, after the first texts were read. The
peer asks as often with the same client and parses all of each text with
prometheus_client.
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

from prometheus_client.parser import text_string_to_metric_families

from collectors.clock import SessionClock
from collectors.readings import EngineSample
from collectors.scrape import ServerScraper
from collectors.server import Server

BODY = Path(__file__).parents[1] / "tests/collectors/engines/scrapes/vllm_0.32.0.txt"
WARM_S = 8
MEASURED_S = 20
FLEETS = ((64, 1.0, 0.15), (256, 5.0, 0.15))
"""How many servers, how often each, and the share of a core that is allowed."""

Watch = Callable[[Server, list[int]], Coroutine[None, None, None]]


def serve(servers: int, told: Connection) -> None:
    """Answer on as many ports, for ever."""
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
            while asked := await reader.readuntil(b"\r\n\r\n"):
                text = body() if b" /metrics " in asked else b'{"data": []}'
                head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n"
                writer.write(head.encode() + text)
        writer.close()

    async def listen() -> None:
        ports = []
        for _ in range(servers):
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            ports.append(server.sockets[0].getsockname()[1])
        told.send(ports)
        await asyncio.Event().wait()

    asyncio.run(listen())


async def ours(server: Server, samples: list[int]) -> None:
    scraper = ServerScraper(SessionClock(), server)
    async for batch in scraper.batches():
        samples[0] += sum(isinstance(each, EngineSample) for each in batch)


async def peer(server: Server, samples: list[int]) -> None:
    async with server.client(timeout_s=10) as client:
        while True:
            answer = await client.get("/metrics")
            list(text_string_to_metric_families(answer.text))
            samples[0] += 1
            await asyncio.sleep(server.every_s)


async def share(
    watch: Watch, ports: Sequence[int], every_s: float
) -> tuple[float, int]:
    """The share of a core, and how many samples came meanwhile."""
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
    return spent / MEASURED_S, samples[0]


def main() -> int:
    print(
        f"{'servers':>7} {'every':>6} {'samples/s':>9} {'of a core':>9}  limit   peer"
    )
    missed = False
    for servers, every_s, limit in FLEETS:
        ours_told, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(servers, theirs), daemon=True
        )
        process.start()
        ports = ours_told.recv()
        cost, samples = asyncio.run(share(ours, ports, every_s))
        peers, _ = asyncio.run(share(peer, ports, every_s))
        process.terminate()
        rate = samples / MEASURED_S
        print(
            f"{servers:7} {every_s:4.0f} s {rate:9.1f} {cost:9.1%} {limit:6.0%} "
            f"{peers:6.1%} (ours is {cost / peers:.2f} of it)"
        )
        missed |= cost > limit
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
