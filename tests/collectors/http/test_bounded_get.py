"""Servers that answer badly, and those that mean harm."""

import asyncio
import gzip
import itertools
import re
import tracemalloc
import zlib
from pathlib import Path

import pytest

from collectors.http import bounded_get
from collectors.http.bounded_get import NoAnswerError, TimedResponse, Unpacker, get
from collectors.http.server import Server
from tests.collectors.http_server import (
    TWICE,
    Answer,
    Serving,
    packed_twice,
    serving,
    whole,
)

GZIP = "content-encoding: gzip\r\n"


async def ask(
    server: Serving, path: str = "/metrics", timeout_s: float = 20
) -> TimedResponse:
    async with Server(url=server.url).client(timeout_s=None) as client:
        return await get(client, path, timeout_s=timeout_s, most_bytes=100_000)


async def refused(answer: Answer, timeout_s: float = 20) -> NoAnswerError:
    """Why nothing came of that answer."""
    async with serving({"/metrics": answer}) as server:
        with pytest.raises(NoAnswerError) as error:
            await ask(server, timeout_s=timeout_s)
    return error.value


def moved(to: str, status: str = "307 Temporary Redirect") -> bytes:
    return whole("", status, headers=f"location: {to}\r\n")


async def test_a_body_comes_whole() -> None:
    async with serving({"/metrics": "a 1\n"}) as server:
        answer = await ask(server)
    assert answer.text == "a 1\n"
    assert answer.sent_ns <= answer.began_ns


async def test_nobody_is_asked_to_pack() -> None:
    async with serving({"/metrics": "a 1\n"}) as server:
        await ask(server)
    assert "accept-encoding: identity" in server.heads[0].lower()


@pytest.mark.parametrize(
    "packed", [gzip.compress(b"a 1\n", mtime=0), zlib.compress(b"a 1\n")]
)
async def test_what_is_packed_all_the_same_is_unpacked(packed: bytes) -> None:
    async with serving({"/metrics": whole(packed, headers=GZIP)}) as server:
        assert (await ask(server)).text == "a 1\n"


async def test_half_of_a_packed_body_is_none() -> None:
    half = gzip.compress(bytes(range(256)) * 9)[:-20]
    error = await refused(whole(half, headers=GZIP))
    assert str(error) == "the answer broke off in the middle"


async def test_what_is_said_to_be_packed_and_is_not_makes_no_sense() -> None:
    error = await refused(whole("a 1\n", headers=GZIP))
    assert str(error).startswith("the answer makes no sense")


async def test_a_packed_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(gzip.compress(bytes(40_000_000)), mtime=0)
    bomb = gzip.decompress(bomb)
    tracemalloc.start()
    try:
        error = await refused(whole(bomb, headers=GZIP))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "larger than 0.1 MB" in str(error)
    assert most < 5_000_000


async def test_what_is_packed_twice_is_not_unpacked_at_all() -> None:
    error = await refused(whole(packed_twice(), headers=TWICE))
    assert "packed as 'gzip, gzip'" in str(error)
    assert error.status == 200


async def test_to_unpack_much_gives_others_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_get, "UNPACKED_AT_ONCE", 1_000)
    packed = zlib.compress(bytes(100_000))
    unpacking = asyncio.create_task(Unpacker().unpack(packed, 50_000))
    turns = 0
    while not unpacking.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(unpacking.result()) == 50_000
    assert turns >= 50


SOURCES = [
    path
    for package in ("collectors", "embedded_engine", "inferwatch")
    for path in sorted((Path(__file__).parents[3] / package).rglob("*.py"))
]
UNBOUNDED = re.compile(
    r"\.aiter_(?:bytes|text|lines)\(|\.aread\(|\bclient\.(?:get|post|request)\("
)
"""Where httpx reads, and unpacks, as much as is sent."""


def test_no_body_is_read_but_within_bounds() -> None:
    assert [each.name for each in SOURCES if UNBOUNDED.search(each.read_text())] == []


async def test_a_coding_that_nobody_asked_for_is_refused() -> None:
    error = await refused(whole("x", headers="content-encoding: br\r\n"))
    assert "packed as 'br'" in str(error)


async def test_a_body_without_end_is_read_no_further() -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        for _ in itertools.count():
            writer.write(b"vllm:x 1\n" * 1_000)
            sent += 9_000
            await writer.drain()

    error = await refused(endless)
    assert "larger than 0.1 MB" in str(error)
    assert sent < 20_000_000


async def test_a_body_that_is_announced_as_too_large_is_not_waited_for() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n"

    async def large(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await writer.drain()
        await asyncio.sleep(60)

    error = await refused(large)
    assert "larger than 0.1 MB" in str(error)


async def test_half_a_body_is_none() -> None:
    async def half(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nvllm:x 1\n")

    error = await refused(half)
    assert str(error) == "the answer broke off in the middle"


async def test_half_a_chunked_body_is_none() -> None:
    async def half(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nvll")

    error = await refused(half)
    assert str(error) == "the answer broke off in the middle"


async def test_a_drip_ends_in_time() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    error = await refused(drip, timeout_s=0.2)
    assert str(error) == "no answer in 0.2 s"
    assert error.status is None


async def test_nonsense_is_no_http() -> None:
    assert str(await refused(b"\x00\xff SSH-2.0\r\n\r\n")) == "it does not speak HTTP"


async def test_a_connection_that_closes_is_no_answer() -> None:
    async def nothing(writer: asyncio.StreamWriter) -> None:
        pass

    assert str(await refused(nothing)) == "it closed the connection without an answer"


async def test_where_nobody_listens_nothing_comes() -> None:
    async with serving({}) as server:
        pass
    with pytest.raises(NoAnswerError, match="nothing listens there"):
        await ask(server)


async def test_a_name_that_nobody_has_is_told() -> None:
    server = Serving({})
    server.url = "http://no-such-host.invalid:8000"
    with pytest.raises(NoAnswerError, match="no host has that name"):
        await ask(server)


@pytest.mark.parametrize(("status", "why"), [
    ("401 Unauthorized", "it wants a key (HTTP 401): --api-key-env or --header"),
    ("403 Forbidden", "it does not let us in (HTTP 403): another key or --header may"),
    ("404 Not Found", "nothing is there (HTTP 404): is a path missing in the address?"),
    ("500 Internal Server Error", "HTTP 500 Internal Server Error"),
    ("599 Odd", "HTTP 599"),
])  # fmt: skip
async def test_a_refusal_says_what_to_do(status: str, why: str) -> None:
    error = await refused(whole("", status))
    assert str(error) == why
    assert error.status == int(status[:3])


async def test_a_refusal_says_what_the_server_says() -> None:
    said = '{"error":{"code":501,"message":"Start it with `--metrics`"}}'
    error = await refused(whole(said, "501 Not Implemented", "application/json"))
    assert str(error) == "HTTP 501 Not Implemented: Start it with `--metrics`"


async def test_what_a_server_says_in_refusing_is_kept_short() -> None:
    said = '{"error":{"message":"' + "x" * 90_000 + '"}}'
    error = await refused(whole(said, "400 Bad Request", "application/json"))
    assert len(str(error)) < 300


async def test_a_redirect_on_the_same_host_is_followed() -> None:
    answers: dict[str, Answer] = {"/metrics": moved("/metrics/"), "/metrics/": "a 1\n"}
    async with serving(answers) as server:
        assert (await ask(server)).text == "a 1\n"


async def test_a_redirect_elsewhere_is_not_followed_and_told_without_secrets() -> None:
    async with serving({"/metrics": "a 1\n"}) as other:
        there = (
            other.url.replace("http://", "http://user:pass@") + "/metrics?key=secret"
        )
        error = await refused(moved(there))
    assert str(error) == f"it redirects to {other.url}: attach to that"
    assert not other.asked


async def test_a_redirect_to_https_is_told() -> None:
    error = await refused(moved("https://127.0.0.1:8443/metrics"))
    assert str(error) == "it wants https: attach to https://127.0.0.1:8443"


@pytest.mark.parametrize("to", ["/metrics", "", "http://[", "\xff"])
async def test_a_redirect_that_leads_nowhere_ends(to: str) -> None:
    async with serving({"/metrics": moved(to)}) as server:
        with pytest.raises(NoAnswerError):
            await ask(server)
    assert len(server.asked) <= bounded_get.MOST_HOPS + 1


async def test_https_that_is_http_is_told() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(whole("", "400 Bad Request"))
        writer.close()

    plain = await asyncio.start_server(refuse, "127.0.0.1", 0)
    server = Serving({})
    server.url = f"https://127.0.0.1:{plain.sockets[0].getsockname()[1]}"
    async with plain:
        with pytest.raises(NoAnswerError, match="is it http instead of https"):
            await ask(server)


async def test_a_kept_connection_that_the_server_let_go_is_made_anew() -> None:
    async def once(writer: asyncio.StreamWriter) -> None:
        server.answers["/metrics"] = "a 1\n"

    async with serving({"/metrics": once}) as server:
        assert (await ask(server)).text == "a 1\n"
