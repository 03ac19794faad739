"""A position between two readings of a session."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a session was read, in readings and in rows of requests.

    A request's events share one row, which is created with the first of them: rows with
    events on both sides of the cursor are read again.
    """

    ordinal: int = -1
    """Ordinal of the last reading before it; ordinals start at 0 or 1."""
    open_requests: tuple[int, ...] = ()
    """Ordinals of request rows with events before and after."""


START = Cursor()
