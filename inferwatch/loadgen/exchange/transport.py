"""What a transport is to the rest of the generator."""

import asyncio
from typing import Protocol

from inferwatch.loadgen.exchange.call import Call
from inferwatch.loadgen.exchange.receipts import Receipts
from inferwatch.loadgen.plan.plan import TransportKind


class UnreachableError(Exception):
    """There is nowhere to send anything; the message is fit to show."""


class Exchange(Protocol):
    """A call and the request that carries it, ready to be written."""

    @property
    def call(self) -> Call:
        """What it is about; complete when the exchange has ended."""
        ...

    def begin(self) -> asyncio.Future[None]:
        """Send now; the future is done when the call has ended, however it did.

        Cancelling it aborts the call and closes its connection.
        """
        ...


class Transport(Protocol):
    """As many connections as requests in flight, kept and used again."""

    kind: TransportKind
    receipts: Receipts

    async def open(self) -> None:
        """Do once what the first request should not have to wait for.

        Raises:
            UnreachableError: the server has no address.
        """
        ...

    def prepare(self, call: Call) -> Exchange:
        """Make the request before it is due."""
        ...

    def ensure(self, connections: int) -> bool:
        """So many requests are about to begin: make connections for them.

        True once they are all there, as far as they ever will be.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...
