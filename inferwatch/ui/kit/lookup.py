"""Finds the widgets of a type, for what is drawn several times a second."""

from collections.abc import Sequence
from typing import TypeVar, cast
from weakref import WeakKeyDictionary

from textual.dom import DOMNode
from textual.widget import Widget

WidgetType = TypeVar("WidgetType", bound=Widget)
_FOUND: WeakKeyDictionary[DOMNode, tuple[int, dict[type, Sequence[Widget]]]]
_FOUND = WeakKeyDictionary()
"""By node what was found below it, and Textual's count of changes there."""


def widgets_of(node: DOMNode, kind: type[WidgetType]) -> Sequence[WidgetType]:
    """Return what ``node.query(kind)`` does; searches only after a change below."""
    changes = node._nodes._updates  # noqa: SLF001 - Textual tells it nowhere else
    before, found = _FOUND.get(node, (None, {}))
    if before != changes:
        found = {}
        _FOUND[node] = changes, found
    if kind not in found:
        found[kind] = list(node.query(kind))
    return cast("Sequence[WidgetType]", found[kind])
