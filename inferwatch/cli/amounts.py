"""What people type as an amount or as a name, read before anything is done with it."""

from math import isfinite
from typing import Any

import click

MOST_S = 1e8
"""Three years; beyond it is a slip, and nanoseconds no longer fit the record."""


class FiniteRange(click.FloatRange):
    """A number within bounds; ``nan`` is within none."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Refuse what is no number, or infinite."""
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"{value!r} is no number to reckon with", param, ctx)
        return found


SECONDS = FiniteRange(0, MOST_S)
SOME_SECONDS = FiniteRange(0, MOST_S, min_open=True)


def name(context: click.Context, param: click.Parameter, value: str | None) -> object:
    """What a session can be called; None when nothing is left of it."""
    from inferwatch.errors import UsageError
    from inferwatch.storage.sessions.housekeeping import checked_name

    if value is None:
        return None
    try:
        return checked_name(value)
    except UsageError as error:
        raise click.BadParameter(str(error), context, param) from error


def age(context: click.Context, param: click.Parameter, value: str | None) -> object:
    """``36h``, ``30d``, ``4w``: seconds."""
    from inferwatch.storage.sessions.retention import AGE_FORMS, age_s

    if value is None:
        return None
    seconds = age_s(value)
    if seconds is None:
        raise click.BadParameter(
            f"{value!r} is no age: write {AGE_FORMS}", context, param
        )
    return seconds


def size(context: click.Context, param: click.Parameter, value: str | None) -> object:
    """``500MB``, ``5GB``, decimal: bytes."""
    from inferwatch.storage.sessions.retention import SIZE_FORMS, size_bytes

    if value is None:
        return None
    found = size_bytes(value)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is no size: write {SIZE_FORMS}", context, param
        )
    return found
