"""Reads attributes of vLLM's objects fast, and tolerates renamed ones."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from embedded_engine.probe.vllm_names import Fields

Vllm = Any
"""An object of vLLM's: the probe must not import its types."""


class AttributeReader:
    """Reads several attributes of an object at once; a single one is not in a tuple.

    The first object it reads decides which attributes exist, and under which name.
    """

    def __init__(
        self, kind: str, fields: Fields, missing: Callable[[str], None]
    ) -> None:
        self.read: Callable[[Vllm], Any] = self._first
        """Must be looked up for each call, since it is replaced after the first one."""
        self._kind = kind
        self._fields = fields
        self._missing = missing

    def _first(self, thing: Vllm) -> Any:  # noqa: ANN401 - so are the values
        paths = [_path_in(thing, names) for names, _ in self._fields]
        lacks = [
            names.partition("|")[0]
            for (names, _), path in zip(self._fields, paths, strict=True)
            if path is None
        ]
        for name in sorted(lacks):
            self._missing(f"{self._kind}.{name}")
        existing = [path for path in paths if path is not None]
        self.read = self._lenient(paths) if lacks else attrgetter(*existing)
        return self.read(thing)

    def _lenient(self, paths: Sequence[str | None]) -> Callable[[Vllm], Any]:
        getters = [
            _always(default) if path is None else attrgetter(path)
            for (_, default), path in zip(self._fields, paths, strict=True)
        ]
        if len(getters) == 1:
            return getters[0]
        return lambda thing: tuple(get(thing) for get in getters)


def _always(value: object) -> Callable[[Vllm], Any]:
    return lambda _: value


def _path_in(thing: Vllm, names: str) -> str | None:
    """The first of several alternative paths that exists."""
    return next((name for name in names.split("|") if _has(thing, name)), None)


def _has(thing: Vllm, path: str) -> bool:
    try:
        attrgetter(path)(thing)
    except AttributeError:
        return False
    return True
