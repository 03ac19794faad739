"""An attack on whoever shows a text, and readings that are full of it."""

import dataclasses
from typing import Any

import msgspec

KEPT = "\x1b]52;c;aGk=\x07\x9b31m\x7f\r\u202e[bold]x[@click=app.quit]y[/][/]"
"""Writes the clipboard, colours, turns the writing round, ends the program."""
HOSTILE = f"{KEPT}\ud800"
"""No encoding has half a character: only what is not recorded can have it."""
OURS = {"metric", "key", "weak", "verdict", "slo", "boot_id"}
"""Words that are keys of ours, wherever they stand."""


def hostile(value: Any, attack: str = HOSTILE) -> Any:
    """The same, with the attack at the start and the end of every text in it."""
    if type(value) is str:
        return f"{attack}{value}{attack}"
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(hostile(each, attack) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value)]
        return dataclasses.replace(value, **_changed(value, names, attack))
    if isinstance(value, msgspec.Struct):
        changed = _changed(value, value.__struct_fields__, attack)
        return msgspec.structs.replace(value, **changed)
    return value


def _changed(value: Any, names: Any, attack: str) -> dict[str, Any]:
    return {
        name: hostile(getattr(value, name), attack)
        for name in names
        if name not in OURS
    }
