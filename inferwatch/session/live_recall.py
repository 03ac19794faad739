"""Single steps and requests of a live session: from memory, before that its record."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from collectors.readings import Step
from inferwatch.metrics.causes.story import RequestStory
from inferwatch.replay.recorded_recall import ask_record
from inferwatch.session.pipeline import Pipeline
from inferwatch.storage.record_lookup import MOST_STEPS, RecordLookup

Found = TypeVar("Found")


class LiveRecall:
    """A :class:`inferwatch.feed.Recall` of a session that goes on."""

    def __init__(self, pipeline: Pipeline, now_ns: Callable[[], int]) -> None:
        self._pipeline, self._now_ns = pipeline, now_ns

    async def steps(
        self, start_ns: int, end_ns: int, source: str | None = None
    ) -> Sequence[Step]:
        """Those that ended in a span, up to the moment that is shown."""
        end_ns = min(end_ns, self._now_ns())
        recent = self._pipeline.recent.steps
        cut_ns = recent.since_ns
        latest = recent.between(start_ns, end_ns, source)
        room = MOST_STEPS - len(latest)
        if cut_ns is None or cut_ns <= start_ns or not room:
            return latest
        before = await self._ask(
            lambda lookup: lookup.steps(start_ns, min(cut_ns, end_ns), source, room)
        )
        return [*(before or ()), *latest]

    async def request(self, key: str) -> RequestStory | None:
        """The story of a request, as of the moment that is shown."""
        del key
        return None

    async def _ask(self, question: Callable[[RecordLookup], Found]) -> Found | None:
        record, path = self._pipeline.record, self._pipeline.database
        if record is None or path is None or not record.session_id:
            return None
        return await ask_record(path, record.session_id, question)
