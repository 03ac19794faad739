"""Looks up single steps and requests of a live session, in memory and in its record."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from collectors.contract.readings import Step
from inferwatch.live.past.recent_lookup import RecentLookup
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.story.story import RequestStory
from inferwatch.metrics.story.telling import tell
from inferwatch.record.lookup.record_lookup import MOST_STEPS, RecordLookup
from inferwatch.record.replay.recorded_recall import ask_record

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

    @property
    def _is_recorded(self) -> bool:
        record = self._pipeline.record
        return record is not None and bool(record.session_id)

    async def _ask(self, question: Callable[[RecordLookup], Answer]) -> Answer | None:
        record, path = self._pipeline.record, self._pipeline.database
        if record is None or path is None or not record.session_id:
            return None
        return await ask_record(path, record.session_id, question)
