"""Which notes are news: told once, whatever screen is in sight."""

from collections.abc import Sequence

from collectors.readings import Note, NoteKind

TOLD = {NoteKind.PROBE, NoteKind.DROPPED, NoteKind.RECORDER, NoteKind.STOPPED}
"""The others have a place of their own: stages, the lost banner."""


class NoteAnnouncer:
    """Remembers how far it has told."""

    def __init__(self) -> None:
        self._told_ns: int | None = None

    def news(self, notes: Sequence[Note]) -> list[Note]:
        """Notes that came since the last call and that people should hear of."""
        fresh = [n for n in notes if self._told_ns is None or n.t_ns > self._told_ns]
        if fresh:
            self._told_ns = max(note.t_ns for note in fresh)
        return [note for note in fresh if note.kind in TOLD]
