"""Keeps the pages of an engine whose probe tells everything else."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.readings import AnyReading
from collectors.http.bounded_get import NoAnswerError, get
from collectors.http.server import Server
from collectors.servers.metrics_page import EVERY_NS, PageKeeper

GIVE_UP_S = 10.0
"""Time limit for a response."""


class PageScraper:
    """A collector of an engine's ``/metrics`` as whole pages, and nothing more."""

    def __init__(self, clock: SessionClock, server: Server) -> None:
        self._clock = clock
        self.server = server
        self._pages = PageKeeper(server.source)
        self._closed = asyncio.Event()

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """A page every ten seconds until closed; an engine without one is retried."""
        async with self.server.client(timeout_s=None) as client:
            while not self._closed.is_set():
                with suppress(NoAnswerError):
                    answer = await get(client, "/metrics", timeout_s=GIVE_UP_S)
                    middle_ns = (answer.sent_ns + answer.began_ns) // 2
                    t_ns = middle_ns - self._clock.start_ns
                    page = self._pages.take(answer.text, t_ns)
                    if page is not None:
                        yield [page]
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_NS / NS_PER_S):
                        await self._closed.wait()

    async def close(self) -> None:
        """Stop; safe to call twice."""
        self._closed.set()
