"""Looks up single steps and requests of a live session, in memory and in its record."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from collectors.contract.readings import (
    EngineInfo,
    EventKind,
    GpuSample,
    MetricsPage,
    Note,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
)
from collectors.servers.metrics_page import evenly
from inferwatch.live.pipeline import Pipeline
from inferwatch.live.recent_readings import RecentReadings
from inferwatch.metrics.story.request_readings import BEFORE, Name
from inferwatch.metrics.story.story import RequestStory
from inferwatch.metrics.story.telling import tell
from inferwatch.record.lookup.record_lookup import MOST_PAGES, MOST_STEPS, RecordLookup
from inferwatch.record.replay.recorded_recall import ask_record

BEGINNINGS = {EventKind.ARRIVED, EventKind.ADDED}
_EVER_NS = -(2**63)


class RecentLookup:
    """Looks up the readings in memory as of its creation; the record has earlier ones.

    It is created on the event loop's thread and can be used on any other.
    """

    def __init__(self, recent: RecentReadings, key: str) -> None:
        self._key = key
        self._requests = recent.requests
        self._events = recent.requests.of(key)
        self._steps = recent.steps.snapshot()
        self._engines, self._notes = [*recent.engines], [*recent.notes]
        self._samples = [*recent.samples]
        self._client = recent.client
        self.record: RecordLookup | None = None
        """Where to look for earlier readings; None when there is no record, or no
        need."""

    @property
    def is_enough(self) -> bool:
        """Whether memory holds all of the request, and enough steps before it."""
        if not self._begun:
            return False
        since_ns = self._steps.since_ns
        if since_ns is None:
            return True
        start_ns = min(each.t_ns for each in self._events)
        source = self._events[0].source
        return len(self._steps.between(since_ns, start_ns, source, BEFORE)) == BEFORE

    @property
    def since_ns(self) -> int | None:
        """Session time before which steps are missing; None when nothing is missing."""
        return self._steps.since_ns if self.record is None else None

    def events(self, key: str) -> list[RequestEvent]:
        if self._begun or self.record is None:
            return self._events
        return self.record.events(key) or self._events

    @property
    def _begun(self) -> bool:
        """Whether the first event of the request is in memory."""
        return any(each.kind in BEGINNINGS for each in self._events)

    def steps(
        self, start_ns: int, end_ns: int, source: str | None, most: int
    ) -> list[Step]:
        """Return the latest steps that ended after the start and up to the end."""
        latest = self._steps.between(start_ns, end_ns, source, most)
        since_ns, room = self._steps.since_ns, most - len(latest)
        if self.record is None or since_ns is None or since_ns <= start_ns or not room:
            return latest
        end_ns = min(since_ns, end_ns)
        return self.record.steps(start_ns, end_ns, source, room) + latest

    def steps_before(self, t_ns: int, source: str, most: int) -> list[Step]:
        """Return the latest steps that ended by a time, in order of their end."""
        since_ns = self._steps.since_ns
        latest = self._steps.between(_EVER_NS, t_ns, source, most)
        room = most - len(latest)
        if self.record is None or since_ns is None or not room:
            return latest
        return self.record.steps_before(min(since_ns, t_ns), source, room) + latest

    def names(
        self, source: str, ordinals: Collection[int], until_ns: int
    ) -> dict[int, Name]:
        """Return the names of requests by ordinal, as the engine numbered them then."""
        names = self._requests.names(source, ordinals, until_ns)
        left = set(ordinals) - set(names)
        if self.record is None or not left:
            return names
        return names | self.record.names(source, left, until_ns)

    def engines(self, source: str) -> list[EngineInfo]:
        return [each for each in self._engines if each.source == source]

    def client(
        self, external_ids: Collection[str]
    ) -> tuple[RequestRecord | None, TokenTimes | None]:
        """Return the load generator's record and token times of a request."""
        for name in external_ids:
            halves = self._client.get(name)
            if halves is not None:
                return halves.record, halves.times
        return (None, None) if self.record is None else self.record.client(external_ids)

    def gpu_samples(self, start_ns: int, end_ns: int) -> list[GpuSample]:
        """Return the samples of a span, in order of receipt."""
        samples = self._samples
        if self.record is not None and samples and samples[0].t_ns > start_ns:
            since_ns = samples[0].t_ns
            before = self.record.gpu_samples(start_ns, min(end_ns, since_ns - 1))
        else:
            before, since_ns = [], start_ns + 1
        here = [each for each in samples if since_ns <= each.t_ns <= end_ns]
        return before + here

    def notes(self, source: str) -> list[Note]:
        """Return notes of lost readings, the loss of the engine and compilations."""
        return [each for each in self._notes if each.source in {"", source}]


Answer = TypeVar("Answer")


class LiveRecall:
    """The :class:`inferwatch.feed.Recall` of a live session."""

    def __init__(self, pipeline: Pipeline, now_ns: Callable[[], int]) -> None:
        self._pipeline, self._now_ns = pipeline, now_ns

    async def steps(
        self, start_ns: int, end_ns: int, source: str | None = None
    ) -> Sequence[Step]:
        """Return the steps that ended in a span, up to the moment shown."""
        end_ns = min(end_ns, self._now_ns())
        recent = self._pipeline.recent.steps.snapshot()
        latest = recent.between(start_ns, end_ns, source, MOST_STEPS)
        before_ns, room = recent.since_ns, MOST_STEPS - len(latest)
        if before_ns is None or before_ns <= start_ns or not room:
            return latest
        before = await self._ask(
            lambda lookup: lookup.steps(start_ns, min(before_ns, end_ns), source, room)
        )
        return [*(before or ()), *latest]

    async def request(self, key: str) -> RequestStory | None:
        """Return the story of a request, as of the moment shown."""
        now_ns = self._now_ns()
        lookup = RecentLookup(self._pipeline.recent, key)

        def tell_story(record: RecordLookup | None) -> RequestStory | None:
            lookup.record = record
            return tell(lookup, key, now_ns)

        if not lookup.is_enough and self._is_recorded:
            story = await self._ask(tell_story)
            if story is not None:
                return story
            lookup.record = None
        return await asyncio.to_thread(tell_story, None)

    async def metrics_pages(
        self, start_ns: int, end_ns: int, source: str
    ) -> Sequence[MetricsPage]:
        """Return a server's pages of a span, up to the moment shown."""
        end_ns = min(end_ns, self._now_ns())
        recent = self._pipeline.recent.pages
        latest = recent.between(start_ns, end_ns, source)
        since_ns = recent.since_ns(source)
        before: Sequence[MetricsPage] | None = ()
        if since_ns is not None and start_ns < since_ns:
            before = await self._ask(
                lambda lookup: lookup.metrics_pages(
                    start_ns, min(since_ns - 1, end_ns), source, MOST_PAGES
                )
            )
        return evenly([*(before or ()), *latest], MOST_PAGES)

    @property
    def _is_recorded(self) -> bool:
        record = self._pipeline.record
        return record is not None and bool(record.session_id)

    async def _ask(self, question: Callable[[RecordLookup], Answer]) -> Answer | None:
        record, path = self._pipeline.record, self._pipeline.database
        if record is None or path is None or not record.session_id:
            return None
        return await ask_record(path, record.session_id, question)
