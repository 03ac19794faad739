"""Columns of integers in few bytes: what changes little takes little."""

import zlib

import numpy as np

from inferwatch.metrics.quantiles import Ints

LEVEL = 6
TIMED = 3
"""Rows of a time, a duration and a weight: often the duration is the time's step."""


def pack(columns: Ints) -> bytes:
    """Differences, their bytes sorted by significance, compressed."""
    steps = np.diff(columns, axis=1, prepend=0)
    if len(columns) == TIMED:
        steps[1] = columns[1] - steps[0]
    wide = steps.astype("<i8").view(np.uint8).reshape(len(columns), -1, 8)
    return zlib.compress(wide.transpose(0, 2, 1).tobytes(), LEVEL)


def unpack(packed: bytes, width: int) -> Ints:
    """The columns.

    Raises:
        ValueError, zlib.error: these are others.
    """
    wide = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(width, 8, -1)
    steps = np.ascontiguousarray(wide.transpose(0, 2, 1)).view("<i8")[:, :, 0]
    columns: Ints = np.cumsum(steps, axis=1)
    if width == TIMED:
        columns[1] = steps[1] + steps[0]
    return columns
