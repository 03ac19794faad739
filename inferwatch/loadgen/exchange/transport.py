"""The transport protocol, and the choice of a transport for a plan."""

import asyncio
import sys
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from collectors.http.http_client import goes_direct
from inferwatch.loadgen.exchange.call import Call
from inferwatch.loadgen.exchange.httpx_transport import HttpxTransport
from inferwatch.loadgen.exchange.raw_transport import RawTransport
from inferwatch.loadgen.exchange.receive_stamps import ReceiveStamps
from inferwatch.loadgen.plan.plan import LoadPlan, TransportKind


class Exchange(Protocol):
    """A call with its serialised request."""

    @property
    def call(self) -> Call:
        """The call, which is complete when the exchange has ended."""
        ...

    def begin(self) -> asyncio.Future[None]:
        """Send the request; the future is done when the call has ended in any way.

        Cancelling it aborts the call and closes its connection.
        """
        ...


class Transport(Protocol):
    """Sends requests, each over a connection of its own, which is reused later."""

    kind: TransportKind
    receive_stamps: ReceiveStamps

    async def open(self) -> None:
        """Do work that should not delay the first request.

        Raises:
            UnreachableError: the server has no address.
        """
        ...

    def prepare(self, call: Call) -> Exchange:
        """Build a request before it is due."""
        ...

    def ensure(self, connections: int) -> bool:
        """Open connections for so many upcoming requests.

        True once all of them are open, or never will be.
        """
        ...

    async def aclose(self) -> None: ...


def chosen(plan: LoadPlan) -> TransportKind:
    """The plan's transport; for ``auto``, raw wherever possible."""
    if plan.transport is not TransportKind.AUTO:
        return plan.transport
    linux = sys.platform == "linux"  # epoll
    raw = linux and urlsplit(plan.url).scheme == "http" and not plan.http2
    return TransportKind.RAW if raw and not _proxied(plan) else TransportKind.HTTPX


def _proxied(plan: LoadPlan) -> bool:
    if goes_direct(plan.url, plan.uds):
        return False
    where = urlsplit(plan.url)
    proxies = getproxies()
    behind = where.scheme in proxies or "all" in proxies
    return behind and not proxy_bypass(where.netloc)


def transport_for(plan: LoadPlan) -> Transport:
    """Create the transport that :func:`chosen` names."""
    if chosen(plan) is TransportKind.RAW:
        return RawTransport(plan)
    return HttpxTransport(plan)
