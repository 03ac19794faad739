"""Amounts as people type them: ``30d``, ``5GB``."""

import click


def age(context: click.Context, param: click.Parameter, value: str | None) -> object:
    """``90m``, ``36h``, ``30d``, ``4w``: seconds."""
    from inferwatch.storage.retention import age_s

    if value is None:
        return None
    seconds = age_s(value)
    if seconds is None:
        raise click.BadParameter(
            f"{value!r} is no age: try 36h, 30d or 4w", context, param
        )
    return seconds


def size(context: click.Context, param: click.Parameter, value: str | None) -> object:
    """``500MB``, ``5GB``, decimal: bytes."""
    from inferwatch.storage.retention import size_bytes

    if value is None:
        return None
    found = size_bytes(value)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is no size: try 500MB or 5GB", context, param
        )
    return found
