"""Finds the widgets of a type, for what is drawn several times a second."""

from collections.abc import Sequence
from typing import TypeVar, cast

from textual.dom import DOMNode
from textual.widget import Widget

WidgetType = TypeVar("WidgetType", bound=Widget)
FOUND = "_inferwatch_found"
"""Attribute of a node: Textual's count of changes below it, and what was found there.
"""


def widgets_of(node: DOMNode, kind: type[WidgetType]) -> Sequence[WidgetType]:
    """Return what ``node.query(kind)`` does; searches only after a change below."""
    changes = node._nodes._updates  # noqa: SLF001 - Textual tells it nowhere else
    before, found = vars(node).get(FOUND, (None, {}))
    if before != changes:
        found = {}
        vars(node)[FOUND] = changes, found
    if kind not in found:
        found[kind] = list(node.query(kind))
    return cast("Sequence[WidgetType]", found[kind])
