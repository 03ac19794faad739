"""Reads one header off each HTTP request, where people chose one to group by.

The server handles a request in a context of its own, from the application's first
call to the tokenised request that goes to the engine. So what is noted at the one is
known at the other, whatever ids there are and whichever endpoint it is for, and it is
gone when the request is.
"""

from collections.abc import Iterable
from contextvars import ContextVar

from embedded_engine.probe.attribute_reader import Vllm
from embedded_engine.probe.hooks import Given, Hook
from embedded_engine.probe_settings import LONGEST_VALUE

_value: ContextVar[str | None] = ContextVar("inferwatch_group_header", default=None)
HTTP = "http"


class AskedHeader:
    """The hook on the application, and what it found."""

    def __init__(self, header: str) -> None:
        self._name = header.lower().encode("latin-1")

    def hooks(self) -> dict[str, Hook]:
        """By the names of the table of methods."""
        return {"asked": Hook(before=self._asked)}

    def _asked(self, _: Vllm, given: Given, __: int) -> None:
        scope = given[0]
        if scope["type"] == HTTP:
            _value.set(self._in(scope["headers"]))

    def _in(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        raw = next((value for name, value in headers if name == self._name), b"")
        text = raw[: 4 * LONGEST_VALUE].decode("utf-8", "replace").strip()
        return text[:LONGEST_VALUE] or None


def asked_header() -> str | None:
    """Of the request that is handled here and now."""
    return _value.get()
