"""A place in a session, between two readings, from which reading can go on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """After a reading; requests that live then have rows that began before it."""

    ordinal: int = -1
    """Of the last reading before it; ordinals begin at 0 or 1."""
    open_requests: tuple[int, ...] = ()
    """Ordinals of the rows of requests that have events before and after."""


START = Place()
