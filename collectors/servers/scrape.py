"""Scrapes one server's metrics at an interval, however it responds."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import httpx
import msgspec

from collectors.contract.clock import NS_PER_S, DistantClock, SessionClock
from collectors.contract.collector import CollectorError
from collectors.contract.readings import (
    AnyReading,
    Contact,
    EngineSample,
    EngineSettings,
    ServerInfo,
)
from collectors.http.bounded_get import MOST_BYTES, NoAnswerError, TimedResponse, get
from collectors.http.http_client import ProxyError
from collectors.http.server import Server, ServerError
from collectors.servers.exposition import Exposition, ExpositionError, ScrapedPage
from collectors.servers.families import IDENTIFY, by_answers, by_metrics
from collectors.servers.families.family import Names, ServerFacts, ServerFamily
from collectors.servers.local_model import local_config
from collectors.servers.metrics_page import PageKeeper

SLOW_S = 2.0
"""Slower responses are reported."""
GIVE_UP_S = 10.0
"""Time limit for a response."""
LONGEST_PAUSE_S = 10.0
"""Longest pause between attempts to reach a server."""
FIRST_PAUSE_S = 0.3
"""Pause between the first two scrapes, so that rates are available early."""
SPREAD_S = 0.2
"""Spread of the first scrape among many servers."""
INFO_EVERY_S = 60.0
INFO_TIMEOUT_S = 3.0
INFO_BYTES = 1_000_000
METRICS_AGAIN_S = 60.0
"""Pause before a server without metrics is asked for them again."""
ALIVE_EVERY_S = 5.0
"""How often it is checked for being alive in the meantime."""
SEVERAL = "several servers answer here in turn: attach to each by its own address"
TURNS = 20
"""Consecutive responses of one server after which others are forgotten."""
MOST_LIVES = 100
LARGE = 250_000
"""Pages longer than this are parsed in a thread."""
NO_METRICS = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.NOT_IMPLEMENTED,
}
NOBODY_BEHIND = {
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
"""A proxy answered, the server did not."""


@dataclass(slots=True)
class _Life:
    """State of one run of a server, which ends when its counters are reset."""

    family: ServerFamily | None = None
    exposition: Exposition | None = None
    began: str | None = None
    """Start time in the form the server reports it."""
    started_s: float | None = None
    last: dict[tuple[str, str | None], EngineSample] = field(default_factory=dict)
    has_metrics: bool = True
    metrics_due_ns: int = 0
    """When to ask for metrics again, if it has none."""
    info_due_ns: int = 0

    def is_over(self, scraped: ScrapedPage, began: str | None) -> bool:
        """Whether a scrape comes from another process or a restarted one."""
        if None not in {self.began, began}:
            return self.began != began
        return any(
            went_back(self.last[key], sample)
            for sample in scraped.samples
            if (key := (sample.rank, sample.model)) in self.last
        )

    def follow(self, scraped: ScrapedPage, began: str | None) -> None:
        """Store a scrape as the latest."""
        self.began = began
        self.started_s = scraped.started_s
        self.last |= {(each.rank, each.model): each for each in scraped.samples}


class ServerScraper:
    """A collector of what one server reports over HTTP; it retries for ever."""

    def __init__(self, clock: SessionClock, server: Server) -> None:
        self._clock = clock
        self.server = server
        self._closed = asyncio.Event()
        self._phase = random.random()  # noqa: S311 - no secret
        """Phase of its scrapes within the interval, so that servers take turns."""
        self._failures = 0
        """Consecutive failures."""
        self._life = _Life()
        self._last_contact: Contact | None = None
        self._info: ServerInfo | None = None
        self._lives = deque[str](maxlen=MOST_LIVES)
        """Start times of the processes that answered at this address."""
        self._turns = 0
        """Responses left until other servers at this address are forgotten."""
        self._strange = 0
        """Consecutive responses of other servers."""
        self._round_trips = deque[int](maxlen=60)
        self._distant = DistantClock()
        self._pages = PageKeeper(server.source)

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """The samples of each scrape, and changes of anything else, until closed.

        Raises:
            CollectorError: no client can be created for the server.
        """
        try:
            client = self.server.client(timeout_s=None)
        except (ServerError, ProxyError) as error:
            raise CollectorError(f"{self.server.source}: {error}") from error
        async with client:
            pause_s = _jitter(SPREAD_S)
            while not await self._pause(pause_s):
                fresh = not self._answered
                async for readings in self._turn(client):
                    if readings:
                        yield readings
                pause_s = self._next_pause(fresh=fresh)

    async def _turn(
        self, client: httpx.AsyncClient
    ) -> AsyncIterator[Sequence[AnyReading]]:
        """Scrape once, and report a slow response while waiting."""
        asking = asyncio.create_task(self._ask(client))
        try:
            if not (await asyncio.wait({asking}, timeout=SLOW_S))[0]:
                yield self._contact(
                    answers=self._answered, why=f"slow: no answer for {SLOW_S:g} s"
                )
            try:
                yield await asking
            except NoAnswerError as error:
                self._failures += 1
                yield self._contact(answers=_answers(error), why=str(error))
                return
        finally:
            asking.cancel()
        self._failures = 0
        if self._clock.now_ns() >= self._life.info_due_ns:
            yield await self._look(client)

    @property
    def _answered(self) -> bool:
        return self._last_contact is not None and self._last_contact.answers

    async def close(self) -> None:
        self._closed.set()

    async def _pause(self, seconds: float) -> bool:
        """Sleep; True once closed."""
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True

    def _next_pause(self, *, fresh: bool) -> float:
        every_s = self.server.every_s
        if self._failures:
            pause_s = every_s * 2 ** min(self._failures - 1, 10)
            return _jitter(min(pause_s, max(LONGEST_PAUSE_S, every_s)))
        family = self._life.family
        if not self._life.has_metrics and not (family and family.live):
            return max(every_s, ALIVE_EVERY_S)
        if fresh:
            return min(FIRST_PAUSE_S, every_s)
        now_s = self._clock.now_ns() / NS_PER_S
        return every_s - (now_s - self._phase * every_s) % every_s

    async def _get(
        self,
        client: httpx.AsyncClient,
        path: str,
        timeout_s: float,
        most_bytes: int = MOST_BYTES,
    ) -> TimedResponse:
        answer = await get(client, path, timeout_s=timeout_s, most_bytes=most_bytes)
        self._round_trips.append(answer.began_ns - answer.sent_ns)
        date = answer.headers.get("date")
        self._distant.hear(date, answer.sent_ns, answer.began_ns)
        return answer

    async def _ask(self, client: httpx.AsyncClient) -> list[AnyReading]:
        """Readings of one scrape.

        Raises:
            NoAnswerError: there was no usable response.
        """
        now_ns = self._clock.now_ns()
        if self._life.has_metrics or now_ns >= self._life.metrics_due_ns:
            try:
                return await self._scrape(client)
            except NoAnswerError as error:
                if error.status not in NO_METRICS:
                    raise
                self._life.has_metrics = False
                self._life.metrics_due_ns = now_ns + int(METRICS_AGAIN_S * NS_PER_S)
        return await self._live(client)

    async def _live(self, client: httpx.AsyncClient) -> list[AnyReading]:
        """Readings of a server without metrics: little more than that it is alive."""
        family = self._life.family
        if family is None or family.live is None:
            await self._json(client, "/v1/models")
            return self._contact(answers=True)
        path, read = family.live
        before_ns = self._clock.now_ns()
        try:
            fields = read(await self._json(client, path))
        except NoAnswerError as error:
            if error.status not in NO_METRICS:
                raise
            fields = {}
        after_ns = self._clock.now_ns()
        contact = self._contact(answers=True)
        if not fields:
            return contact
        half_ns = (after_ns - before_ns) // 2
        sample = EngineSample(
            source=self.server.source,
            t_ns=before_ns + half_ns,
            uncertainty_ns=half_ns + 1,
            **fields,
        )
        return [*contact, sample]

    async def _scrape(self, client: httpx.AsyncClient) -> list[AnyReading]:
        answer = await self._get(client, "/metrics", GIVE_UP_S)
        took_ns = answer.began_ns - answer.sent_ns
        text = answer.text
        if _is_page(answer):
            raise NoAnswerError("a web page, not metrics", HTTPStatus.NOT_FOUND)
        self._life.has_metrics = True
        t_ns = answer.sent_ns + took_ns // 2 - self._clock.start_ns
        if self._life.exposition is None:
            family = by_metrics(text)
            if family is None:
                return [*self._contact(answers=True), *self._page(text, t_ns)]
            self._life.exposition = Exposition(family)
            self._life.info_due_ns = 0
        read = partial(
            self._life.exposition.read,
            text,
            t_ns=t_ns,
            uncertainty_ns=took_ns // 2 + 1,
            source=self.server.source,
        )
        try:
            scraped = await asyncio.to_thread(read) if len(text) > LARGE else read()
        except ExpositionError as error:
            raise NoAnswerError(str(error), HTTPStatus.OK) from error
        header = self._life.exposition.family.started_header
        began = answer.headers.get(header) if header else scraped.started_s
        samples = self._samples(scraped, None if began is None else str(began), took_ns)
        return [*samples, *self._page(text, t_ns)]

    def _page(self, text: str, t_ns: int) -> list[AnyReading]:
        """The whole page as a reading, now and then."""
        page = self._pages.take(text, t_ns)
        return [] if page is None else [page]

    def _samples(
        self, scraped: ScrapedPage, began: str | None, took_ns: int
    ) -> list[AnyReading]:
        if self._is_another(began):
            return self._contact(answers=True, why=SEVERAL)
        restarted = self._life.is_over(scraped, began)
        if restarted:
            self._life = _Life(self._life.family, self._life.exposition)
        if began is not None and began != self._life.began:
            self._lives.append(began)
        self._life.follow(scraped, began)
        wrong = [f"left out: {each}" for each in scraped.wrong[:3]]
        if self._turns:
            wrong.append(SEVERAL)
        if took_ns > SLOW_S * NS_PER_S:
            wrong.append(f"slow: it takes over {SLOW_S:g} s")
        why = "; ".join(wrong) or None
        contact = self._contact(answers=True, why=why, restarted=restarted)
        return [*contact, *scraped.samples]

    def _is_another(self, began: str | None) -> bool:
        """Whether an earlier server answered, so that several share this address."""
        if began == self._life.began:
            self._turns = max(self._turns - 1, 0)
            self._strange = 0
            return False
        self._strange += 1
        if began not in self._lives or self._strange > TURNS:
            return False
        self._turns = TURNS
        return True

    def _contact(
        self, *, answers: bool, why: str | None = None, restarted: bool = False
    ) -> list[AnyReading]:
        """A Contact, if it differs from the last one."""
        last, trip_ns = self._last_contact, min(self._round_trips, default=None)
        if last is not None and not restarted:
            same = (last.answers, last.why) == (answers, why)
            if same and _is_similar(last.round_trip_ns, trip_ns):
                return []
        if not answers:
            self._life.info_due_ns = 0
        self._last_contact = Contact(
            t_ns=self._clock.now_ns(),
            source=self.server.source,
            answers=answers,
            why=why,
            restarted=restarted,
            round_trip_ns=trip_ns,
        )
        return [self._last_contact]

    async def _look(self, client: httpx.AsyncClient) -> list[AnyReading]:
        """The ServerInfo and model configuration, if they changed."""
        life = self._life
        life.info_due_ns = self._clock.now_ns() + int(INFO_EVERY_S * NS_PER_S)
        if life.exposition:
            family = life.exposition.family
            answers = await self._answers(client, family.asks)
        else:
            answers = await self._answers(client, IDENTIFY)
            kind = by_answers(answers)
            if kind is None:
                return []
            family = kind
            answers |= await self._answers(client, family.asks)
        life.family = family
        labels = life.exposition.labels if life.exposition else None
        facts = family.describe(answers, labels)
        apart = self._distant.apart()
        info = ServerInfo(
            t_ns=self._clock.now_ns(),
            source=self.server.source,
            name=self.server.source,
            family=family.name,
            url=self.server.shown_url,
            uds=self.server.uds,
            version=facts.version,
            models=facts.models or sorted({model for _, model in life.last if model}),
            max_model_len=facts.max_model_len,
            started_wall_ns=_ns(life.started_s),
            num_kv_blocks=facts.num_kv_blocks,
            kv_block_tokens=facts.kv_block_tokens,
            insecure=self.server.insecure,
            settings=facts.settings | ({"clock": apart} if apart else {}),
            advice=facts.advice,
        )
        if self._info and msgspec.structs.replace(self._info, t_ns=info.t_ns) == info:
            return []
        self._info = info
        # In a thread, because the model's directory may be on a slow disk.
        batch = await asyncio.to_thread(lambda: list(self._model_readings(facts, info)))
        return [info, *batch]

    def _model_readings(
        self, facts: ServerFacts, info: ServerInfo
    ) -> Iterator[AnyReading]:
        """The server's flags, and its model's configuration if that is on this host."""
        if not facts.flags:
            return
        t_ns, source = info.t_ns, info.source
        yield EngineSettings(t_ns=t_ns, source=source, settings=facts.flags)
        kv_dtype = facts.flags.get("kv_cache_dtype")
        if facts.root is None or not self.server.is_here:
            return
        text = kv_dtype if isinstance(kv_dtype, str) else None
        config = local_config(facts.root, t_ns=t_ns, source=source, kv_dtype=text)
        if config is not None:
            yield config

    async def _answers(
        self, client: httpx.AsyncClient, asks: Sequence[Names]
    ) -> dict[str, Any]:
        """JSON responses by path; paths that fail are missing."""

        async def one(paths: Names) -> object:
            for path in paths:
                with suppress(NoAnswerError):
                    return await self._json(client, path)
            return None

        answers = await asyncio.gather(*map(one, asks))
        return {
            paths[0]: answer
            for paths, answer in zip(asks, answers, strict=True)
            if answer is not None
        }

    async def _json(self, client: httpx.AsyncClient, path: str) -> Any:  # noqa: ANN401
        """The JSON response at a path."""
        answer = await self._get(client, path, INFO_TIMEOUT_S, INFO_BYTES)
        try:
            return msgspec.json.decode(answer.body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            what = "a web page" if _is_page(answer) else "something else"
            why = f"{what} answers there, no engine"
            raise NoAnswerError(why, answer.status) from error


def _is_similar(one: int | None, other: int | None) -> bool:
    """Whether two round-trip times are close enough not to be reported again."""
    if one is None or other is None:
        return one is other
    return 0.7 < other / max(one, 1) < 1.5


def _is_page(answer: TimedResponse) -> bool:
    content_type = answer.headers.get("content-type", "")
    return "html" in content_type or answer.body.lstrip()[:1] == b"<"


def _answers(error: NoAnswerError) -> bool:
    """Whether the server responded to a request that failed."""
    return error.status is not None and error.status not in NOBODY_BEHIND


def went_back(before: EngineSample, after: EngineSample) -> bool:
    """Whether a counter fell, so the server restarted."""
    pairs = [
        (before.prompt_tokens, after.prompt_tokens),
        (before.output_tokens, after.output_tokens),
        (before.prefix_queries, after.prefix_queries),
        (before.preemptions, after.preemptions),
        *((then, after.finished.get(how)) for how, then in before.finished.items()),
        *(
            (then.counts[-1], now.counts[-1])
            for key, then in before.histograms.items()
            if (now := after.histograms.get(key))
        ),
    ]
    return any(
        then is not None and now is not None and now < then for then, now in pairs
    )


def _ns(seconds: float | None) -> int | None:
    """Unix time in nanoseconds, rounded to the microsecond a float holds today."""
    return None if seconds is None else round(seconds * 1e6) * 1_000


def _jitter(seconds: float) -> float:
    """A random part of the pause, so that many servers are not scraped at once."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
