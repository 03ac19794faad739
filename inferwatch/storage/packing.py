"""Columns of integers in few bytes: what changes little takes little."""

import zlib

import numpy as np

from inferwatch.metrics.quantiles import Ints

LEVEL = 6
TIMED = 3
"""Rows of a time, a duration and a weight: often the duration is the time's step."""


def pack(columns: Ints) -> bytes:
    """Compressed."""
    return zlib.compress(_shuffled(columns), LEVEL)


def unpack(packed: bytes, width: int) -> Ints:
    """The columns.

    Raises:
        ValueError, zlib.error: these are others.
    """
    return _unshuffled(zlib.decompress(packed), width)


def _shuffled(columns: Ints) -> bytes:
    """Differences from row to row, their bytes sorted by significance."""
    steps = np.diff(columns, axis=1, prepend=0)
    if len(columns) == TIMED:
        steps[1] = columns[1] - steps[0]
    wide = np.ascontiguousarray(steps, "<i8").view(np.uint8)
    return wide.reshape(len(columns), -1, 8).transpose(0, 2, 1).tobytes()


def _unshuffled(held: bytes, width: int) -> Ints:
    wide = np.frombuffer(held, np.uint8).reshape(width, 8, -1)
    steps = np.ascontiguousarray(wide.transpose(0, 2, 1)).view("<i8")[:, :, 0]
    columns: Ints = np.cumsum(steps, axis=1)
    if width == TIMED:
        columns[1] = steps[1] + steps[0]
    return columns
