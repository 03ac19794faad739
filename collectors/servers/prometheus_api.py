"""Client for the query API of Prometheus and compatibles (Thanos, Mimir).

Responses are bounded in size and time, and errors are turned into sentences.
"""

import asyncio
from typing import Annotated

import httpx
import msgspec

from collectors.contract.clock import monotonic_ns
from collectors.contract.collector import CollectorError
from collectors.http.bounded_get import (
    NoAnswerError,
    TooLargeError,
    read_body,
    why_none,
)
from collectors.http.http_client import ProxyError
from collectors.http.server import Server, ServerError
from collectors.servers.exposition import LATEST_S

PATIENCE_S = 20.0
"""Time limit: a query over a thousand engines takes seconds."""
MOST_BYTES = 256 * 1024 * 1024
MOST_VALUES = 8_000_000
"""Series and samples of a response: each takes 140 bytes decoded, however short it
was."""
PACKED = {"Accept-Encoding": "gzip"}
"""Series are repetitive: gzip sends a tenth."""
MOST_TOLD = 300
"""Characters shown of the server's error message."""
PAGES = ("/graph", "/query", "/api")
"""Endings of addresses copied from a browser, or left after ``/v1`` was removed."""


class QueryError(CollectorError):
    """A query failed; the message can be shown to users."""


class ScrapedSeries(msgspec.Struct, frozen=True, gc=False):
    """A series: its labels, ``__name__`` included, and its samples as scraped."""

    metric: msgspec.Raw
    """A JSON object; Prometheus always writes a series the same way."""
    values: list[tuple[float, str]] = []
    """Unix seconds and value, in order of time."""

    @property
    def key(self) -> bytes:
        """Identifies the series within the server."""
        return bytes(self.metric)

    def labels(self) -> dict[str, str]:
        """``__name__`` and labels; empty if malformed."""
        try:
            return msgspec.json.decode(self.metric, type=dict[str, str])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return {}


class _Matrix(msgspec.Struct, frozen=True, tag_field="resultType", tag="matrix"):
    result: list[ScrapedSeries]


class _Scalar(msgspec.Struct, frozen=True, tag_field="resultType", tag="scalar"):
    result: tuple[float, str]


class _Answer(msgspec.Struct, frozen=True):
    status: str = ""
    data: _Matrix | _Scalar | None = None
    error: str = ""
    warnings: Annotated[list[str], msgspec.Meta(max_length=10_000)] = []


_DECODER = msgspec.json.Decoder(_Answer)


class ServerTime(msgspec.Struct, frozen=True):
    """The server's time, and when it was that by our clock."""

    unix_s: float
    t_ns: int
    """Monotonic time at the middle of the exchange."""
    round_trip_ns: int

    def monotonic_ns(self, unix_s: float) -> int:
        """Monotonic time of one of the server's timestamps."""
        return self.t_ns - round((self.unix_s - unix_s) * 1e9)


class PrometheusApi:
    """Queries one Prometheus server."""

    def __init__(self, server: Server, *, patience_s: float = PATIENCE_S) -> None:
        self.server = server
        self.warnings: set[str] = set()
        """Distinct warnings in its responses."""
        self.queries = self.answered_bytes = 0
        """Number of queries, and bytes of their responses."""
        self._patience_s = patience_s
        self._url = _query_url(server)
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def now(self) -> ServerTime:
        """The server's current time.

        Raises:
            QueryError: the query failed.
        """
        sent_ns = monotonic_ns()
        data = await self._ask({"query": "time()"})
        took_ns = monotonic_ns() - sent_ns
        if not isinstance(data, _Scalar) or not 0 < data.result[0] < LATEST_S:
            raise QueryError(f"{self._where} does not tell the time")
        return ServerTime(data.result[0], sent_ns + took_ns // 2, took_ns)

    async def samples(
        self, selector: str, span_s: float, at_s: float
    ) -> list[ScrapedSeries]:
        """Raw samples of a span that ends at a time on the server's clock.

        Raises:
            QueryError: the query failed.
        """
        query = {
            "query": f"{selector}[{round(span_s * 1000)}ms]",
            "time": f"{at_s:.3f}",
        }
        data = await self._ask(query)
        if not isinstance(data, _Matrix):
            raise QueryError(f"{self._where} answers with no series")
        return data.result

    @property
    def _where(self) -> str:
        return f"Prometheus at {self.server.shown_url}"

    async def _ask(self, query: dict[str, str]) -> _Matrix | _Scalar | None:
        self.queries += 1
        status, body = await self._exchange(
            {**query, "timeout": f"{self._patience_s:.0f}s"}
        )
        self.answered_bytes += len(body)
        try:
            answer = await asyncio.to_thread(self._decoded, body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            answer = None
        if answer is None or answer.status not in {"success", "error"}:
            raise QueryError(f"{self._where} answers {_unlike_prometheus(status)}")
        if answer.status == "error" or status >= httpx.codes.BAD_REQUEST:
            raise QueryError(f"{self._where}: {_sentence(status, answer.error)}")
        self.warnings.update(each[:MOST_TOLD] for each in answer.warnings)
        return answer.data

    async def _exchange(self, query: dict[str, str]) -> tuple[int, bytes]:
        """Status and body of a response."""
        try:
            if self._client is None:
                self._client = self.server.client(timeout_s=self._patience_s)
            async with (
                asyncio.timeout(self._patience_s),
                self._client.stream(
                    "POST", self._url, data=query, headers=PACKED
                ) as response,
            ):
                return response.status_code, await read_body(response, MOST_BYTES)
        except TooLargeError:
            raise self._too_much(f"{MOST_BYTES >> 20} MiB") from None
        except NoAnswerError as error:
            raise QueryError(f"{self._where}: {error}") from error
        except (TimeoutError, httpx.TimeoutException):
            raise QueryError(
                f"{self._where} does not answer within {self._patience_s:g} s"
            ) from None
        except httpx.HTTPError as error:
            raise QueryError(f"{self._where}: {why_none(error)}") from error
        except (httpx.InvalidURL, OSError, ServerError, ProxyError) as error:
            raise QueryError(f"{self._where} cannot be asked: {error}") from error

    def _decoded(self, body: bytes) -> _Answer:
        if body.count(b"[") + body.count(b"{") > MOST_VALUES:
            raise self._too_much(f"{MOST_VALUES:,} series and samples")
        return _DECODER.decode(body)

    def _too_much(self, than: str) -> QueryError:
        return QueryError(
            f"{self._where} answers with more than {than}: select fewer engines"
        )


def _query_url(server: Server) -> httpx.URL:
    """URL for queries, below the configured address of Prometheus."""
    url = httpx.URL(server.url)
    path = url.path.rstrip("/")
    page = next((each for each in PAGES if path.endswith(each)), "")
    return url.copy_with(path=f"{path.removesuffix(page)}/api/v1/query")


def _sentence(status: int, error: str) -> str:
    text = error[:MOST_TOLD] or f"HTTP status {status}"
    match status:
        case httpx.codes.BAD_REQUEST:
            return f"it cannot read the query, look at --select: {text}"
        case httpx.codes.UNAUTHORIZED | httpx.codes.FORBIDDEN:
            return f"it wants to know who asks: {text}"
        case httpx.codes.SERVICE_UNAVAILABLE | httpx.codes.UNPROCESSABLE_ENTITY:
            return f"it did not carry the query out: {text}"
    return text


def _unlike_prometheus(status: int) -> str:
    if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        return f"with HTTP status {status}: it wants to know who asks (--header)"
    if httpx.codes.is_redirect(status):
        return f"with a redirect (HTTP status {status}): give the address it leads to"
    if status == httpx.codes.NOT_FOUND:
        return "with HTTP status 404: is that its address, path prefix included?"
    if httpx.codes.is_success(status):
        return "with something else than Prometheus would"
    return f"with HTTP status {status}"
