"""Reads values of a foreign configuration, rejecting those of the wrong type."""

from collections.abc import Mapping, Sequence
from typing import Any

from inferwatch.limits.formats import ShapeError

MOST = 1 << 31
"""Larger than any size in a model; larger values would overflow later arithmetic."""


def first_number(text: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first of these keys that is set; a list of equal numbers counts as one.

    Raises:
        ShapeError: the value is no whole number, or out of range.
    """
    for name in names:
        value = text.get(name)
        if isinstance(value, list) and value:
            if any(each != value[0] for each in value):
                raise ShapeError(f"{name} differs between layers: unknown")
            value = value[0]
        if value is None or isinstance(value, bool) or value == []:
            continue
        if not isinstance(value, int):
            raise ShapeError(f"{name} is {value!r:.40}, which is no whole number")
        if not 0 <= value < MOST:
            raise ShapeError(f"{name} is {value!s:.40}")
        return value
    return None


def items(text: Mapping[str, Any], name: str) -> list[Any]:
    """A list; empty if it is not set.

    Raises:
        ShapeError: the value is no list.
    """
    value = text.get(name)
    if value is not None and not isinstance(value, list):
        raise ShapeError(f"{name} is {value!r:.40}, which is no list")
    return value or []
