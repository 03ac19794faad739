"""Extracts the message of a server's error from its JSON."""

import json
import re

_MESSAGE = re.compile(r'"(?:message|detail)"\s*:\s*"((?:[^"\\]|\\.)*)')
"""Matches a JSON error message, even one that was cut off."""


def error_text(detail: str) -> str:
    r"""Return status and message of an error in one line; other text stays.

    >>> error_text('404 {"error":{"message":"There is no \\"x\\".","code":404}}')
    '404 There is no "x".'
    >>> error_text('Connection refused')
    'Connection refused'
    """
    match = _MESSAGE.search(detail)
    if match is None:
        return " ".join(detail.split())
    status = detail[: match.start()].partition("{")[0]
    return " ".join(f"{status} {_unescaped(match[1])}".split())


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
