"""Looks up single steps and requests of a recorded session, in a thread."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import TypeVar

from collectors.contract.readings import MetricsPage, Step
from inferwatch.metrics.story.story import RequestStory
from inferwatch.metrics.story.telling import tell
from inferwatch.record.connections import reading
from inferwatch.record.lookup.record_lookup import MOST_PAGES, RecordLookup
from inferwatch.record.replay.replay_state import UNREADABLE, until_done

INSTRUCTIONS = 50_000
"""SQLite instructions between two checks whether the answer is still wanted."""
Answer = TypeVar("Answer")


async def ask_record(
    path: Path, session_id: str, question: Callable[[RecordLookup], Answer]
) -> Answer | None:
    """Return the answer of the record; None if it cannot be read.

    The file is open only during the query, so the recorder can leave one plain file.
    """
    answers: list[Answer] = []
    given_up = Event()

    def read() -> None:
        try:
            with reading(path) as connection:
                connection.set_progress_handler(given_up.is_set, INSTRUCTIONS)
                connection.execute("BEGIN")
                answers.append(question(RecordLookup(connection, session_id)))
        except (*UNREADABLE, sqlite3.Error):
            return  # an unreadable file is reported elsewhere

    await until_done(read, given_up.set)
    return answers[0] if answers else None


class RecordedRecall:
    """The :class:`inferwatch.feed.Recall` of a record alone."""

    def __init__(self, path: Path, session_id: str, now_ns: Callable[[], int]) -> None:
        self._path, self._session_id, self._now_ns = path, session_id, now_ns

    async def steps(
        self, start_ns: int, end_ns: int, source: str | None = None
    ) -> Sequence[Step]:
        """Return the steps that ended in a span, up to the moment shown."""
        end_ns = min(end_ns, self._now_ns())
        steps = await ask_record(
            self._path,
            self._session_id,
            lambda lookup: lookup.steps(start_ns, end_ns, source),
        )
        return steps or ()

    async def request(self, key: str) -> RequestStory | None:
        """Return the story of a request, as of the moment shown."""
        now_ns = self._now_ns()
        return await ask_record(
            self._path, self._session_id, lambda lookup: tell(lookup, key, now_ns)
        )

    async def metrics_pages(
        self, start_ns: int, end_ns: int, source: str
    ) -> Sequence[MetricsPage]:
        """Return a server's pages of a span, up to the moment shown."""
        end_ns = min(end_ns, self._now_ns())
        pages = await ask_record(
            self._path,
            self._session_id,
            lambda lookup: lookup.metrics_pages(start_ns, end_ns, source, MOST_PAGES),
        )
        return pages or ()
