"""API keys by reference: in a variable or a file, where ``ps`` cannot show them.

``env:NAME`` and ``@FILE`` stand for what the variable or the file holds, as a whole
value or as its last word: ``Authorization: Bearer env:GATEWAY_KEY``.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from inferwatch.errors import UsageError

MOST_BYTES = 16_384
"""The largest file that can hold a key."""
SECRET = re.compile(r"auth|cookie|key|pass|secret|signature|token", re.IGNORECASE)
"""A header whose name matches has a secret value."""
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The names that HTTP allows for headers."""


def key_header(key: str) -> dict[str, str]:
    """Return the header for an API key, as OpenAI's API defines it."""
    return {"Authorization": f"Bearer {key}"}


def from_env(name: str) -> str:
    """Return the value of an environment variable.

    Raises:
        UsageError: it is not set.
    """
    key = os.environ.get(name, "").strip()
    if not key:
        raise UsageError(f"the key is to be in the variable {name}, which is not set")
    return _sendable(key, f"the variable {name}")


def from_file(path: Path) -> str:
    """Return the contents of a file, without surrounding whitespace.

    Raises:
        UsageError: it cannot be read, or is empty.
    """
    try:
        with path.expanduser().open("rb") as file:
            key = file.read(MOST_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        raise UsageError(f"the key is to be in {path}: {error.strerror}") from error
    if not key:
        raise UsageError(f"the key is to be in {path}, which is empty")
    return _sendable(key, str(path))


def header_lines(lines: Iterable[str]) -> dict[str, str]:
    """Return headers as ``--header`` gives them, with references resolved.

    Raises:
        UsageError: a line is not a header.
    """
    parsed = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise UsageError("--header is written 'Name: value'")
        parsed[name.strip()] = value.strip()
    return headers(parsed)


def headers(given: Mapping[str, str], beside: Path | None = None) -> dict[str, str]:
    """Return the headers with references resolved; files are relative to ``beside``.

    Raises:
        UsageError: one is not a valid header; the message has no value.
    """
    for name in given:
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot be the name of a header")
    return {
        name: _sendable(_followed(value, beside), f"the header {name}")
        for name, value in given.items()
    }


def merged(*given: Mapping[str, str]) -> dict[str, str]:
    """Merge headers; of names that differ at most by case, the last counts."""
    by_name = {
        name.lower(): (name, value) for each in given for name, value in each.items()
    }
    return dict(by_name.values())


def literal_secrets(given: Mapping[str, str]) -> list[str]:
    """Return the names of headers that hold a secret in plain text."""
    return [
        name
        for name, value in given.items()
        if SECRET.search(name) and not _reference(value)
    ]


def _followed(value: str, beside: Path | None) -> str:
    before, _, last = value.rpartition(" ")
    start = f"{before} " if before else ""
    if not _reference(value):
        return value
    if name := last.removeprefix("env:"):
        if name != last:
            return start + from_env(name)
        return start + from_file((beside or Path()) / Path(last[1:]).expanduser())
    raise UsageError("env: is followed by the name of a variable")


def _reference(value: str) -> bool:
    return value.rpartition(" ")[2].startswith(("env:", "@"))


def _sendable(value: str, where: str) -> str:
    """Return a header's value; refuse one with line breaks or not in ASCII."""
    if not (value.isascii() and value.isprintable()):
        raise UsageError(f"{where} must hold printable ASCII, in one line")
    return value
