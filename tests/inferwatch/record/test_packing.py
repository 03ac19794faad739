"""What checkpoints are made of takes few bytes, and a wrong one is never believed."""

from random import Random

import numpy as np
import pytest

from inferwatch.record.checkpoints.blocks import compress, decompress, pack, unpack

CONTENT = b"".join(b"request %d of many, " % number for number in range(500))


def test_what_was_compressed_comes_back() -> None:
    for content in (b"", b"x", CONTENT):
        assert decompress(compress(content)) == content
    assert len(compress(CONTENT)) < 0.3 * len(CONTENT)


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


@pytest.mark.parametrize(
    "data",
    [[2], [2, 0, 1, 2], [2, 9, *range(11)], [2, 1, *range(4)]],
    ids=["too few columns", "no bytes", "too many bytes", "half a row"],
)
def test_columns_that_we_do_not_pack_so_are_refused(data: list[int]) -> None:
    with pytest.raises(ValueError, match="not columns as we pack them"):
        unpack(compress(bytes(data)), 2)


def test_bytes_that_were_changed_are_refused() -> None:
    packed, random = compress(CONTENT), Random(3)

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
