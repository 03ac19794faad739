"""What watching itself reports: what is worth remembering, and when it looked."""

from collectors.readings.base import Reading
from collectors.readings.kinds import NoteKind


class Note(Reading, frozen=True, kw_only=True):
    """Something worth remembering at a moment, fit to show."""

    t_ns: int
    kind: NoteKind
    text: str
    count: int | None = None


class Tick(Reading, frozen=True, kw_only=True):
    """A moment at which a snapshot was taken; replay takes the same ones."""

    t_ns: int
