import pytest

from inferwatch.loadgen.reply import UNREAD_BYTES, NotAnEventError, Reply


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


def test_each_chunk_keeps_the_stamp_of_its_arrival() -> None:
    reply = read(token(), token(), LAST, usage(3), DONE)

    assert reply.stamps_ns == [0, 1, 2]
    assert (reply.prompt_tokens, reply.output_tokens) == (5, 3)
    assert reply.complete


def test_a_chunk_is_stamped_when_its_last_byte_has_come() -> None:
    first, second = token().encode()[:-1], b"\n" + token().encode()

    assert read(first, second).stamps_ns == [1, 1]


def test_a_token_without_text_is_a_token() -> None:
    """Half a character has no text yet."""
    assert read(token(text=""), token(), LAST).stamps_ns == [0, 1, 2]


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


@pytest.mark.parametrize("junk", ["{not json", "[]", '{"choices":7}'])
def test_what_is_no_completion_is_refused(junk: str) -> None:
    with pytest.raises(NotAnEventError):
        read(f"data: {junk}\n\n")


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


def test_a_delta_of_half_a_character_is_a_token() -> None:
    assert read(ROLE, delta('""'), delta('"a"'), CHAT_END).stamps_ns == [1, 2]


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
