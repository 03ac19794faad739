from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferwatch.loadgen.exchange.response import (
    MAX_HEAD_BYTES,
    MAX_SIZE_LINE_BYTES,
    HttpResponse,
    NotHttpError,
)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
RESPONSES = {
    "chunked": CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
    "chunk sizes with zeros and capitals": CHUNKED + b"0B\r\nhello world\r\n0\r\n\r\n",
    "chunk extensions": CHUNKED + b"b;a=1\r\nhello world\r\n0;last\r\n\r\n",
    "trailers": CHUNKED + b"b\r\nhello world\r\n0\r\nA: 1\r\nB: 2\r\n\r\n",
    "content length": HEAD + b"Content-Length: 11\r\n\r\nhello world",
    "odd case and spaces": b"HTTP/1.1 200 OK\r\ncontent-LENGTH:   11  \r\n\r\n"
    b"hello world",
    "after an interim response": b"HTTP/1.1 100 Continue\r\n\r\n"
    + HEAD
    + b"Content-Length: 11\r\n\r\nhello world",
    "no reason phrase": b"HTTP/1.1 200\r\nContent-Length: 11\r\n\r\nhello world",
}


def read(*pieces: bytes) -> tuple[HttpResponse, bytes, list[int]]:
    """Each piece comes at the number of its place."""
    taken: list[tuple[bytes, int]] = []
    response = HttpResponse(lambda data, at_ns: taken.append((data, at_ns)))
    for at_ns, piece in enumerate(pieces):
        response.feed(piece, at_ns)
    body = b"".join(data for data, _ in taken)
    return response, body, [at_ns for _, at_ns in taken]


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_cut_anywhere_gives_its_body_and_keeps_the_connection(
    name: str,
) -> None:
    whole = RESPONSES[name]

    for cut in range(len(whole) + 1):
        response, body, _ = read(whole[:cut], whole[cut:])
        assert (response.status, body) == (200, b"hello world")
        assert response.finished
        assert response.reusable


@given(st.sampled_from(sorted(RESPONSES)), st.data())
def test_pieces_do_not_matter(name: str, data: st.DataObject) -> None:
    whole = RESPONSES[name]
    cuts = data.draw(st.lists(st.integers(0, len(whole))).map(sorted))

    pieces = [whole[a:b] for a, b in pairwise([0, *cuts, len(whole)])]
    response, body, _ = read(*pieces)

    assert body == b"hello world"
    assert response.finished


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.data())
def test_any_body_comes_out_of_its_chunks(
    chunks: list[bytes], data: st.DataObject
) -> None:
    framed = [b"%x\r\n%s\r\n" % (len(each), each) for each in chunks]
    whole = CHUNKED + b"".join(framed) + b"0\r\n\r\n"
    cuts = data.draw(st.lists(st.integers(0, len(whole))).map(sorted))

    pieces = [whole[a:b] for a, b in pairwise([0, *cuts, len(whole)])]
    response, body, _ = read(*pieces)

    assert body == b"".join(chunks)
    assert response.finished


def test_what_has_come_of_a_chunk_does_not_wait_for_the_rest() -> None:
    _, body, stamps = read(CHUNKED + b"b\r\nhello", b" world\r\n")

    assert body == b"hello world"
    assert stamps == [0, 1]


def test_chunks_of_one_read_are_one_piece() -> None:
    _, body, stamps = read(CHUNKED, b"5\r\nhello\r\n6\r\n world\r\n")

    assert body == b"hello world"
    assert stamps == [1]


@pytest.mark.parametrize(
    ("whole", "reusable"),
    [
        (HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (
            b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n",
            True,
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (RESPONSES["chunked"] + b"HTTP/1.1 400", False),
    ],
    ids=["close", "1.0", "1.0 kept", "no body", "talks out of turn"],
)
def test_a_connection_is_used_again_only_where_that_is_safe(
    whole: bytes, *, reusable: bool
) -> None:
    response, _, _ = read(whole)

    assert response.finished
    assert response.reusable is reusable


def test_without_a_length_the_body_goes_on_to_the_close() -> None:
    response, body, _ = read(HEAD + b"\r\nhello", b" world")

    assert not response.finished
    assert response.end()
    assert (body, response.reusable) == (b"hello world", False)


@pytest.mark.parametrize("cut", [0, 20, len(CHUNKED), len(CHUNKED) + 6])
def test_a_close_in_the_middle_is_no_end(cut: int) -> None:
    response, _, _ = read(RESPONSES["chunked"][:cut])

    assert not response.end()


@pytest.mark.parametrize(
    "junk",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"\x00" * 100,
        HEAD + b"Content-Length: many\r\n\r\n",
        CHUNKED + b"zz\r\nhello",
        CHUNKED + b"-5\r\nhello",
        CHUNKED + b"5\r\nhello world\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * (MAX_HEAD_BYTES // 6),
        CHUNKED + b"5;" + b"x" * MAX_SIZE_LINE_BYTES,
        CHUNKED + b"0\r\n" + b"x" * (MAX_HEAD_BYTES + 1),
    ],
    ids=[
        *("another protocol", "another version", "no status", "zeros"),
        *("no length", "no chunk size", "a negative size", "a wrong chunk size"),
        *("an endless head", "an endless size", "an endless trailer"),
    ],
)
def test_what_is_no_response_is_refused(junk: bytes) -> None:
    with pytest.raises(NotHttpError):
        read(junk)
