"""A class of requests as people write it, in one line: keys, each with its value.

``name=chat share=0.98 prompt=200-800 output=100 slo="ttft_s<0.5 tpot_s<50ms"``
"""

import shlex
from collections.abc import Callable
from typing import Any

from inferwatch.loadgen.plan.file import lengths

GRAMMAR = "'name=chat share=0.98 prompt=200-800 output=100 slo=\"ttft_s<0.5\"'"
KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "name": ("name", str),
    "share": ("share", float),
    "prompt": ("prompt_tokens", lengths),
    "output": ("output_tokens", lengths),
    "slo": ("slo", str),
}
OPTIONAL = {"slo"}


def read_class(text: str) -> dict[str, Any]:
    """The fields of a ``RequestClass``.

    Raises:
        ValueError: it is none; the message says what would be.
    """
    try:
        given = _given(text)
        return {KEYS[key][0]: KEYS[key][1](value) for key, value in given.items()}
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; write {GRAMMAR}") from error


def _given(text: str) -> dict[str, str]:
    parts = [part.partition("=") for part in shlex.split(text)]
    given = {key: value for key, _, value in parts}
    if unknown := given.keys() - KEYS.keys():
        raise ValueError(f"there is no {min(unknown)!r}")
    if missing := KEYS.keys() - OPTIONAL - given.keys():
        raise ValueError(f"{min(missing)} is missing")
    return given
