"""Commands as advice: what is printed can be typed, whatever names hold."""

import shlex
from collections.abc import Iterator
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
    typed = quoted("inferwatch", *words)
    return typed if database is None else f"{typed}{db_option(database)}"


def quoted(*words: object) -> str:
    """Return words of any command, or one of them, quoted for a shell."""
    return shlex.join(map(str, words))


def continued(line: str, width: int) -> Iterator[str]:
    r"""A quoted command in as few lines as possible, all but the last with a backslash.

    >>> list(continued("vllm serve 'a model' --max-num-seqs 4", 28))
    ["vllm serve 'a model' \\", '  --max-num-seqs 4']
    """
    begun = ""
    for word in map(quoted, shlex.split(line)):
        if begun and len(begun) + len(word) + 3 > width:
            yield f"{begun} \\"
            begun = f"  {word}"
        else:
            begun = f"{begun} {word}" if begun else word
    yield begun


def recorded_as(session: str, database: Path) -> str:
    """Say how a recorded session is opened again."""
    again = command("replay", session, database=database)
    return f"recorded as {session}: `{again}` opens it again."
