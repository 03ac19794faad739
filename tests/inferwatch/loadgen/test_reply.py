from contextlib import suppress

import pytest

from inferwatch.loadgen.exchange import reply as reply_module
from inferwatch.loadgen.exchange.reply import UNREAD_BYTES, NotAnEventError, Reply
from inferwatch.loadgen.exchange.sse import SseError


def token(text: str = "é", finish: str = "null") -> str:
    return f'data: {{"choices":[{{"text":"{text}","finish_reason":{finish}}}]}}\n\n'


def usage(tokens: int) -> str:
    counts = f'{{"prompt_tokens":5,"completion_tokens":{tokens}}}'
    return f'data: {{"choices":[],"usage":{counts}}}\n\n'


DONE = "data: [DONE]\n\n"
LAST = token(finish='"length"')
BARE = token(text="", finish='"stop"')


def read(*pieces: str | bytes) -> Reply:
    """Each piece arrives at the number of its place."""
    reply = Reply()
    for at_ns, piece in enumerate(pieces):
        reply.read(piece.encode() if isinstance(piece, str) else piece, at_ns)
    reply.end()
    return reply


def test_an_answer_without_end_is_read_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reply_module, "MOST_ANSWER_BYTES", 100_000, raising=False)
    reply, piece = Reply(), (token() * 100).encode()
    for at_ns in range(100_000 // len(piece)):
        reply.read(piece, at_ns)
    with pytest.raises(SseError, match="an answer of more than 100000 bytes"):
        reply.read(piece * (UNREAD_BYTES // len(piece) + 1), at_ns)


def test_each_chunk_keeps_the_stamp_of_its_arrival() -> None:
    reply = read(token(), token(), LAST, usage(3), DONE)

    assert reply.stamps_ns == [0, 1, 2]
    assert (reply.prompt_tokens, reply.output_tokens) == (5, 3)
    assert reply.complete


def test_a_chunk_is_stamped_when_its_last_byte_has_come() -> None:
    first, second = token().encode()[:-1], b"\n" + token().encode()

    assert read(first, second).stamps_ns == [1, 1]


BLANK = token(text="")


def counted(text: str, tokens: int, finish: str = "null") -> str:
    """A chunk that says how many tokens have come so far."""
    choice = f'{{"text":"{text}","finish_reason":{finish}}}'
    usage = f'{{"completion_tokens":{tokens}}}'
    return f'data: {{"choices":[{choice}],"usage":{usage}}}\n\n'


@pytest.mark.parametrize("end", ["", usage(3), usage(4), DONE])
def test_a_first_chunk_that_says_nothing_is_not_the_first_token(end: str) -> None:
    assert read(BLANK, token(), token(), LAST, end).stamps_ns[0] == 1


def test_what_came_before_the_first_text_is_no_gap_of_its_tokens() -> None:
    """With as many tokens as chunks, two had come by the first text."""
    reply = read(BLANK, token(), token(), LAST, usage(4))

    assert reply.stamps_ns == [1, 2, 3]
    assert reply.first_chunk_tokens == 2


def test_a_token_without_text_is_a_token_where_the_count_says_so() -> None:
    """Half a character has no text yet."""
    assert read(token(), BLANK, LAST, usage(3)).stamps_ns == [0, 1, 2]
    assert read(token(), BLANK, LAST, usage(2)).stamps_ns == [0, 2]
    assert read(token(), BLANK, LAST).stamps_ns == [0, 2]


def test_an_answer_that_says_nothing_has_the_tokens_that_are_counted() -> None:
    assert read(BLANK, BLANK, BARE, usage(3)).stamps_ns == [0, 1, 2]
    assert read(BLANK, BARE, usage(1)).stamps_ns == [1]
    assert read(BARE, usage(4)).stamps_ns == [0]
    assert read(BLANK, BARE, usage(0)).stamps_ns == []


def test_a_finish_after_bundled_tokens_is_no_token() -> None:
    """Five chunks of four tokens: the count exceeds the chunks all the same."""
    assert read(*[token()] * 5, BARE, usage(20)).stamps_ns == [0, 1, 2, 3, 4]


def test_a_finish_after_which_the_count_is_the_same_is_no_token() -> None:
    chunks = [counted("four of them", 4 * n) for n in range(1, 6)]

    reply = read(*chunks, counted("", 20, '"stop"'), usage(20))

    assert reply.stamps_ns == [0, 1, 2, 3, 4]
    assert reply.first_chunk_tokens == 4


def test_a_finish_that_counts_one_more_is_a_token() -> None:
    reply = read(counted("a", 4), counted("", 5, '"stop"'), usage(5))

    assert reply.stamps_ns == [0, 1]


def test_a_count_that_comes_with_the_finish_is_of_the_whole_answer() -> None:
    assert read(token(), token(), counted("", 2, '"stop"')).stamps_ns == [0, 1]
    assert read(token(), token(), counted("", 3, '"stop"')).stamps_ns == [0, 1, 2]


def test_a_bare_finish_is_a_token_when_the_server_counts_one_more() -> None:
    assert read(token(), token(), BARE, usage(3)).stamps_ns == [0, 1, 2]


def test_a_bare_finish_is_no_token_when_the_count_is_full() -> None:
    assert read(token(), token(), BARE, usage(2)).stamps_ns == [0, 1]


def test_a_bare_finish_is_no_token_when_nobody_counts() -> None:
    assert read(token(), token(), BARE).stamps_ns == [0, 1]


def test_the_count_is_unknown_until_the_server_tells() -> None:
    assert read(token(), LAST).output_tokens is None


@pytest.mark.parametrize(
    "stream",
    [token() + LAST, token() + usage(1), token() + DONE],
    ids=["finish reason", "usage", "done"],
)
def test_each_of_three_signs_completes_an_answer(stream: str) -> None:
    assert read(stream).complete


def test_running_usage_completes_nothing() -> None:
    running = '{"choices":[{"text":"a"}],"usage":{"completion_tokens":1}}'

    reply = read(f"data: {running}\n\n")

    assert not reply.complete
    assert reply.output_tokens == 1


@pytest.mark.parametrize(
    "stream",
    ['data: {"error":{"message":"gone"}}\n\n', "event: error\ndata: gone\n\n"],
    ids=["as data", "as a named event"],
)
def test_an_error_in_the_stream_is_kept(stream: str) -> None:
    assert "gone" in (read(token(), stream).error or "")


def test_an_error_as_old_servers_have_it_is_kept() -> None:
    event = 'data: {"object":"error","message":"too long","code":400}\n\n'

    assert read(event).error == "too long"


@pytest.mark.parametrize("error", ["null", "false", '""', "{}"])
def test_an_empty_error_is_none(error: str) -> None:
    event = f'data: {{"choices":[{{"text":"a"}}],"error":{error}}}\n\n'

    assert read(event).error is None


DEEP = "[" * 5_000 + "]" * 5_000
NONSENSE = [
    "{not json",
    "[]",
    '{"choices":7}',
    b'{"choices":[{"text":"\xff\xfe"}]}',
    f'{{"x":{DEEP}}}',
    f'{{"choices":[],"error":{DEEP}}}',
    '{"choices":[],"usage":{"completion_tokens":10000000000000000000000000}}',
    '{"choices":[],"usage":{"completion_tokens":-1}}',
    '{"choices":[],"usage":{"prompt_tokens":-1}}',
    '{"choices":[{"text":"a","token_ids":[10000000000000000000000000]}]}',
    '{"choices":[{"text":"\\ud800"}]}',
]


@pytest.mark.parametrize("junk", NONSENSE, ids=range(len(NONSENSE)))
def test_what_is_no_completion_is_refused(junk: str | bytes) -> None:
    event = junk.encode() if isinstance(junk, str) else junk
    with pytest.raises(NotAnEventError) as refused:
        read(b"data: " + event + b"\n\n")

    assert len(str(refused.value)) < 250
    assert "not json" not in str(refused.value), "a part of an answer"


@pytest.mark.parametrize(
    "body",
    [
        '{"error": {"message": "overloaded"}}',
        '{\n "error": {\n  "message": "overloaded"\n }\n}\n',
        '{"error": "overloaded"}',
        '{"detail": "overloaded"}',
        'data: {"error": {"message": "overloaded"}}',
    ],
    ids=["openai", "indented", "text", "fastapi", "an event without its end"],
)
def test_an_error_that_is_no_stream_is_told(body: str) -> None:
    reply = Reply()
    reply.read(body.encode(), 1)

    with suppress(NotAnEventError):
        reply.end()
    assert reply.error == "overloaded"


def test_a_body_that_is_no_stream_is_named_and_not_repeated() -> None:
    reply = Reply()
    reply.content_type = "text/html\x1b[2J"
    reply.read(b"<html>A secret: 42", 1)

    with pytest.raises(NotAnEventError, match=r"a body of text/html\\x1b\[2J$"):
        reply.end()
    assert reply.error is None


@pytest.mark.parametrize("body", ["", "\n\n", ": still here\n\n", "retry: 10\n\n"])
def test_a_stream_without_events_is_a_stream(body: str) -> None:
    assert read(body).stamps_ns == []


def test_done_is_the_end_whatever_follows() -> None:
    reply = read(token(), LAST, DONE, token(), "data: {not json\n\n", b"\xff" * 99)

    assert reply.done_ns == 2
    assert reply.stamps_ns == [0, 1]


def test_done_in_a_text_is_no_end() -> None:
    reply = Reply()
    reply.read(token(text="[DONE]").encode(), 0)

    assert reply.looks_done()
    assert reply.done_ns is None


@pytest.mark.parametrize("cut", range(1, len(DONE)))
def test_done_in_two_pieces_may_be_the_end(cut: int) -> None:
    reply = Reply()
    reply.read(token().encode(), 0)
    assert not reply.looks_done()

    reply.read(DONE[:cut].encode(), 1)
    reply.read(DONE[cut:].encode(), 2)

    assert reply.looks_done()
    assert reply.done_ns == 2


def delta(text: str = "null", finish: str = "null", **more: str) -> str:
    fields = {"content": text, **more}
    body = ",".join(f'"{name}":{value}' for name, value in fields.items())
    choice = f'{{"index":0,"delta":{{{body}}},"finish_reason":{finish}}}'
    return f'data: {{"choices":[{choice}]}}\n\n'


ROLE = delta('""', role='"assistant"')
CHAT_END = delta('""', finish='"stop"')


def test_the_chunk_that_names_the_role_is_no_token() -> None:
    assert read(ROLE, delta('"a"'), delta('"b"'), CHAT_END).stamps_ns == [1, 2]


def test_a_role_that_comes_with_the_first_token_is_one() -> None:
    assert read(delta('"a"', role='"assistant"'), CHAT_END).stamps_ns == [0]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_tokens(name: str) -> None:
    thought = delta(**{name: '"hm"'})

    assert read(ROLE, thought, delta('"a"'), CHAT_END).stamps_ns == [1, 2]


def test_the_call_of_a_tool_is_tokens() -> None:
    call = delta(tool_calls='[{"index":0,"function":{"arguments":"{"}}]')

    assert read(ROLE, call, CHAT_END).stamps_ns == [1]


def test_an_empty_delta_is_not_the_first_token() -> None:
    assert read(ROLE, delta('""'), delta('"a"'), CHAT_END).stamps_ns == [2]


def test_no_tool_calls_are_no_token() -> None:
    role = delta('""', role='"assistant"', tool_calls="[]")

    assert read(role, delta('"a"')).stamps_ns == [1]


def test_a_read_of_several_tokens_is_counted_as_merged() -> None:
    assert read(token() + token(), token(), LAST + usage(4) + DONE).merged_reads == 1


def test_the_role_and_the_first_token_in_one_read_are_not_merged() -> None:
    assert read(ROLE + delta('"a"'), delta('"b"')).merged_reads == 0


def test_much_that_waits_is_decoded_before_the_end() -> None:
    reply = Reply()
    junk = f"data: {'x' * 4096}\n\n".encode()
    for at_ns in range(UNREAD_BYTES // len(junk)):
        reply.read(junk, at_ns)

    with pytest.raises(NotAnEventError):
        reply.read(junk, 100)


def test_after_nonsense_nothing_more_is_taken() -> None:
    reply = Reply()
    reply.read(token().encode() + b"data: {junk\n\n", 1)
    reply.read(token().encode(), 2)

    assert reply.stamps_ns == [1]
    with pytest.raises(NotAnEventError):
        reply.end()
