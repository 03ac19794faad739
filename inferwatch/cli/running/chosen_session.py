"""Which recorded session a command means."""

from pathlib import Path

from inferwatch.cli.say import say
from inferwatch.cli.words import is_record
from inferwatch.formatting import counted
from inferwatch.record.file.location import default_database
from inferwatch.record.sessions.sessions import LAST, list_sessions, meant

SHOWN_IDS = 5


def session_location(session: str, database: Path | None) -> tuple[Path, str]:
    """Return the file and the session in it, and say which it is if several fit.

    A file alone means its latest session, ``FILE:SESSION`` one of it.
    """
    if database is None and is_record(session):
        return Path(session).expanduser(), LAST
    file, _, name = session.rpartition(":")
    if database is None and name and Path(file).expanduser().is_file():
        database, session = Path(file).expanduser(), name
    path = database or default_database()
    say_which(path, session)
    return path, session


def say_which(path: Path, *words: str) -> None:
    """Say on stderr which session is meant by each word that several are called."""
    rows = list_sessions(path) if path.exists() else []
    for word in dict.fromkeys(words):
        found = meant(rows, word)
        others = found[1:]
        if others and found[0].called.startswith(word):
            ids = ", ".join(row.id for row in others[:SHOWN_IDS])
            ids += ", …" if len(others) > SHOWN_IDS else ""
            several = counted(len(others) + 1, "session")
            say(
                f"inferwatch: {word!r} is {found[0].id}, the newest of {several} "
                f"called so; before it {ids}",
                err=True,
            )
