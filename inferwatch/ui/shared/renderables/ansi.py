"""Reads plotext's output: the little of ANSI that it writes."""

import re
from collections.abc import Iterator

_PIECE = re.compile(r"((?:\x1b\[[\d;]*m)*)([^\x1b]+)")
_COLOUR = re.compile(r"38;5;(\d+)m")


def coloured_runs(row: str) -> Iterator[tuple[str, int | None]]:
    r"""Text and the number of its colour, None for none.

    >>> list(coloured_runs("5┤\x1b[0m\x1b[38;5;17m▄█\x1b[0m "))
    [('5┤', None), ('▄█', 17), (' ', None)]
    """
    for codes, text in _PIECE.findall(row):
        found = _COLOUR.search(codes)
        yield text, int(found[1]) if found else None
