"""The server before it is loaded: whether it answers, its models, its traffic."""

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Self
from urllib.parse import SplitResult, unquote, urlsplit

import httpx
import msgspec

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.http.bounded_get import NoAnswerError, TimedResponse, get
from collectors.http.http_client import ProxyError, http_client
from inferwatch.errors import SourceError, UsageError
from inferwatch.formatting import counted

RUNNING = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
)
WAITING = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
)
MADE = (
    "vllm:generation_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
)
SERVED = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/models": None,
    "/v1": None,
}
"""Paths in URLs from documentation and other clients, which are stripped."""
TIMEOUT_S = 10.0
REFUSED = {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetServer:
    """The server to be loaded: its address, and the headers of each request."""

    url: str
    uds: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    verify_tls: bool = True

    @classmethod
    def at(
        cls,
        url: str,
        uds: str | None,
        headers: Mapping[str, str],
        *,
        verify_tls: bool = True,
    ) -> Self:
        """The server at an address in users' notation, with or without ``http://``.

        A user name and password in it become a header, because headers are not
        recorded.

        Raises:
            UsageError: the address is invalid.
        """
        parts = _split(url if "://" in url else f"http://{url}")
        all_headers = {**_authorization(parts, headers), **headers}
        place = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        base, _ = _base(place.geturl())
        _refuse_odd_host(base)
        return cls(url=base, uds=uds, headers=all_headers, verify_tls=verify_tls)

    @property
    def name(self) -> str:
        """The server's address as text for users."""
        return f"{self.uds}" if self.uds else self.url

    def client(self) -> httpx.AsyncClient:
        """An HTTP client for control traffic.

        Raises:
            UsageError: the environment's proxy cannot be used.
        """
        try:
            return http_client(
                self.url,
                uds=self.uds,
                headers=self.headers,
                timeout_s=TIMEOUT_S,
                verify=self.verify_tls,
            )
        except ProxyError as error:
            raise UsageError(str(error)) from error

    async def models(self) -> list[str]:
        """Names of the models that are served; empty if the server does not say.

        Raises:
            SourceError: there is no usable response.
            UsageError: it requires a key.
        """
        try:
            answer = await self._get("/v1/models")
        except NoAnswerError as error:
            if error.status is None:
                raise SourceError(f"nothing answers at {self.name}: {error}") from error
            if error.status in REFUSED:
                raise UsageError(
                    f"{self.name} answers {error.status}: put its key into "
                    "INFERWATCH_API_KEY"
                ) from error
            if error.status == httpx.codes.OK:
                text = f"{self.name} does not say what it serves: {error}"
                raise SourceError(text) from error
            return []
        return _names(answer)

    async def longest(self, model: str) -> int | None:
        """Most tokens of prompt plus response; None if the server does not say."""
        with suppress(NoAnswerError, ValueError, KeyError, TypeError, RecursionError):
            answer = await self._get("/v1/models")
            for each in msgspec.json.decode(answer.body)["data"]:
                if each["id"] == model:
                    return int(each["max_model_len"])
        return None

    async def counters(self) -> dict[str, float]:
        """The server's metrics by name, summed over labels; empty without any."""
        try:
            return sums((await self._get("/metrics")).text)
        except NoAnswerError:
            return {}

    async def _get(self, path: str) -> TimedResponse:
        async with self.client() as client:
            return await get(client, path, timeout_s=TIMEOUT_S)


def endpoint_in(url: str) -> str | None:
    """The endpoint (completions, chat) in a URL; None without one.

    >>> endpoint_in("localhost:8000/v1/chat/completions")
    'chat'
    """
    return _base(url)[1]


def _base(url: str) -> tuple[str, str | None]:
    """A server's address without a known path, and the path's endpoint."""
    url = url.rstrip("/")
    for served, endpoint in SERVED.items():
        if url.endswith(served):
            return url.removesuffix(served).rstrip("/"), endpoint
    return url, None


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in {"http", "https"} and parts.port != 0
        if is_valid and parts.hostname and not parts.query and not parts.fragment:
            return parts
    except ValueError:
        pass  # an invalid port, or unbalanced brackets
    name = "that" if "@" in url else repr(url)
    raise UsageError(f"{name} is not the address of a server: http://HOST:PORT")


def _refuse_odd_host(url: str) -> None:
    """Reject host names that cannot be resolved."""
    try:
        httpx.URL(url).host.encode("idna")
    except (httpx.InvalidURL, ValueError) as error:
        raise UsageError(f"{url!r} is not the address of a server: {error}") from error


def _authorization(parts: SplitResult, headers: Mapping[str, str]) -> dict[str, str]:
    """The URL's user and password as a header, unless the headers have one."""
    if parts.username is None or "authorization" in map(str.lower, headers):
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def sums(exposition: str) -> dict[str, float]:
    """Samples of a Prometheus text by name, summed over labels.

    Samples that are not numbers, such as NaN, are left out.
    """
    totals: dict[str, float] = {}
    for line in exposition.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        values = line.rpartition("}")[2].split() if "{" in line else line.split()[1:]
        if not name or name.startswith("#") or not values:
            continue
        with suppress(ValueError):
            if isfinite(total := totals.get(name, 0.0) + float(values[0])):
                totals[name] = total
    return totals


def traffic(counters: Mapping[str, float]) -> tuple[int, int]:
    """Running and waiting requests, as far as the server reports them."""
    running = sum(counters.get(name, 0.0) for name in RUNNING)
    waiting = sum(counters.get(name, 0.0) for name in WAITING)
    return int(running), int(waiting)


def tokens_made(counters: Mapping[str, float]) -> float:
    """Tokens generated since the server's start, as far as it reports them."""
    return sum(counters.get(name, 0.0) for name in MADE)


def _names(answer: TimedResponse) -> list[str]:
    try:
        listed: Any = msgspec.json.decode(answer.body)
        return [str(model["id"]) for model in listed["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


TRAFFIC_LOOKS = 6
TRAFFIC_LOOK_S = 0.2


async def refuse_traffic(target: TargetServer, flag: str) -> None:
    """Refuse to load a busy server; watches it for a while, as traffic may pause.

    Raises:
        UsageError: it is busy, and its users would suffer; ``flag`` overrides this.
    """
    before = inf
    for _ in range(TRAFFIC_LOOKS):
        counters = await target.counters()
        if activity := _busy(counters, before):
            raise UsageError(
                f"{target.name} is serving other traffic: {activity}. "
                f"Add {flag} to load it anyway"
            )
        before = tokens_made(counters)
        await asyncio.sleep(TRAFFIC_LOOK_S)


async def drained(target: TargetServer, within_s: float) -> bool:
    """Wait until no request is running or waiting; False on timeout."""
    until_ns = monotonic_ns() + round(within_s * NS_PER_S)
    while any(traffic(await target.counters())):
        if monotonic_ns() > until_ns:
            return False
        await asyncio.sleep(TRAFFIC_LOOK_S)
    return True


def _busy(counters: Mapping[str, float], made_before: float) -> str:
    running, waiting = traffic(counters)
    if running or waiting:
        return f"{counted(round(running), 'request')} running, {waiting:,.0f} waiting"
    return (
        "it is producing tokens right now"
        if tokens_made(counters) > made_before
        else ""
    )
