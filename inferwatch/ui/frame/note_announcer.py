"""Notes of a session that are announced once, on any screen."""

from collections.abc import Iterator, Sequence

from textual.notifications import SeverityLevel

from collectors.contract.readings import Note, NoteKind
from inferwatch.feed import Feed, FeedState
from inferwatch.metrics.snapshot import Snapshot

TOLD = {
    NoteKind.PROBE,
    NoteKind.DROPPED,
    NoteKind.RECORDER,
    NoteKind.HOST,
    NoteKind.STOPPED,
    NoteKind.ALERT,
}
"""Other kinds have a place of their own on the screen."""
MOST_AT_ONCE = 4
"""Losing a whole fleet must not cover the screen."""


class NoteAnnouncer:
    """Finds the notes of a session that were not announced yet."""

    def __init__(self) -> None:
        self._told_ns: int | None = None
        self.rings = False
        """The latest notes include an alert."""
        self._trouble: str | None = None
        """The last announced problem of a replayed record."""

    def announcements(
        self, feed: Feed, present: Snapshot
    ) -> Iterator[tuple[SeverityLevel, str]]:
        """Yield severity and text of what to announce now.

        Notes of a recorded session are marks on its time line instead. A problem of its
        record is announced once and stays on the time line.
        """
        if feed.state is not FeedState.REPLAYING:
            yield from (("warning", text) for text in self.told(present.notes))
            return
        trouble = feed.record.message if feed.record else None
        if trouble is not None and trouble != self._trouble:
            yield "error", trouble
        self._trouble = trouble

    def told(self, notes: Sequence[Note]) -> list[str]:
        """Return the texts of the first new notes, and how many more there are."""
        texts = [note.text for note in self.news(notes)]
        more = len(texts) - MOST_AT_ONCE
        rest = [f"and {more} more like these"] if more > 0 else []
        return texts[:MOST_AT_ONCE] + rest

    def news(self, notes: Sequence[Note]) -> list[Note]:
        """Return the notes since the last call that are to be announced."""
        fresh = [n for n in notes if self._told_ns is None or n.t_ns > self._told_ns]
        if fresh:
            self._told_ns = max(note.t_ns for note in fresh)
        self.rings = any(note.kind is NoteKind.ALERT for note in fresh)
        return [note for note in fresh if note.kind in TOLD]
