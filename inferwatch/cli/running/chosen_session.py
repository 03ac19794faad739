"""Which recorded session a command means."""

from collections.abc import Sequence
from pathlib import Path

from inferwatch.cli.say import say
from inferwatch.cli.words import record_and_session
from inferwatch.errors import NoSuchSessionError, UsageError
from inferwatch.formatting import counted
from inferwatch.printing.command import command
from inferwatch.record.file.location import default_database
from inferwatch.record.sessions.sessions import SessionRow, list_sessions, meant, pick

SHOWN_IDS = 5
RESULTS = {".json", ".jsonl"}


def session_location(session: str, database: Path | None) -> tuple[Path, str]:
    """Return the file and the session in it, and say which it is if several fit.

    Without ``database``, the session may be a file's: see ``record_and_session``.

    Raises:
        UsageError: it is a file of another tool.
    """
    named = record_and_session(session) if database is None else None
    path, name = named or (database or default_database(), session)
    if named is None and Path(session).suffix in RESULTS and Path(session).is_file():
        raise UsageError(
            f"{session} is no record: `{command('import', session)}` makes a session "
            "of another tool's results"
        )
    say_which(path, name)
    return path, name


def say_which(path: Path, *words: str) -> None:
    """Say on stderr which session is meant by each word that several are called."""
    rows = list_sessions(path) if path.exists() else []
    for word in dict.fromkeys(words):
        found = meant(rows, word)
        if len(found) > 1 and _is_clear(rows, word, path):
            ids = ", ".join(row.id for row in found[1 : SHOWN_IDS + 1])
            ids += ", …" if len(found) > SHOWN_IDS + 1 else ""
            several = counted(len(found), "session")
            say(
                f"inferwatch: {word!r} is {found[0].id}, the newest of {several} "
                f"called so; before it {ids}",
                err=True,
            )


def _is_clear(rows: Sequence[SessionRow], word: str, path: Path) -> bool:
    """Whether the command goes on with a session, and not with an error."""
    try:
        pick(rows, word, path)
    except NoSuchSessionError:
        return False
    return True
