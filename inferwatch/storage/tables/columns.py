"""Which field of a Struct stands in which column, both ways round."""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from types import NoneType
from typing import Any, get_args

import msgspec


class Columns:
    """The columns of the plain fields of one kind of Struct, in its order."""

    def __init__(
        self,
        kind: type[msgspec.Struct],
        *,
        without: Collection[str] = (),
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        fields = [
            field
            for field in msgspec.structs.fields(kind)
            if field.name != "source" and field.name not in without
        ]
        renamed = renamed or {}
        self.fields = tuple(field.name for field in fields)
        self.names = tuple(renamed.get(name, name) for name in self.fields)
        self._get = attrgetter(*self.fields)
        self._restorers = [
            (field.name, restorer)
            for field in fields
            if (restorer := _restorer(field.type)) is not None
        ]

    def values(self, struct: object) -> tuple[Any, ...]:
        """What goes into the columns."""
        values = self._get(struct)
        return values if len(self.fields) > 1 else (values,)

    def restore(self, values: Sequence[object]) -> dict[str, Any]:
        """The fields again, from what the columns hold."""
        fields: dict[str, Any] = dict(zip(self.fields, values, strict=True))
        for name, restorer in self._restorers:
            if fields[name] is not None:
                fields[name] = restorer(fields[name])
        return fields


def _restorer(annotation: object) -> Callable[[Any], object] | None:
    """SQLite knows neither enums nor booleans."""
    (kind,) = {*(get_args(annotation) or (annotation,))} - {NoneType}
    return kind if kind is bool or issubclass(kind, Enum) else None


def insert_sql(table: str, names: Sequence[str], verb: str = "INSERT") -> str:
    """One row into those columns."""
    marks = ", ".join("?" * len(names))
    return f"{verb} INTO {table} ({', '.join(names)}) VALUES ({marks})"


def select_sql(table: str, names: Sequence[str]) -> str:
    """A session's rows after an ordinal, in order of receipt, the ordinal first."""
    return (
        f"SELECT ordinal, {', '.join(names)} FROM {table} "  # noqa: S608  our own names
        "WHERE session = ? AND ordinal > ? ORDER BY ordinal"
    )
