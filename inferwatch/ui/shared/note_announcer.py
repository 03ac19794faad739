"""What people should hear of a session: told once, whatever screen is in sight."""

from collections.abc import Iterator, Sequence

from textual.notifications import SeverityLevel

from collectors.readings import Note, NoteKind
from inferwatch.feed import Feed, FeedState
from inferwatch.metrics.snapshot import Snapshot

TOLD = {
    NoteKind.PROBE,
    NoteKind.DROPPED,
    NoteKind.RECORDER,
    NoteKind.HOST,
    NoteKind.STOPPED,
}
"""The others have a place of their own: stages, the lost banner."""


class NoteAnnouncer:
    """Finds the notes of a session that have not been announced yet."""

    def __init__(self) -> None:
        self._told_ns: int | None = None
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
            yield from (("warning", note.text) for note in self.news(present.notes))
            return
        trouble = feed.record.message if feed.record else None
        if trouble is not None and trouble != self._trouble:
            yield "error", trouble
        self._trouble = trouble

    def news(self, notes: Sequence[Note]) -> list[Note]:
        """Notes that came since the last call and that people should hear of."""
        fresh = [n for n in notes if self._told_ns is None or n.t_ns > self._told_ns]
        if fresh:
            self._told_ns = max(note.t_ns for note in fresh)
        return [note for note in fresh if note.kind in TOLD]
