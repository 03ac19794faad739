"""Commands of ours as advice: what is printed can be typed, whatever names hold."""

import shlex
from pathlib import Path

from inferwatch.record.file.location import db_option


def command(*words: object, database: Path | None = None) -> str:
    """Return an ``inferwatch`` command, quoted for a shell.

    Args:
        words: What follows ``inferwatch``. A session is best named by its id, which is
            short and of one session.
        database: The file that it reads, added unless it is the default one.

    >>> command("load", "--like", "t5b8 #5, 32 users", "--duration", 5)
    "inferwatch load --like 't5b8 #5, 32 users' --duration 5"
    """
    typed = shlex.join(["inferwatch", *map(str, words)])
    return typed if database is None else f"{typed}{db_option(database)}"


def recorded_as(session: str, database: Path) -> str:
    """Say how a recorded session is opened again."""
    again = command("replay", session, database=database)
    return f"recorded as {session}: `{again}` opens it again."
