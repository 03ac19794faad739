"""The transport protocol, and the choice of a transport for a plan."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from collectors.contract.clock import monotonic_ns
from collectors.http.bounded_get import NoAnswerError, get
from collectors.http.http_client import goes_direct, http_client
from inferwatch.loadgen.exchange import request
from inferwatch.loadgen.exchange.call import (
    Call,
    ErrorResponse,
    Failure,
    UnreachableError,
)
from inferwatch.loadgen.exchange.raw_transport import RawTransport
from inferwatch.loadgen.exchange.receive_stamps import ReceiveStamps
from inferwatch.loadgen.exchange.reply import NotAnEventError
from inferwatch.loadgen.exchange.sse import SseError
from inferwatch.loadgen.plan.plan import LoadPlan, TransportKind

KEEPALIVE_S = 2.0
"""Same as the raw transport's."""
HEALTH_S = 2.0
DONE_S = 0.05
"""Wait after ``[DONE]`` for the end of the response."""

_LEAVES = ("http11.send_request_body.started", "http2.send_request_body.started")
"""httpcore's events just before the write that completes a request: stamped here, a
send is never later than its arrival at the server."""
_LIMITS = httpx.Limits(keepalive_expiry=KEEPALIVE_S)


class HttpxTransport:
    """One ``httpx.AsyncClient`` per request in flight.

    A shared client scans all its connections for every request, so a burst of 60 would
    take 380 ms to send instead of 15.
    """

    kind = TransportKind.HTTPX

    def __init__(self, plan: LoadPlan) -> None:
        self.receive_stamps = ReceiveStamps()
        self._plan = plan
        self._lanes: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []
        # takes 20 ms, so only once
        self._tls = httpx.create_ssl_context(verify=plan.verify_tls)

    async def aclose(self) -> None:
        for lane in self._lanes:
            await lane.aclose()

    async def open(self) -> None:
        """Load what httpx loads with its first request, which would be the slowest.

        Raises:
            UnreachableError: HTTP/2 is wanted, but its package is not installed.
        """
        if self._plan.http2 and find_spec("h2") is None:
            raise UnreachableError("HTTP/2 needs another package: pip install h2")
        with suppress(NoAnswerError), self.lane() as lane:
            await get(lane, "/health", timeout_s=HEALTH_S)

    def prepare(self, call: Call) -> "HttpxExchange":
        return HttpxExchange(self, self._plan, call)

    def ensure(self, connections: int) -> bool:
        """Create clients for so many requests; their first requests connect them."""
        for _ in range(connections - len(self._idle)):
            self._idle.append(self._new_lane())
        return True

    @contextmanager
    def lane(self) -> Iterator[httpx.AsyncClient]:
        """Lend the client used last, whose connection is most likely alive."""
        lane = self._idle.pop() if self._idle else self._new_lane()
        try:
            yield lane
        finally:
            self._idle.append(lane)

    def _new_lane(self) -> httpx.AsyncClient:
        lane = http_client(
            self._plan.url,
            uds=self._plan.uds,
            timeout_s=None,  # a whole request has one deadline
            verify=self._tls,
            http2=self._plan.http2,
            limits=_LIMITS,
        )
        self._lanes.append(lane)
        return lane


class HttpxExchange:
    """A call over this transport."""

    def __init__(self, transport: HttpxTransport, plan: LoadPlan, call: Call) -> None:
        self.call = call
        self._transport = transport
        self._timeout_s = plan.request_timeout_s
        self._refusal = ErrorResponse()
        self._request = httpx.Request(
            "POST",
            request.url(plan),
            content=request.body(plan, call),
            headers=request.headers(plan, call),
            extensions={"trace": self._trace},
        )

    def begin(self) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._send())

    async def _trace(self, event: str, _info: object) -> None:
        if event in _LEAVES:
            self.call.sent_ns = monotonic_ns()

    async def _send(self) -> None:
        call = self.call
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange()
        except TimeoutError:
            call.cut(Failure.TIMEOUT, f"after {self._timeout_s:g} s")
        except httpx.ConnectError as error:
            call.fail(Failure.REFUSED, str(error))
        except httpx.HTTPError as error:
            call.cut(Failure.BROKEN_STREAM, _words(error))
        except (SseError, NotAnEventError) as error:
            call.fail(Failure.BROKEN_STREAM, str(error))
        except asyncio.CancelledError:
            call.cut(Failure.ABORTED)
            raise
        finally:
            if call.end_ns is None:  # it has not hung up
                call.end_ns = (call.answered and call.reply.done_ns) or monotonic_ns()

    async def _exchange(self) -> None:
        with self._transport.lane() as lane:
            response = await lane.send(self._request, stream=True)
            try:
                await self._read(response)
            finally:
                await response.aclose()

    async def _read(self, response: httpx.Response) -> None:
        """Read to the end, past ``[DONE]``, so that the connection can be reused."""
        headers = {name.lower(): value for name, value in response.headers.raw}
        if response.status_code == httpx.codes.OK:
            kind = headers.get(b"content-type", b"")
            self.call.reply.content_type = kind.decode("latin-1")
            await self._read_answer(response)
            if self.call.failure is None:
                self.call.answered = True
            return
        async for data in response.aiter_raw():
            self._transport.receive_stamps.reads += 1
            self._refusal.read(data)
            if self._refusal.complete:
                break
        self._refusal.tell(self.call, response.status_code, headers)

    async def _read_answer(self, response: httpx.Response) -> None:
        """Read the response to its end, or until shortly after ``[DONE]``."""
        reply, receive_stamps = self.call.reply, self._transport.receive_stamps
        reply.by_kernel = False
        loop = asyncio.get_running_loop()
        patience = asyncio.timeout(None)
        try:
            async with patience:
                async for data in response.aiter_raw():
                    receive_stamps.reads += 1
                    reply.read(data, monotonic_ns())
                    if reply.looks_done() and reply.done_ns is not None:
                        patience.reschedule(loop.time() + DONE_S)
                    elif self.call.heard_enough:
                        self.call.hang_up()
                        return  # closing the response closes its connection
        except TimeoutError:
            if not patience.expired():
                raise


def _words(error: httpx.HTTPError) -> str:
    """The error's message up to a colon, after which received bytes may follow."""
    return str(error).partition(":")[0] or type(error).__name__


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
        """Build a call's request before it is due."""
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
