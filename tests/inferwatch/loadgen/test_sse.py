from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferwatch.loadgen.exchange.sse import (
    MAX_LINE_BYTES,
    SseError,
    SseEvent,
    SseReader,
)

STREAMS = {
    "plain": (b"data: one\n\ndata: two\n\n", ["one", "two"]),
    "crlf": (b"data: one\r\n\r\ndata: two\r\n\r\n", ["one", "two"]),
    "cr": (b"data: one\r\rdata: two\r\r", ["one", "two"]),
    "mixed line ends": (b"data: one\r\n\ndata: two\n\r\n", ["one", "two"]),
    "no space": (b"data:one\n\ndata:two\n\n", ["one", "two"]),
    "two spaces": (b"data:  one\n\n", [" one"]),
    "comments": (b": ping\n\ndata: one\n: in between\n\n: bye\n\n", ["one"]),
    "data over lines": (b"data: one\ndata: more\n\n", ["one\nmore"]),
    "data over CRLF lines": (b"data: one\r\ndata: more\r\n\r\n", ["one\nmore"]),
    "other fields": (b"id: 7\nretry: 10\ndata: one\nweird\n\n", ["one"]),
    "no data": (b"event: ping\n\ndata: one\n\n", ["one"]),
    "a colon in it": (b'data: {"a": "b: c"}\n\n', ['{"a": "b: c"}']),
    "many blank lines": (b"\n\n\ndata: one\n\n\n\n\ndata: two\n\n", ["one", "two"]),
    "accents": ("data: é€😀\n\n".encode(), ["é€😀"]),
    "cut off": (b"data: one\n\ndata: tw", ["one"]),
    "without the last blank line": (b"data: one\n\ndata: two\n", ["one"]),
}


def events(*pieces: bytes) -> list[SseEvent]:
    reader = SseReader()
    return [event for piece in pieces for event in reader.feed(piece)]


def texts(*pieces: bytes) -> list[str]:
    return [event.data.decode() for event in events(*pieces)]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_in_one_piece_gives_its_events(name: str) -> None:
    stream, expected = STREAMS[name]

    assert texts(stream) == expected


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_byte_by_byte_gives_the_same_events(name: str) -> None:
    stream, expected = STREAMS[name]

    assert texts(*(bytes([byte]) for byte in stream)) == expected


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cut_anywhere_gives_the_same_events(name: str) -> None:
    stream, expected = STREAMS[name]

    for cut in range(len(stream) + 1):
        assert texts(stream[:cut], stream[cut:]) == expected


@given(st.lists(st.sampled_from(sorted(STREAMS)), max_size=6), st.data())
def test_pieces_do_not_matter(names: list[str], data: st.DataObject) -> None:
    stream = b"".join(STREAMS[name][0] for name in names)
    cuts = data.draw(st.lists(st.integers(0, len(stream))).map(sorted))

    pieces = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]

    assert events(*pieces) == events(stream)


def test_an_event_carries_its_name() -> None:
    assert events(b"event: error\ndata: gone\n\ndata: x\n\n") == [
        SseEvent(b"gone", b"error"),
        SseEvent(b"x"),
    ]


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    junk = [b"x" * 1024] * (MAX_LINE_BYTES // 1024 + 1)

    with pytest.raises(SseError):
        events(*junk)
