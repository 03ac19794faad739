"""A collector that reads a fleet from the Prometheus server that scrapes it.

The number of queries does not depend on the fleet's size. Each asks for the raw samples
since the last look, so every scrape becomes one reading with its own time, none is read
twice and none is missed.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from msgspec.structs import replace

from collectors.contract.clock import SessionClock
from collectors.contract.collector import Collector
from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineSample,
    Note,
    NoteKind,
)
from collectors.http.server import Server
from collectors.servers.prometheus_api import (
    PrometheusApi,
    QueryError,
    ScrapedSeries,
    ServerTime,
)
from collectors.servers.prometheus_fleet import Fleet

LOOK_EVERY_S = 5.0
"""Scrapes are 15 to 60 s apart, so a shorter interval would gain nothing."""
FIRST_SPAN_S = 75.0
"""Span of the first look: enough for a rate at once."""
LATE_S = 60.0
"""Longest delay between a scrape and its storage in Prometheus."""
LONGEST_SPAN_S = 1800.0
"""How far back is read after an outage."""
LONGEST_WAIT_S = 60.0
AT_ONCE = 3
"""Concurrent queries: others use the server, too."""
PAST_S = 1800.0
PAST_PATIENCE_S = 2.0
"""Time limit for the past, since the present matters more."""
NAMED = 5
CHUNK = 100
"""Readings yielded in one batch, as the UI shares the thread."""


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
        self._server, self.api = server, PrometheusApi(server)
        self._select = select.strip().removeprefix("{").removesuffix("}").strip(", ")
        self._every_s = max(server.every_s, LOOK_EVERY_S)
        self._first_span_s = first_span_s
        self._fleet = Fleet(told_apart=bool(self._select))
        self._looked_s: float | None = None
        self._trouble: str | None = None
        self._why_nobody: str | None = None
        """The last reported reason why no engine is known."""
        self._failures = 0
        self._closed = asyncio.Event()

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, until closed; failures are reported and retried."""
        while not self._closed.is_set():
            readings = await self._look_or_say()
            for start in range(0, len(readings), CHUNK):
                yield readings[start : start + CHUNK]
                await asyncio.sleep(0)
            await self._wait()
        await self.api.close()

    async def close(self) -> None:
        """Stop reading; safe to call twice."""
        self._closed.set()
        await self.api.close()

    async def look(self) -> list[AnyReading]:
        """New readings since the last look, oldest first.

        Raises:
            QueryError: a query failed; the next look makes up for it.
        """
        now, fleet = await self.api.now(), self._fleet
        span_s = self._first_span_s
        if self._looked_s is not None:
            span_s = min(now.unix_s - self._looked_s + LATE_S, LONGEST_SPAN_S)
        series = await self._samples(fleet.first_names(), span_s, now)
        await asyncio.to_thread(fleet.take_first, series, now.unix_s)
        if (oldest_s := fleet.oldest_new_s) is not None:
            await self._read_the_rest(now, now.unix_s - oldest_s + 0.001)
        self._looked_s = now.unix_s
        return await asyncio.to_thread(fleet.readings, now, self._clock)

    @property
    def sources(self) -> list[str]:
        return [each.source for each in self._fleet.engines.values()]

    def engine_at(self, url: str) -> Mapping[str, str] | None:
        """Labels of the engine at an address; None if several or none may be meant.

        Prometheus may know it by another host name, so the only engine on that port is
        taken, else the only engine there is.
        """
        parts = urlsplit(url)
        port = str(parts.port or (443 if parts.scheme == "https" else 80))
        every = [each.labels for each in self._fleet.engines.values()]
        there = f"{parts.hostname}:{port}"
        at = [each for each in every if each.get("instance") == there]
        on = [each for each in every if each.get("instance", "").endswith(f":{port}")]
        for matches in (at, on, every):
            if matches:
                return matches[0] if len(matches) == 1 else None
        return None

    async def _read_the_rest(self, now: ServerTime, span_s: float) -> None:
        """Read the other metrics of the new scrapes, in one query per group."""
        few = asyncio.Semaphore(AT_ONCE)

        async def read(names: Sequence[str]) -> None:
            async with few:
                series = await self._samples(names, span_s, now)
            await asyncio.to_thread(self._fleet.take, series)

        async with asyncio.TaskGroup() as queries:
            for names in self._fleet.other_names():
                queries.create_task(read(names))

    async def _samples(
        self, names: Iterable[str], span_s: float, now: ServerTime
    ) -> list[ScrapedSeries]:
        matchers = [f'__name__=~"{"|".join(names)}"', *filter(None, [self._select])]
        selector = "{" + ",".join(matchers) + "}"
        return await self.api.samples(selector, span_s, now.unix_s)

    async def _look_or_say(self) -> list[AnyReading]:
        try:
            readings = await self.look()
        except (QueryError, ExceptionGroup) as error:
            return self._say(_first(error))
        self._failures, trouble = 0, self._trouble
        self._trouble = None
        if trouble is not None:
            readings.insert(0, self._note("Prometheus answers again"))
        if not self._fleet.engines:
            which = f" that match {self._select}" if self._select else ""
            readings += self._nobody(f"it knows no engines{which}")
        elif self._why_nobody is not None:
            self._why_nobody = None
            source, t_ns = self._server.source, self._clock.now_ns()
            readings.insert(0, Contact(source=source, t_ns=t_ns, answers=True))
        new, self.api.warnings = self.api.warnings, set()
        warned = [self._note(f"Prometheus warns: {each}") for each in sorted(new)]
        return [*readings, *warned]

    def _say(self, trouble: str) -> list[AnyReading]:
        """Report a failure once; from the second on, known engines count as lost."""
        self._failures += 1
        readings: list[AnyReading] = []
        if trouble != self._trouble and self._fleet.engines:
            self._trouble = trouble
            readings.append(self._note(trouble))
        if self._failures > 1:
            readings += self._fleet.lost(self._clock.now_ns(), trouble)
        return [*readings, *self._nobody(trouble)]

    def _nobody(self, why: str) -> list[AnyReading]:
        """Report Prometheus itself as not answering while no engine is known."""
        if self._fleet.engines or why == self._why_nobody:
            return []
        self._why_nobody = why
        source, t_ns = self._server.source, self._clock.now_ns()
        return [Contact(source=source, t_ns=t_ns, answers=False, why=why)]

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


class WithPast:
    """Puts the last half hour from Prometheus before a server's own collector."""

    def __init__(
        self,
        clock: SessionClock,
        server: Server,
        prometheus: Server,
        select: str,
        live: Collector,
    ) -> None:
        self._clock = clock
        self._server = server
        self._prometheus = prometheus
        self._select = select
        self._live = live

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """The last half hour, if it arrives in time, then the collector's readings.

        Raises:
            CollectorError: the collector failed.
        """
        try:
            async with asyncio.timeout(PAST_PATIENCE_S):
                past = await self._past()
        except TimeoutError:
            past = [self._note(f"no past: no answer in {PAST_PATIENCE_S:g} s")]
        except (QueryError, ExceptionGroup) as error:
            past = [self._note(f"no past: {_first(error)}")]
        for start in range(0, len(past), CHUNK):
            yield past[start : start + CHUNK]
            await asyncio.sleep(0)
        async for batch in self._live.batches():
            yield batch

    async def close(self) -> None:
        await self._live.close()

    async def _past(self) -> list[AnyReading]:
        finder = PrometheusReader(self._clock, self._prometheus, self._select)
        try:
            await finder.look()
        finally:
            await finder.close()
        engine = finder.engine_at(self._server.url)
        if engine is None:
            names = ", ".join(finder.sources[:NAMED]) or "no engine"
            return [self._note(f"no past: Prometheus knows {names}, and not this")]
        exactly = ",".join(f"{key}={json.dumps(engine[key])}" for key in engine)
        reader = PrometheusReader(
            self._clock, self._prometheus, exactly, first_span_s=PAST_S
        )
        try:
            readings = await reader.look()
        finally:
            await reader.close()
        samples = [
            replace(each, source=self._server.source)
            for each in readings
            if isinstance(each, EngineSample)
        ]
        text = f"{len(samples)} samples of the past are Prometheus's"
        return [*samples, self._note(text)]

    def _note(self, text: str) -> Note:
        source, now_ns = self._server.source, self._clock.now_ns()
        return Note(source=source, t_ns=now_ns, kind=NoteKind.STAGE, text=text)


def _first(error: QueryError | ExceptionGroup) -> str:
    """The message of the first failed query."""
    if isinstance(error, QueryError):
        return str(error)
    failed, others = error.split(QueryError)
    if failed is None or others is not None:
        raise error
    return _first(failed.exceptions[0])
