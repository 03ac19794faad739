"""Limits the connections to one of our servers by closing the least useful one."""

import asyncio
from collections.abc import Callable

from collectors.contract.clock import NS_PER_S, monotonic_ns


class TokenBucket:
    """Tokens are taken for each event and refilled at a steady rate up to a limit."""

    def __init__(self, *, most: float, per_s: float) -> None:
        """The bucket starts full."""
        self._most, self._per_s = most, per_s
        self._filled_ns = monotonic_ns()
        self.left: float = most
        """Tokens as of the last refill; negative after an overdraft."""

    def refill(self) -> float:
        """Add the tokens due since the last refill, and return how many there are."""
        now_ns = monotonic_ns()
        more = (now_ns - self._filled_ns) / NS_PER_S * self._per_s
        self.left, self._filled_ns = min(self.left + more, self._most), now_ns
        return self.left

    def take(self, count: float = 1) -> None:
        """Take tokens; an overdraft is made up by later refills."""
        self.left -= count


AT_THE_DOOR = 16
"""Backlog of the listening socket: connections that may wait to be accepted."""


class ConnectionLimit:
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
        """Mark a connection as having sent a request that we have not answered yet."""
        if guest in self._silent:
            del self._silent[guest]
            self._asking[guest] = None

    def answered(self, guest: asyncio.StreamWriter) -> None:
        """Mark a connection as idle, after our response."""
        if guest in self._asking:
            del self._asking[guest]
            self._silent[guest] = None

    def send_away(self) -> None:
        for guest in (*self._silent, *self._asking):
            guest.transport.abort()

    def left(self, guest: asyncio.StreamWriter) -> None:
        """Remove a closed connection; safe to call twice."""
        self._silent.pop(guest, None)
        self._asking.pop(guest, None)
