"""Names of groups: values of requests, and what stands for those without a name."""

OTHERS = "others"
"""All groups beyond those that are told apart."""
NO_VALUE = "–"
"""Requests without a value."""


def told_name(value: str | None) -> str:
    """Return the name of a value; one that has a name of ours is quoted.

    >>> told_name("team-a"), told_name(None), told_name("others"), told_name('"–"')
    ('team-a', '–', '"others"', '""–""')
    """
    if value is None:
        return NO_VALUE
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return f'"{value}"' if is_quoted or value in {OTHERS, NO_VALUE} else value
