"""HTTP requests to untrusted servers: bounded in time, bytes and redirects.

Every response body is read by :func:`read_body`, because httpx decompresses as many
layers as the server names, each up to a thousandfold, before anybody can count a byte.
"""

import asyncio
import re
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

import httpx
import msgspec

from collectors.contract.clock import monotonic_ns

MOST_BYTES = 8_000_000
MOST_HOPS = 3
OK = HTTPStatus.OK
REDIRECTS = {301, 302, 303, 307, 308}
UNPACKED = {"Accept-Encoding": "identity"}
"""Compressing the response would cost the watched server CPU time."""
MOST_ERROR_BYTES = 4_000
"""Longest error body that is read, in bytes."""
NO_WORD = "it closed the connection without an answer"
BROKE_OFF = "the answer broke off in the middle"
GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
CODINGS = {"gzip", "x-gzip", "deflate"}
"""Content codings we can decompress; nested ones are refused."""
UNPACKED_AT_ONCE = 1 << 20
"""Bytes decompressed between yields to the event loop: 1 to 2 ms of work."""


class NoAnswerError(Exception):
    """No usable response came; the message can be shown to users."""

    def __init__(self, why: str, status: int | None = None) -> None:
        super().__init__(why)
        self.status = status
        """HTTP status, if the server answered at all."""


class TooLargeError(NoAnswerError):
    """The body exceeds the size limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedResponse:
    """A complete response and when it was received."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    """Header names are case-insensitive."""
    sent_ns: int
    """Monotonic time at which the request was sent."""
    began_ns: int
    """Monotonic time of the first bytes: the content was true between the two times."""

    @property
    def text(self) -> str:
        """The body decoded as UTF-8, with replacement characters where it is not."""
        return self.body.decode("utf-8", "replace")


async def get(
    client: httpx.AsyncClient,
    path: str,
    *,
    timeout_s: float,
    most_bytes: int = MOST_BYTES,
) -> TimedResponse:
    """GET a path and return the complete response.

    Redirects are followed on the same host only, since another host would receive our
    key.

    Raises:
        NoAnswerError: there was no complete, successful response.
    """
    return await _request(client, "GET", path, None, timeout_s, most_bytes)


async def post(
    client: httpx.AsyncClient,
    path: str,
    payload: object,
    *,
    timeout_s: float,
    most_bytes: int = MOST_BYTES,
) -> TimedResponse:
    """POST a JSON body and return the complete response; it may be sent twice.

    Raises:
        NoAnswerError: there was no complete, successful response.
    """
    return await _request(client, "POST", path, payload, timeout_s, most_bytes)


async def _request(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    payload: object,
    timeout_s: float,
    most_bytes: int,
) -> TimedResponse:
    try:
        async with asyncio.timeout(timeout_s):
            try:
                return await _follow(client, method, path, payload, most_bytes)
            except httpx.RemoteProtocolError as error:
                if why_none(error) != NO_WORD:
                    raise
            # The server closed a kept-alive connection just as we reused it.
            return await _follow(client, method, path, payload, most_bytes)
    except TimeoutError:
        raise NoAnswerError(f"no answer in {timeout_s:g} s") from None
    except httpx.HTTPError as error:
        why = why_none(error)
        raise NoAnswerError(why, OK if why == BROKE_OFF else None) from error
    except (httpx.InvalidURL, OSError, ValueError) as error:
        raise _no_sense(error) from error


async def _follow(
    client: httpx.AsyncClient, method: str, path: str, payload: object, most_bytes: int
) -> TimedResponse:
    url = _address(client.base_url, path)
    for _ in range(MOST_HOPS + 1):
        sent_ns = monotonic_ns()
        request = client.build_request(method, url, json=payload, headers=UNPACKED)
        response = await client.send(request, stream=True)
        began_ns = monotonic_ns()
        try:
            if response.status_code in REDIRECTS:
                url = _redirect(url, response.headers.get("location", ""))
                continue
            if response.status_code != OK:
                message = await _error_message(response)
                raise NoAnswerError(_refusal(response, message), response.status_code)
            body = await read_body(response, most_bytes)
        finally:
            await response.aclose()
        return TimedResponse(
            status=response.status_code,
            body=body,
            headers=response.headers,
            sent_ns=sent_ns,
            began_ns=began_ns,
        )
    raise NoAnswerError(f"it redirects more than {MOST_HOPS} times", HTTPStatus.FOUND)


@lru_cache(maxsize=4_096)
def _address(base: httpx.URL, path: str) -> httpx.URL:
    """The URL of a path; to parse it takes a fifth of the time of a request."""
    return base.join(path.lstrip("/"))


def _redirect(url: httpx.URL, location: str) -> httpx.URL:
    """The URL to request after a redirect."""
    to = url.join(location)
    if (to.scheme, to.netloc) == (url.scheme, url.netloc):
        return to
    if to.host == url.host and to.scheme == "https":
        why = f"it wants https: attach to https://{_place(to)}"
    else:
        why = f"it redirects to {to.scheme}://{_place(to)}: attach to that"
    raise NoAnswerError(why, HTTPStatus.FOUND)


def _place(url: httpx.URL) -> str:
    return f"{url.host}:{url.port}" if url.port else url.host


def _refusal(response: httpx.Response, message: str) -> str:
    status = response.status_code
    if status == HTTPStatus.UNAUTHORIZED:
        return "it wants a key (HTTP 401): --api-key-env or --header"
    if status == HTTPStatus.FORBIDDEN:
        return "it does not let us in (HTTP 403): another key or --header may"
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return "the proxy wants a key (HTTP 407)"
    if status == HTTPStatus.NOT_FOUND:
        return "nothing is there (HTTP 404): is a path missing in the address?"
    is_standard = status in HTTPStatus.__members__.values()
    phrase = f" {HTTPStatus(status).phrase}" if is_standard else ""
    return f"HTTP {status}{phrase}{f': {message}' if message else ''}"


async def _error_message(response: httpx.Response) -> str:
    """The error message in a response body that has the form of OpenAI's API."""
    body = b""
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > MOST_ERROR_BYTES:
                return ""
        error = msgspec.json.decode(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:200]
    except (httpx.HTTPError, msgspec.DecodeError, ValueError, RecursionError):
        return ""
    except (LookupError, TypeError):  # JSON of another form
        return ""


async def read_body(response: httpx.Response, most_bytes: int) -> bytes:
    """Read a streamed body, decompressing at most one layer.

    Raises:
        TooLargeError: it exceeds the limit, compressed or not.
        NoAnswerError: its coding is unsupported, or the data is corrupt.
        httpx.HTTPError: the transfer failed.
    """
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"", "identity", *CODINGS}:
        raise NoAnswerError(
            f"it is packed as {coding[:20]!r}, which we did not ask for", OK
        )
    unpacker = Unpacker() if coding in CODINGS else None
    body = bytearray()
    raw = 0
    if _announced(response) > most_bytes:
        raise _too_large(most_bytes)
    try:
        async for chunk in response.aiter_raw():
            raw += len(chunk)
            room = most_bytes + 1 - len(body)
            body += await unpacker.unpack(chunk, room) if unpacker else chunk
            if max(raw, len(body)) > most_bytes:
                raise _too_large(most_bytes)
    except zlib.error as error:
        raise _no_sense(error) from error
    if unpacker and not unpacker.whole:
        raise NoAnswerError(BROKE_OFF, OK)
    return bytes(body)


class Unpacker:
    """Decompresses gzip or zlib with bounded output, yielding to the event loop."""

    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(GZIP_OR_ZLIB)

    @property
    def whole(self) -> bool:
        """True once the end of the compressed stream was reached."""
        return self._unpack.eof

    async def unpack(self, packed: bytes, most_bytes: int) -> bytearray:
        """Decompress up to ``most_bytes``; output beyond them is discarded.

        Raises:
            zlib.error: the data is corrupt.
        """
        output = bytearray()
        while (room := min(most_bytes - len(output), UNPACKED_AT_ONCE)) > 0:
            piece = self._unpack.decompress(packed, room)
            output += piece
            packed = self._unpack.unconsumed_tail
            if self.whole or (not packed and len(piece) < room):
                break
            await asyncio.sleep(0)
        return output


def _announced(response: httpx.Response) -> int:
    length = response.headers.get("content-length", "")
    return int(length[:15]) if length.isdecimal() else 0


def _too_large(most_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"it is larger than {most_bytes / 1e6:g} MB: read no further", OK
    )


def _no_sense(error: Exception) -> NoAnswerError:
    return NoAnswerError(f"the answer makes no sense: {error}"[:200], OK)


def why_none(error: httpx.HTTPError) -> str:
    """Why a request failed, as text for users."""
    if tls := _in_tls(error):
        return tls
    text = str(error)
    if isinstance(error, httpx.RemoteProtocolError):
        if "without sending a response" in text:
            return NO_WORD
        half = "without" in text  # "... sending complete message body"
        return BROKE_OFF if half else "it does not speak HTTP"
    for kind, why in (
        (httpx.ProxyError, "the proxy does not let us through"),
        (httpx.ConnectError, _no_connection(text)),
        (httpx.TransportError, "the connection broke off"),
    ):
        if isinstance(error, kind):
            return why
    return f"no answer: {text}"[:200]


def _in_tls(error: BaseException) -> str | None:
    """The TLS error behind an exception, as text for users."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not trusted ({cause.verify_message}): --ca-file "
                "with the right one, or --insecure"
            )
        if isinstance(cause, ssl.SSLError):
            return "it does not speak TLS as we do: is it http instead of https?"
        cause = cause.__cause__ or cause.__context__
    return None


def _no_connection(message: str) -> str:
    for pattern, why in (
        (r"refused|All connection attempts failed", "nothing listens there"),
        (r"not known|No address|resolution", "no host has that name"),
        (r"[Nn]etwork is unreachable|No route", "there is no way to that host"),
        (r"No such file", "there is no such socket"),
    ):
        if re.search(pattern, message):
            return why
    return f"no connection: {message}"[:200]
