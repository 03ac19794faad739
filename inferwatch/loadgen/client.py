"""Sends calls by httpx and stamps what comes back, when it comes back."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import httpx
import msgspec

from collectors.clock import monotonic_ns
from inferwatch.loadgen.call import Call, Failure
from inferwatch.loadgen.plan import LoadPlan
from inferwatch.loadgen.prompts import Prompt
from inferwatch.loadgen.reply import DETAIL_CHARS, NotAnEventError
from inferwatch.loadgen.sse import SseError

KEEPALIVE_S = 2.0
"""Below the 5 s after which uvicorn closes idle connections: a connection that both
sides give up at the same moment would fail a request for no fault of the server."""

_LEAVES = "http11.send_request_body.started"
"""httpcore's event right before the write that makes the request complete: stamped
here, a send is never later than its arrival at the server."""


class Client:
    """As many connections as requests in flight, kept and used again.

    Each has an ``httpx.AsyncClient`` of its own: a shared one looks through all its
    connections at every request, so that a burst of 60 takes 380 ms to leave, not 15.
    """

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._base = plan.url.rstrip("/")
        self._lanes: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []
        self._tls = httpx.create_ssl_context()  # 20 ms: once for all lanes

    async def aclose(self) -> None:
        """Close all connections."""
        for lane in self._lanes:
            await lane.aclose()

    async def warm_up(self) -> None:
        """Load what httpx loads at its first request, which would be the slowest."""
        with suppress(httpx.HTTPError), self._lane() as lane:
            await lane.get(f"{self._base}/health", timeout=2.0)

    def prepare(self, call: Call) -> httpx.Request:
        """The request, ready to be written; made before it is due."""

        async def stamp(event: str, _info: object) -> None:
            if event == _LEAVES:
                call.sent_ns = monotonic_ns()

        return httpx.Request(
            "POST",
            f"{self._base}/v1/completions",
            content=_body(self._plan, call.prompt),
            headers={**_HEADERS, "X-Request-Id": call.external_id},
            extensions={"trace": stamp},
        )

    async def send(self, call: Call, request: httpx.Request) -> None:
        """See a call through to its end, whichever it is; failures are kept in it."""
        try:
            async with asyncio.timeout(self._plan.request_timeout_s):
                await self._exchange(call, request)
        except TimeoutError:
            call.fail(Failure.TIMEOUT, f"after {self._plan.request_timeout_s:g} s")
        except httpx.ConnectError as error:
            call.fail(Failure.REFUSED, str(error))
        except (httpx.HTTPError, SseError, NotAnEventError) as error:
            call.fail(Failure.BROKEN_STREAM, _say(error))
        except asyncio.CancelledError:
            call.fail(Failure.ABORTED)
            raise
        finally:
            call.end_ns = monotonic_ns()

    async def _exchange(self, call: Call, request: httpx.Request) -> None:
        with self._lane() as lane:
            response = await lane.send(request, stream=True)
            try:
                if response.status_code == httpx.codes.OK:
                    await _read(call, response)
                else:
                    await _refusal(call, response)
            finally:
                await response.aclose()

    @contextmanager
    def _lane(self) -> Iterator[httpx.AsyncClient]:
        """The lane that was idle last, whose connection is likeliest alive."""
        lane = self._idle.pop() if self._idle else self._new_lane()
        try:
            yield lane
        finally:
            self._idle.append(lane)

    def _new_lane(self) -> httpx.AsyncClient:
        lane = httpx.AsyncClient(
            transport=self._unix_transport(),
            verify=self._tls,
            limits=_LIMITS,
            timeout=None,  # noqa: S113 - a whole request has one deadline, see send()
            trust_env=not _local(self._plan),
        )
        self._lanes.append(lane)
        return lane

    def _unix_transport(self) -> httpx.AsyncHTTPTransport | None:
        if self._plan.uds is None:
            return None
        return httpx.AsyncHTTPTransport(
            uds=self._plan.uds, verify=self._tls, limits=_LIMITS
        )


_LIMITS = httpx.Limits(keepalive_expiry=KEEPALIVE_S)
_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


def _local(plan: LoadPlan) -> bool:
    """No proxy stands between us and a socket or a loopback address."""
    host = urlsplit(plan.url).hostname or ""
    return bool(plan.uds) or host in {"localhost", "::1"} or host.startswith("127.")


def _body(plan: LoadPlan, prompt: Prompt) -> bytes:
    return msgspec.json.encode(
        {
            "model": plan.model,
            "prompt": prompt.token_ids,
            "max_tokens": prompt.max_tokens,
            "temperature": plan.temperature,
            "ignore_eos": plan.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


async def _read(call: Call, response: httpx.Response) -> None:
    """To the end of the stream, past ``[DONE]``, so that the connection is reused."""
    read = call.reply.read
    async for data in response.aiter_raw():
        read(data, monotonic_ns())
    call.judge()


async def _refusal(call: Call, response: httpx.Response) -> None:
    kind = f"http_{response.status_code // 100}xx"
    beginning = b""
    async for data in response.aiter_raw():
        beginning += data
        if len(beginning) >= DETAIL_CHARS:
            break
    said = beginning[:DETAIL_CHARS].decode("utf-8", "replace")
    call.fail(Failure(kind), f"{response.status_code} {said}".strip())


def _say(error: Exception) -> str:
    return str(error) or type(error).__name__
