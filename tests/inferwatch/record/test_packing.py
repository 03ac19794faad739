"""What checkpoints are made of takes few bytes, and a wrong one is never believed."""

import lzma
import zlib
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from inferwatch.record.checkpoints import blocks as packing
from inferwatch.record.checkpoints.blocks import compress, decompress, pack, unpack

CONTENT = b"".join(b"request %d of many, " % number for number in range(500))


def older(content: bytes) -> bytes:
    """What earlier versions made of content."""
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 16, "lc": 0, "pb": 0}]
    data = lzma.compress(content, lzma.FORMAT_RAW, filters=filters)
    return packing.LZMA + zlib.crc32(content).to_bytes(4, "big") + data


@pytest.mark.parametrize("pack_content", [compress, older], ids=["now", "older"])
def test_what_was_compressed_comes_back(pack_content: Callable[[bytes], bytes]) -> None:
    for content in (b"", b"x", CONTENT):
        assert decompress(pack_content(content)) == content
    assert len(pack_content(CONTENT)) < 0.3 * len(CONTENT)


@pytest.mark.parametrize(
    "columns",
    [
        [[1, 5, 9], [-4, 2**62, 0], [7, 7, 7]],
        [[2**63 - 1, -(2**63), 0, -1]],
        [[0, 0], [0, 0]],
        [[], []],
    ],
    ids=["small and large", "the largest", "zeros", "no rows"],
)
def test_columns_come_back(columns: list[list[int]]) -> None:
    given = np.array(columns, np.int64)

    assert np.array_equal(unpack(pack(given), len(given)), given)


def test_columns_that_an_older_version_packed_come_back() -> None:
    """They had all bytes of each difference, those of a significance side by side."""
    steps = np.array([[5, -7, 300], [2**40, -1, 0]], "<i8")
    planes = steps.view(np.uint8).reshape(2, 3, 8).transpose(0, 2, 1)

    assert np.array_equal(unpack(older(planes.tobytes()), 2), np.cumsum(steps, 1))


def test_more_columns_than_were_packed_are_refused() -> None:
    packed = pack(np.array([[1, 5, 9], [-4, 2**62, 0]], np.int64))

    with pytest.raises(ValueError, match="not columns as we pack them"):
        unpack(packed, 40)


@pytest.mark.parametrize("pack_content", [compress, older], ids=["now", "older"])
def test_bytes_that_were_changed_are_refused(
    pack_content: Callable[[bytes], bytes],
) -> None:
    packed, random = pack_content(CONTENT), Random(3)

    for _ in range(300):
        bad = bytearray(packed)
        bad[random.randrange(len(bad))] ^= 1 << random.randrange(8)
        try:
            assert decompress(bytes(bad)) == CONTENT  # a bit that means nothing
        except ValueError:
            continue
    for end in range(0, len(packed), 7):
        with pytest.raises(ValueError, match=r"\w"):
            decompress(packed[:end])


def test_bytes_that_only_another_python_expands_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = older(CONTENT)
    monkeypatch.setattr(packing, "HAS_LZMA", False)

    with pytest.raises(ValueError, match="not compressed as we do"):
        decompress(packed)
