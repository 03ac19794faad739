"""What people should hear of a session: told once, whatever screen is in sight."""

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
"""The others have a place of their own: stages, the lost banner."""
MOST_AT_ONCE = 4
"""A fleet that is lost at once must not cover the screen."""


class NoteAnnouncer:
    """Finds the notes of a session that have not been announced yet."""

    def __init__(self) -> None:
        self._told_ns: int | None = None
        self.rings = False
        """There is an alert among what was last told."""
        self._trouble: str | None = None
        """What was last said of the record that is replayed."""

    def announcements(
        self, feed: Feed, present: Snapshot
    ) -> Iterator[tuple[SeverityLevel, str]]:
        """What to announce now, and how grave it is.

        What a recorded session tells is no news: its time line marks it. What is wrong
        with its record is said once; the time line says it in short while it is so.
        """
        if feed.state is not FeedState.REPLAYING:
            yield from (("warning", text) for text in self.told(present.notes))
            return
        trouble = feed.record.message if feed.record else None
        if trouble is not None and trouble != self._trouble:
            yield "error", trouble
        self._trouble = trouble

    def told(self, notes: Sequence[Note]) -> list[str]:
        """What to say of the news: a few of many, and how many more there are."""
        texts = [note.text for note in self.news(notes)]
        more = len(texts) - MOST_AT_ONCE
        rest = [f"and {more} more like these"] if more > 0 else []
        return texts[:MOST_AT_ONCE] + rest

    def news(self, notes: Sequence[Note]) -> list[Note]:
        """Notes that came since the last call and that people should hear of."""
        fresh = [n for n in notes if self._told_ns is None or n.t_ns > self._told_ns]
        if fresh:
            self._told_ns = max(note.t_ns for note in fresh)
        self.rings = any(note.kind is NoteKind.ALERT for note in fresh)
        return [note for note in fresh if note.kind in TOLD]
