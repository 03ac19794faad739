"""Filters a model's configuration down to plain, non-private values.

Fields that may name paths, tokens or people are dropped: a configuration is foreign
text.
"""

import math
from collections.abc import Mapping
from typing import Any

MOST_TEXT, MOST_ITEMS, DEEPEST = 100, 512, 6
"""Longer texts or lists and deeper nesting do not describe a model's shape."""
PRIVATE = ("token", "path", "label", "auth", "prompt")
"""Fields whose name contains one of these words are dropped."""
NOTHING = ...
"""Stands for a dropped value."""


def plain_fields(fields: Mapping[Any, Any], depth: int = DEEPEST) -> dict[str, Any]:
    """The fields that are kept, with their values filtered likewise."""
    told = {}
    for name, value in fields.items():
        if not isinstance(name, str) or name.startswith("_"):
            continue
        if any(word in name.lower() for word in PRIVATE):
            continue
        kept = _plain_tree(value, depth)
        if kept is not NOTHING:
            told[name] = kept
    return told


def _plain_tree(value: object, depth: int) -> object:
    if isinstance(value, Mapping):
        return plain_fields(value, depth - 1) if depth else NOTHING
    if isinstance(value, list | tuple):
        if len(value) > MOST_ITEMS or not depth:
            return NOTHING
        items = [_plain_tree(each, depth - 1) for each in value]
        return NOTHING if NOTHING in items else items
    return _plain_value(value)


def _plain_value(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else NOTHING
    text = str(value)
    if not isinstance(value, str) and not text.startswith("torch."):
        return NOTHING
    is_place = "/" in text or "\\" in text
    too_long = len(text) > MOST_TEXT
    return NOTHING if is_place or too_long else text.removeprefix("torch.")
