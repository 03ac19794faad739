"""What checkpoints are made of takes few bytes, and a wrong one is never believed."""

from random import Random

import numpy as np
import pytest

from inferwatch.record.checkpoints import blocks as packing
from inferwatch.record.checkpoints.blocks import compress, decompress, pack, unpack

CONTENT = b"".join(b"request %d of many, " % number for number in range(500))


@pytest.mark.parametrize("has_lzma", [True, False])
def test_what_was_compressed_comes_back(
    has_lzma: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "HAS_LZMA", has_lzma)

    for content in (b"", b"x", CONTENT):
        assert decompress(compress(content)) == content
    assert len(compress(CONTENT)) < 0.3 * len(CONTENT)


def test_columns_come_back() -> None:
    columns = np.array([[1, 5, 9], [-4, 2**62, 0], [7, 7, 7]], np.int64)

    assert (unpack(pack(columns), 3) == columns).all()


@pytest.mark.parametrize("has_lzma", [True, False])
def test_bytes_that_were_changed_are_refused(
    has_lzma: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "HAS_LZMA", has_lzma)
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


def test_bytes_that_only_another_python_expands_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = compress(CONTENT)
    monkeypatch.setattr(packing, "HAS_LZMA", False)

    with pytest.raises(ValueError, match="not compressed as we do"):
        decompress(packed)
