"""What a typed word is: a session, the file of a record, a server's address."""

import re
from pathlib import Path

_ID = re.compile(r"s\d+|last")
_ADDRESS = re.compile(r"\w+://|[\w.-]+:\d+(/|$)")
RECORDS = {".db", ".sqlite", ".sqlite3"}


def is_address(word: str) -> bool:
    """Whether the word is the address of a server.

    >>> is_address("http://gpu1:8000"), is_address("localhost:8000/v1")
    (True, True)
    >>> is_address("Qwen/Qwen2.5-7B-Instruct"), is_address("old.db:s3")
    (False, False)
    """
    return bool(_ADDRESS.match(word))


def is_session(word: str) -> bool:
    """Whether the word is the id of a session, or stands for the latest."""
    return bool(_ID.fullmatch(word))


def is_record(word: str) -> bool:
    """Whether the word names a file: one that is there, or is called like a record."""
    path = Path(word).expanduser()
    return path.suffix in RECORDS or path.is_file()
