"""Makes text that others chose safe to show in a terminal.

Request ids, model names, error messages and log lines can contain control characters
that a terminal obeys. They are shown instead.
"""

import re
from functools import cache

_HIDDEN = (
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters, changes of the writing direction, zero width, lone surrogates.

Joiners are kept, as they cannot harm a terminal.
"""
_UNESCAPED = "[\x7f-\U0010ffff]"


@cache
def _hidden() -> re.Pattern[str]:
    """Compile the pattern when needed, as that is slow and ``--help`` never does."""
    return re.compile(_HIDDEN)


def visible(text: str) -> str:
    r"""Return one line: control characters as pictures, others as U+ numbers.

    >>> visible("a\x1b[31mb\x07\n")
    'a␛[31mb␇␊'
    >>> visible("\x9b31m \u202egpj")
    '␛[31m <U+202E>gpj'
    >>> visible("größer 大 🙂")
    'größer 大 🙂'
    """
    return text if text.isprintable() else _hidden().sub(_picture, text)


def visible_lines(text: str) -> str:
    r"""Return visible text as :func:`visible` does, but keep the line breaks.

    >>> visible_lines("a\x1b\nb\r")
    'a␛\nb␍'
    """
    return "\n".join(map(visible, text.split("\n")))


def as_html(text: str) -> str:
    """Return visible lines, escaped for HTML."""
    from html import escape  # noqa: PLC0415 - only pages need it

    return escape(visible_lines(text))


def ascii_json(encoded: bytes) -> bytes:
    r"""Return equal JSON in printable ASCII.

    >>> ascii_json('["ä\x9b\x7f🙂"]'.encode())
    b'["\\u00e4\\u009b\\u007f\\ud83d\\ude42"]'
    """
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    return re.sub(_UNESCAPED, _escaped, encoded.decode()).encode()


def strict_json(facts: object, indent: int | None = None) -> str:
    """Return standard JSON: infinite numbers and NaN become null.

    >>> strict_json({"temperature": float("inf"), "top_p": 0.5})
    '{"temperature": null, "top_p": 0.5}'
    """
    import json  # noqa: PLC0415 - most commands print none

    try:
        return json.dumps(facts, allow_nan=False, indent=indent)
    except ValueError:
        standard = json.loads(json.dumps(facts), parse_constant=lambda _: None)
        return json.dumps(standard, allow_nan=False, indent=indent)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if code < 0xA0:  # C1 codes stand for escape and a letter
        return f"␛{chr(code - 0x40)}"
    return f"<U+{code:04X}>"


def _escaped(match: re.Match[str]) -> str:
    import json  # noqa: PLC0415 - as above

    return "\\u007f" if match[0] == "\x7f" else json.dumps(match[0])[1:-1]
