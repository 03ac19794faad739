"""A server in our own process that answers whatever a test wants, bytes and all."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

SCRAPES = Path(__file__).parent / "servers" / "families" / "scrapes"
VLLM = SCRAPES.joinpath("vllm_0.32.0.txt").read_text("utf-8")

Written = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Writes an answer itself, in its own time."""
Answer = str | bytes | Written
"""A body of metrics, the bytes of a whole answer, or who writes it."""


def whole(
    body: str | bytes,
    status: str = "200 OK",
    kind: str = "text/plain; version=0.0.4",
    headers: str = "",
) -> bytes:
    """A well-made answer."""
    raw = body.encode() if isinstance(body, str) else body
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\n"
    )
    return f"{head}{headers}\r\n".encode() + raw


def as_json(body: str) -> bytes:
    """A well-made answer in JSON."""
    return whole(body, kind="application/json")


TWICE = "content-encoding: gzip, gzip\r\n"


def packed_twice(millions: int = 40) -> bytes:
    """A kilobyte that httpx would make so many millions of bytes of."""
    return gzip.compress(gzip.compress(bytes(millions * 1_000_000)))


class Serving:
    """What it answers on which path; a test may change that at any time."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        """Paths, in order."""
        self.heads: list[str] = []
        """Whole heads of requests."""
        self.url = ""
        self._server: asyncio.Server | None = None
        self._guests: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._port = 0

    async def start(self) -> None:
        """Listen, at the same port as before."""
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Let everybody go."""
        if self._server:
            self._server.close()
            for task, writer in self._guests.items():
                writer.transport.abort()
                task.cancel()
            await asyncio.gather(*self._guests, return_exceptions=True)

    async def _meet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        guest = asyncio.create_task(self._met(reader, writer))
        self._guests[guest] = writer
        guest.add_done_callback(self._guests.pop)

    async def _met(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                path = head.split()[1]
                self.asked.append(path)
                self.heads.append(head)
                answer = self.answers.get(path, whole("none", "404 Not Found"))
                if isinstance(answer, str):
                    writer.write(whole(answer))
                elif isinstance(answer, bytes):
                    writer.write(answer)
                else:
                    await answer(writer)
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(answers: Mapping[str, Answer]) -> AsyncIterator[Serving]:
    """A server that runs while the context lasts."""
    server = Serving(answers)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
