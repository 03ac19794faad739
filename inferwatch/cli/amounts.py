"""Amounts as people type them: ``30d``, ``5GB``."""

import click


def age(context: click.Context, param: click.Parameter, value: str | None) -> object:
    """``36h``, ``30d``, ``4w``: seconds."""
    from inferwatch.storage.retention import AGE_FORMS, age_s

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
    from inferwatch.storage.retention import SIZE_FORMS, size_bytes

    if value is None:
        return None
    found = size_bytes(value)
    if found is None:
        raise click.BadParameter(
            f"{value!r} is no size: write {SIZE_FORMS}", context, param
        )
    return found
