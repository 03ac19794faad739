"""Where in a session reading can go on: between two readings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a session was read, in readings and in rows of requests.

    A request's events stand in one row, which began before later ones came: the rows
    that have events on both sides of the cursor are read again.
    """

    ordinal: int = -1
    """Of the last reading before it; ordinals begin at 0 or 1."""
    open_requests: tuple[int, ...] = ()
    """Ordinals of the rows of requests that have events before and after."""


START = Cursor()
