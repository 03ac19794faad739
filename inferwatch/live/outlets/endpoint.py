"""Answers ``GET /metrics`` with the current values of all metrics.

Other clients may connect and send nothing, or not read. They hold only a few file
descriptors, which the record needs too, and no scraper waits for them.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from collectors.http.guests import AT_THE_DOOR, Guests
from inferwatch.errors import UsageError
from inferwatch.live.outlets.exposed import MetricPoints
from inferwatch.live.outlets.prometheus_text import exposition

LOOPBACK = "127.0.0.1"
MOST_HEAD_BYTES = 16_384
HEAD_S = 2.0
"""How long a request's head may take: scrapers send it as soon as they are
connected."""
PATIENCE_S = 10.0
"""How long building a response may take, and again its reading by the client."""
MOST_CONNECTIONS = 32
MOST_AT_ONCE = 8
"""How many responses are built at a time."""
TEXT = "text/plain; charset=utf-8"


def listen_address(text: str) -> tuple[str, int]:
    """Return host and port of ``[HOST:]PORT``, on loopback unless a host is given.

    Raises:
        UsageError: it is no such address.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not int(port) <= 65535:
        raise UsageError(f"{text!r} is no address to listen on: write [HOST:]PORT")
    return host.strip("[]") or LOOPBACK, int(port)


class MetricsEndpoint:
    """An HTTP server that serves one page, ``/metrics``."""

    def __init__(
        self,
        host: str,
        port: int,
        collect: Callable[[], MetricPoints],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Bind the port, so that nothing else starts if that fails.

        ``say`` is called once if too many clients are connected.

        Raises:
            UsageError: the address cannot be bound.
        """
        self._collect, self._say = collect, say
        self._guests = Guests(MOST_CONNECTIONS, self._turned_away)
        self.turned_away = 0
        """Connections that were closed to make room for others."""
        self._server: asyncio.Server | None = None
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self.scrapes = 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error
        shown_host, port = f"[{host}]" if ":" in host else host, self.port
        self.url = f"http://{shown_host}:{port}/metrics"

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Serve until cancelled or closed."""
        self._server = await asyncio.start_server(
            self._meet,
            sock=self._socket,
            limit=MOST_HEAD_BYTES,
            backlog=AT_THE_DOOR,
        )
        with suppress(asyncio.CancelledError):
            await self._server.serve_forever()

    async def close(self) -> None:
        """Stop serving. Safe to call twice."""
        if self._server is not None:
            self._server.close()
            self._guests.send_away()
            await self._server.wait_closed()
        self._socket.close()

    async def _meet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one request and close: scrapers come only every few seconds."""
        self._guests.came(writer)
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(HEAD_S):
                    try:
                        head = await reader.readuntil(b"\r\n\r\n")
                    except asyncio.LimitOverrunError:
                        head = b""
                self._guests.asked(writer)
                async with asyncio.timeout(PATIENCE_S), self._free:
                    answer = await self._answer(head)
                writer.write(answer)
                writer.close()
                async with asyncio.timeout(PATIENCE_S):
                    await writer.wait_closed()
        finally:
            self._guests.left(writer)
            writer.transport.abort()

    def _turned_away(self) -> None:
        self.turned_away += 1
        if self.turned_away == 1:
            self._say(
                f"more than {MOST_CONNECTIONS} are connected to {self.url} at once: "
                "for one more, one that asks nothing is closed; a scraper needs one "
                "connection"
            )

    async def _answer(self, head: bytes) -> bytes:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _http(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n", TEXT)
        if path == "/":
            return _http(HTTPStatus.OK, b"inferwatch: see /metrics\n", TEXT)
        if path != "/metrics":
            return _http(HTTPStatus.NOT_FOUND, b"only /metrics\n", TEXT)
        accept = ",".join(
            text
            for name, _, text in (line.partition(":") for line in lines)
            if name.lower() == "accept"
        )
        self.scrapes += 1
        points = self._collect()
        body, kind = await asyncio.to_thread(exposition, points, accept)
        return _http(HTTPStatus.OK, b"" if method == "HEAD" else body, kind)


def _http(status: HTTPStatus, body: bytes, kind: str) -> bytes:
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
