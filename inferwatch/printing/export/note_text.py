"""What a note says to whoever is sent a session, and may not be meant to see more."""

from collectors.contract.readings import Note, NoteKind
from embedded_engine.engine.logs import redacted


def note_text(note: Note) -> str:
    """The text of a note; of a loss the cause, below which the end of a log stands."""
    if note.kind is not NoteKind.LOST:
        return note.text
    return redacted(note.text.partition("\n")[0])
