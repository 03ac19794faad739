"""Of a server's error its message is kept, and of what else it sent nothing."""

import pytest

from inferwatch.loadgen.exchange.reply import DETAIL_CHARS, error_message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"error":{"message":"No model `x`.","type":"NotFound"}}', "No model `x`."),
        ('{"object":"error","message":"too long"}', "too long"),
        ('{"error":"busy","error_type":"overloaded"}', "busy"),
        ('{"detail":"bad body"}', "bad body"),
        ('{"detail":[{"msg":"missing","input":"Hi"},{"msg":"odd"}]}', "missing; odd"),
        ('{"error":{"message":"cut off in the mid', "cut off in the mid"),
        (r'{"message":"two\nlines, \u00fcber"}', "two lines, über"),
    ],
    ids=["openai", "old vLLM", "TGI", "FastAPI", "validation", "cut", "escaped"],
)
def test_the_message_is_found(body: str, message: str) -> None:
    assert error_message(body.encode()) == message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Bad gateway</html>",
        b'"a text"',
        b'["a", "list"]',
        b'{"choices":[{"message":{"content":"a secret"}}]}',
        b'{"error":{"code":500}}',
        b'{"error":{"message":7}}',
        b'{"error":' + b"[" * 9_000,
        b"\xff\xfe\x00",
    ],
    ids=range(9),
)
def test_what_has_no_message_gives_none(body: bytes) -> None:
    assert error_message(body) is None


def test_what_a_terminal_would_obey_is_escaped() -> None:
    told = error_message(rb'{"message":"\u001b]52;c;aGk=\u0007 \u202egnp \u009b2J"}')

    assert told == r"\x1b]52;c;aGk=\x07 \u202egnp \x9b2J"


def test_a_long_message_is_cut() -> None:
    told = error_message(b'{"message":"' + b"x" * 9_000 + b'"}')

    assert told == "x" * (DETAIL_CHARS - 1) + "…"
