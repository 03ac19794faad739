"""Values of a configuration that others wrote: what is of another kind is refused."""

from collections.abc import Mapping, Sequence
from typing import Any

from inferwatch.limits.formats import ShapeError

MOST = 1 << 31
"""No size of a model is as large; larger ones overflow what is made of them."""


def first_number(text: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first of them that is told; a list, of which all are equal, as one.

    Raises:
        ShapeError: it is no whole number, or none that a size can be.
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
    """A list; empty where it is not told.

    Raises:
        ShapeError: it is something else.
    """
    value = text.get(name)
    if value is not None and not isinstance(value, list):
        raise ShapeError(f"{name} is {value!r:.40}, which is no list")
    return value or []
