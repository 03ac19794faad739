"""What a typed word is: a session, the file of a record, a server's address."""

import re
from pathlib import Path

from inferwatch.printing.destination import is_database
from inferwatch.record.sessions.sessions import LAST

_ID = re.compile(r"s\d+|last")
_ADDRESS = re.compile(r"(?i:https?://|ssh://|unix:/)|[\w.-]+:\d+(/|$)")
RECORDS = {".db", ".sqlite", ".sqlite3"}


def is_address(word: str) -> bool:
    """Whether the word is the address of a server.

    >>> is_address("http://gpu1:8000"), is_address("localhost:8000/v1")
    (True, True)
    >>> is_address("Qwen/Qwen2.5-7B-Instruct"), is_address("old.db:s3")
    (False, False)
    >>> is_address("unix:/run/x.sock"), is_address("s3://bucket/model")
    (True, False)
    """
    return bool(_ADDRESS.match(word))


def is_session(word: str) -> bool:
    """Whether the word is the id of a session, or stands for the latest."""
    return bool(_ID.fullmatch(word))


def is_record(word: str) -> bool:
    """Whether the word names a record: called like one, or an SQLite file."""
    path = Path(word).expanduser()
    return path.suffix in RECORDS or is_database(path)


def record_and_session(word: str) -> tuple[Path, str] | None:
    """Return the file that the word names and a session in it; None if it names none.

    A file alone means its latest session, ``FILE:SESSION`` one of it.
    """
    file, _, session = word.rpartition(":")
    for name, which in ((word, LAST), (file, session)):
        if which and is_record(name):
            return Path(name).expanduser(), which
    return None
