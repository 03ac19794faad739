"""``python -m inferwatch.sample.pack FILE``: make the sample of a recorded session.

Used by ``make sample``. The file is kept whole, less the pages nobody uses.
"""

import lzma
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from inferwatch.sample import PACKED

LIMIT_BYTES = 600_000
"""The wheel stays small."""


def pack(recorded: Path, packed: Path) -> int:
    """Write the sample; its size in bytes."""
    with closing(sqlite3.connect(recorded, isolation_level=None)) as connection:
        connection.execute("VACUUM")
    packed.write_bytes(lzma.compress(recorded.read_bytes(), preset=9))
    return packed.stat().st_size


def main() -> None:
    """Pack, and say how large it is."""
    target = Path(__file__).parent / PACKED
    size = pack(Path(sys.argv[1]), target)
    sys.stderr.write(f"{target}: {size:,} bytes\n")
    if size > LIMIT_BYTES:
        sys.exit(f"more than {LIMIT_BYTES:,}: record for a shorter time")


if __name__ == "__main__":
    main()
