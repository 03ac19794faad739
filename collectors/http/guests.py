"""Limits the connections to one of our servers by closing the least useful one."""

import asyncio
from collections.abc import Callable

AT_THE_DOOR = 16
"""Backlog of the listening socket: connections that may wait to be accepted."""


class Guests:
    """A bounded set of connections; beyond the limit, an older one is aborted.

    The connection idle for longest is aborted first, else the oldest one. Clients that
    send their request at once, as intended ones do, are thus never crowded out by idle
    ones.
    """

    def __init__(self, most: int, crowded: Callable[[], None]) -> None:
        """``crowded`` is called whenever a connection is aborted."""
        self._most = most
        self._crowded = crowded
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._asking: dict[asyncio.StreamWriter, None] = {}

    def came(self, guest: asyncio.StreamWriter) -> None:
        """Add a connection, which has sent no request yet."""
        if len(self._silent) + len(self._asking) >= self._most:
            first = next(iter(self._silent or self._asking))
            self.left(first)
            first.transport.abort()
            self._crowded()
        self._silent[guest] = None

    def asked(self, guest: asyncio.StreamWriter) -> None:
        """Mark a connection as waiting for our response."""
        if guest in self._silent:
            del self._silent[guest]
            self._asking[guest] = None

    def answered(self, guest: asyncio.StreamWriter) -> None:
        """Mark a connection as idle again."""
        if guest in self._asking:
            del self._asking[guest]
            self._silent[guest] = None

    def send_away(self) -> None:
        """Abort all connections."""
        for guest in (*self._silent, *self._asking):
            guest.transport.abort()

    def left(self, guest: asyncio.StreamWriter) -> None:
        """Remove a closed connection; safe to call twice."""
        self._silent.pop(guest, None)
        self._asking.pop(guest, None)
