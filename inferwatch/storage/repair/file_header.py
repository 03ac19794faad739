"""Makes the first page of a damaged copy readable again.

A file that was cut off says in its header how long it was, and SQLite refuses it; a
header that was overwritten can be written anew, because we know how we make our files.
Offsets are those of https://www.sqlite.org/fileformat.html, section 1.3.
"""

import struct
from pathlib import Path

from inferwatch.storage.tables.schema import APPLICATION_ID

MAGIC = b"SQLite format 3\x00"
PAGE_BYTES = 4096
"""SQLite's default, which we leave as it is."""
HEADER_BYTES = 100
OURS = tuple(
    f"CREATE TABLE {name}".encode()
    for name in ("schema_versions", "step_members", "client_requests", "load_events")
)
"""Stand in every file of ours, wherever its schema lies; one page may be lost."""
PAGE_COUNT_AT, FREELIST_AT, APPLICATION_AT = 28, 32, 68


def is_ours(path: Path) -> bool:
    """Its header says so, or it holds our schema."""
    kept = b""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
        if header[APPLICATION_AT:][:4] == APPLICATION_ID.to_bytes(4, "big"):
            return True
        file.seek(0)
        while block := file.read(1 << 20):
            if any(each in kept + block for each in OURS):
                return True
            kept = block[-max(map(len, OURS)) :]
    return False


def mend(path: Path) -> None:
    """Let the header say what is true of the file as it is now."""
    size_bytes = path.stat().st_size
    with path.open("r+b") as file:
        header = bytearray(file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0"))
        page_bytes = _page_bytes(bytes(header))
        if page_bytes is None or header[: len(MAGIC)] != MAGIC:
            page_bytes, header = PAGE_BYTES, _new_header()
        pages = -(-size_bytes // page_bytes)
        change = header[24:28]
        struct.pack_into(">I", header, PAGE_COUNT_AT, pages)
        struct.pack_into(">II", header, FREELIST_AT, 0, 0)  # a torn list helps nobody
        header[92:96] = change  # the count of pages holds as of this change
        file.seek(0)
        file.write(header)
        file.truncate(pages * page_bytes)


def _page_bytes(header: bytes) -> int | None:
    """What the header says, if that can be."""
    (said,) = struct.unpack_from(">H", header, 16)
    said = 65536 if said == 1 else said
    possible = said >= 512 and said & (said - 1) == 0
    return said if possible else None


def _new_header() -> bytearray:
    """As SQLite writes it into a file of ours."""
    header = bytearray(HEADER_BYTES)
    header[: len(MAGIC)] = MAGIC
    struct.pack_into(">HBBBBBB", header, 16, PAGE_BYTES, 1, 1, 0, 64, 32, 32)
    struct.pack_into(">I", header, 24, 1)
    struct.pack_into(">III", header, 40, 1, 4, 0)  # schema cookie, format, cache
    struct.pack_into(">I", header, 56, 1)  # UTF-8
    return header
