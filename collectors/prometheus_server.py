"""Reads a fleet from the Prometheus server that scrapes it: a collector.

Whatever the fleet's size there is one query a metric. Each asks for the samples since
the last look just as they were scraped, so every scrape is one reading with the time at
which it was made, none is seen twice, and none in between is missed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress

from collectors.clock import SessionClock
from collectors.prometheus_api import (
    PrometheusApi,
    QueryError,
    ScrapedSeries,
    ServerTime,
)
from collectors.prometheus_fleet import Fleet
from collectors.readings import AnyReading, Note, NoteKind
from collectors.server import Server

LOOK_EVERY_S = 5.0
"""Scrapes are 15 to 60 s apart; more often would only ask in vain."""
FIRST_SPAN_S = 75.0
"""What the first look covers: enough for a rate at once."""
LATE_S = 60.0
"""A sample may come into the server's store this much after it was scraped."""
LONGEST_SPAN_S = 1800.0
"""After an outage, what was missed is read up to this far back."""
LONGEST_WAIT_S = 60.0
AT_ONCE = 3
"""Queries at a time: others use the server, too."""
CHUNK = 100
"""Readings passed on in one go: the screen is drawn on the same thread."""


class PrometheusReader:
    """Reads all engines that match a selector such as ``job="vllm"``."""

    def __init__(
        self,
        clock: SessionClock,
        server: Server,
        select: str = "",
        *,
        first_span_s: float = FIRST_SPAN_S,
    ) -> None:
        self._clock = clock
        self._api = PrometheusApi(server)
        self._select = select.strip().removeprefix("{").removesuffix("}").strip(", ")
        self._every_s = max(server.every_s, LOOK_EVERY_S)
        self._first_span_s = first_span_s
        self._fleet = Fleet(told_apart=bool(self._select))
        self._looked_s: float | None = None
        self._trouble: str | None = None
        self._failures = 0
        self._closed = asyncio.Event()

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, until closed; failures are told and tried again."""
        while not self._closed.is_set():
            readings = await self._look_or_say()
            for start in range(0, len(readings), CHUNK):
                yield readings[start : start + CHUNK]
                await asyncio.sleep(0)
            await self._wait()
        await self._api.close()

    async def close(self) -> None:
        """Look no more. Safe to call twice."""
        self._closed.set()
        await self._api.close()

    async def look(self) -> list[AnyReading]:
        """What is new since the last look, oldest first.

        Raises:
            QueryError: Prometheus did not answer; the next look makes up for it.
        """
        now, fleet = await self._api.now(), self._fleet
        span_s = self._first_span_s
        if self._looked_s is not None:
            span_s = min(now.unix_s - self._looked_s + LATE_S, LONGEST_SPAN_S)
        found = await self._samples(fleet.first_names(), span_s, now)
        await asyncio.to_thread(fleet.take_first, found)
        if (oldest_s := fleet.oldest_new_s) is not None:
            await self._read_the_rest(now, now.unix_s - oldest_s + 0.001)
        self._looked_s = now.unix_s
        return await asyncio.to_thread(fleet.readings, now, self._clock)

    async def _read_the_rest(self, now: ServerTime, span_s: float) -> None:
        """The other metrics of the scrapes that are new, one query each."""
        few = asyncio.Semaphore(AT_ONCE)

        async def read(names: Sequence[str]) -> None:
            async with few:
                found = await self._samples(names, span_s, now)
            await asyncio.to_thread(self._fleet.take, found)

        async with asyncio.TaskGroup() as queries:
            for names in self._fleet.other_names():
                queries.create_task(read(names))

    async def _samples(
        self, names: Iterable[str], span_s: float, now: ServerTime
    ) -> list[ScrapedSeries]:
        matchers = [f'__name__=~"{"|".join(names)}"', *filter(None, [self._select])]
        selector = "{" + ",".join(matchers) + "}"
        return await self._api.samples(selector, span_s, now.unix_s)

    async def _look_or_say(self) -> list[AnyReading]:
        try:
            readings = await self.look()
        except QueryError as error:
            return self._say(str(error))
        except ExceptionGroup as failed:
            errors, others = failed.split(QueryError)
            if errors is None or others is not None:
                raise
            return self._say(str(errors.exceptions[0]))
        self._failures, trouble = 0, self._trouble
        self._trouble = None
        if trouble is not None:
            readings.insert(0, self._note("Prometheus answers again"))
        new, self._api.warnings = self._api.warnings, set()
        warned = [self._note(f"Prometheus warns: {each}") for each in sorted(new)]
        return [*readings, *warned]

    def _say(self, trouble: str) -> list[AnyReading]:
        """Tell of a failure once; who was known is lost from the second on."""
        self._failures += 1
        readings: list[AnyReading] = []
        if trouble != self._trouble:
            self._trouble = trouble
            readings.append(self._note(trouble))
        if self._failures > 1:
            readings += self._fleet.lost(self._clock.now_ns(), trouble)
        return readings

    def _note(self, text: str) -> Note:
        return Note(t_ns=self._clock.now_ns(), kind=NoteKind.PROBE, text=text)

    async def _wait(self) -> None:
        wait_s = self._every_s
        if self._failures:
            wait_s = min(wait_s * 2 ** min(self._failures - 1, 10), LONGEST_WAIT_S)
            wait_s *= random.uniform(0.7, 1.0)  # noqa: S311 - to spread, not to hide
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._closed.wait()
