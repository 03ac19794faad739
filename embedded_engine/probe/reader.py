"""Reads attributes of vLLM's objects at C speed, and survives those that moved."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from embedded_engine.probe.vllm_names import Fields

Vllm = Any
"""An object of vLLM's: the probe must not import their types."""


class Reader:
    """Reads the fields of one kind of object in one go; one field alone comes bare.

    The first object it meets decides which of them there are.
    """

    def __init__(
        self, kind: str, fields: Fields, missing: Callable[[str], None]
    ) -> None:
        self.read: Callable[[Vllm], Any] = self._first
        """To be looked up at each use: it gets faster."""
        self._kind = kind
        self._fields = fields
        self._missing = missing

    def _first(self, thing: Vllm) -> Any:  # noqa: ANN401 - so are the values
        absent = {path for path, _ in self._fields if not _has(thing, path)}
        for path in sorted(absent):
            self._missing(f"{self._kind}.{path}")
        self.read = self._lenient(absent) if absent else self._strict()
        return self.read(thing)

    def _strict(self) -> Callable[[Vllm], Any]:
        return attrgetter(*(path for path, _ in self._fields))

    def _lenient(self, absent: set[str]) -> Callable[[Vllm], Any]:
        getters = [
            _always(default) if path in absent else attrgetter(path)
            for path, default in self._fields
        ]
        if len(getters) == 1:
            return getters[0]
        return lambda thing: tuple(get(thing) for get in getters)


def _always(value: object) -> Callable[[Vllm], Any]:
    return lambda _: value


def _has(thing: Vllm, path: str) -> bool:
    try:
        attrgetter(path)(thing)
    except AttributeError:
        return False
    return True
