"""What may be kept of a server's error: its own message, and nothing else it sent.

The rest of a body can hold parts of answers and prompts.
"""

import json
import re

import msgspec

DETAIL_CHARS = 200
KEPT_BYTES = 16 << 10
"""Of a body that is no answer: a message that begins later is not found."""
_MESSAGE = re.compile(rb'"(?:message|detail)"\s*:\s*("(?:[^"\\]|\\.)*)')
"""Where the JSON around it was cut off."""


def error_message(body: bytes) -> str | None:
    r"""The message in a JSON error, fit to show; None where there is none.

    >>> error_message(b'{"error": {"message": "There is no \\u001bmodel."}}')
    'There is no \\x1bmodel.'
    >>> error_message(b'{"detail": [{"msg": "Field required", "input": "Hello"}]}')
    'Field required'
    >>> error_message(b'{"error": {"message": "cut o')
    'cut o'
    >>> error_message(b"Hello, world") is None
    True
    """
    try:
        told = msgspec.json.decode(body)
        found = _message(told) if isinstance(told, dict) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = _of_a_piece(body)
    return shown(found or "") or None


def shown(text: str) -> str:
    """The text in one line, cut, with what a terminal would obey made visible."""
    line = " ".join(text.split())
    cut = line if len(line) <= DETAIL_CHARS else f"{line[: DETAIL_CHARS - 1]}…"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in cut
    )


def _message(told: object) -> str | None:
    """The message in an error of OpenAI, vLLM, Ollama, TGI or FastAPI."""
    if isinstance(told, str):
        return told
    if isinstance(told, list):
        parts = (_message(each) for each in told)
        return "; ".join(part for part in parts if part) or None
    if not isinstance(told, dict):
        return None
    for name in ("error", "message", "detail", "msg"):
        if found := _message(told.get(name)):
            return found
    return None


def _of_a_piece(body: bytes) -> str | None:
    found = _MESSAGE.search(body[:KEPT_BYTES])
    if found is None:
        return None
    text = found[1].decode("utf-8", "replace")
    try:
        return str(json.loads(f'{text}"', strict=False))
    except ValueError:
        return text[1:]
