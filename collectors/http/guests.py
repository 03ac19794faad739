"""Who is connected to a server of ours, and who has to go for somebody else."""

import asyncio
from collections.abc import Callable

AT_THE_DOOR = 16
"""Connections that may come before it is seen that they are too many: a backlog."""


class Guests:
    """At most so many connections at a time; for one more, another is closed.

    That is the one that has been silent for longest, else the one that is here for
    longest. So whoever asks as soon as it has come, as all do for whom the server is
    there, is never kept out by those that only wait.
    """

    def __init__(self, most: int, crowded: Callable[[], None]) -> None:
        """``crowded`` hears of each that had to go."""
        self._most = most
        self._crowded = crowded
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._asking: dict[asyncio.StreamWriter, None] = {}

    def came(self, guest: asyncio.StreamWriter) -> None:
        """Somebody has connected, and said nothing yet."""
        if len(self._silent) + len(self._asking) >= self._most:
            first = next(iter(self._silent or self._asking))
            self.left(first)
            first.transport.abort()
            self._crowded()
        self._silent[guest] = None

    def asked(self, guest: asyncio.StreamWriter) -> None:
        """It waits for an answer of ours."""
        if guest in self._silent:
            del self._silent[guest]
            self._asking[guest] = None

    def answered(self, guest: asyncio.StreamWriter) -> None:
        """We wait for what it asks next."""
        if guest in self._asking:
            del self._asking[guest]
            self._silent[guest] = None

    def send_away(self) -> None:
        """Close all there are."""
        for guest in (*self._silent, *self._asking):
            guest.transport.abort()

    def left(self, guest: asyncio.StreamWriter) -> None:
        """It is gone. Safe to call twice."""
        self._silent.pop(guest, None)
        self._asking.pop(guest, None)
