"""Checkpoints in few bytes; columns of integers that change little take little."""

import zlib
from importlib.util import find_spec
from typing import Any

import numpy as np

from inferwatch.metrics.series.quantiles import Ints

HAS_LZMA = find_spec("_lzma") is not None
"""Some Pythons are built without: then checkpoints are further apart."""
if HAS_LZMA:
    import lzma

CHECK_BYTES = 4
LZMA, ZLIB = b"x", b"z"
"""The first byte of what was compressed."""
ZLIB_LEVEL = 6
TIMED = 3
"""Rows of a time, a duration and a weight: often the duration is the time's step."""


def compress(content: bytes) -> bytes:
    """An eighth less than zlib makes of it, nearly as fast."""
    if not HAS_LZMA:
        return ZLIB + zlib.compress(content, ZLIB_LEVEL)
    held = lzma.compress(content, lzma.FORMAT_RAW, filters=_filters())
    return LZMA + _check(content) + held


def decompress(packed: bytes) -> bytes:
    """Give back what was compressed.

    Raises:
        ValueError: it is something else.
    """
    try:
        if packed[:1] == ZLIB:
            return zlib.decompress(packed[1:])
        if not HAS_LZMA or packed[:1] != LZMA:
            raise ValueError("not compressed as we do")
        return _expanded(packed[1:])
    except zlib.error as error:
        raise ValueError(str(error)) from error


def _expanded(packed: bytes) -> bytes:
    try:
        held = packed[CHECK_BYTES:]
        content = lzma.decompress(held, lzma.FORMAT_RAW, filters=_filters())
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from error
    if packed[:CHECK_BYTES] != _check(content):
        raise ValueError("not what was compressed")
    return content


def _check(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(CHECK_BYTES, "big")


def _filters() -> list[dict[str, Any]]:
    """For some kilobytes, mostly numbers: quick to find what repeats."""
    return [
        {
            "id": lzma.FILTER_LZMA2,
            "dict_size": 1 << 16,
            "lc": 0,
            "lp": 0,
            "pb": 0,
            "mode": lzma.MODE_FAST,
            "mf": lzma.MF_HC4,
            "nice_len": 32,
            "depth": 8,
        }
    ]


def pack(columns: Ints) -> bytes:
    """Compress columns."""
    return compress(_shuffled(columns))


def unpack(packed: bytes, width: int) -> Ints:
    """Give back the columns.

    Raises:
        ValueError: these are others.
    """
    return _unshuffled(decompress(packed), width)


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
