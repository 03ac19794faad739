"""Which recorded session a command means."""

from pathlib import Path

from inferwatch.cli.say import say
from inferwatch.formatting import counted
from inferwatch.record.file.location import default_database
from inferwatch.record.sessions.sessions import LAST, list_sessions, meant

SHOWN_IDS = 5


def session_location(session: str, database: Path | None) -> tuple[Path, str]:
    """Return the file and the session in it, and say which it is if several fit.

    A file alone means its latest session, ``FILE:SESSION`` one of it.
    """
    path = Path(session).expanduser()
    if database is None and (path.suffix == ".db" or path.is_file()):
        return path, LAST
    file, _, name = session.rpartition(":")
    if database is None and name and Path(file).expanduser().is_file():
        database, session = Path(file).expanduser(), name
    path = database or default_database()
    say_which(path, session)
    return path, session


def say_which(path: Path, *words: str) -> None:
    """Say on stderr which session is meant by each word that several are called."""
    rows = list_sessions(path) if path.exists() else []
    for word in words:
        found, *others = meant(rows, word) or [None]
        if found is not None and others and found.called.startswith(word):
            ids = ", ".join(row.id for row in others[:SHOWN_IDS])
            more = ", …" if len(others) > SHOWN_IDS else ""
            say(
                f"inferwatch: {word!r} is {found.id}, the newest of "
                f"{counted(len(others) + 1, 'session')} called so; before it {ids}{more}",
                err=True,
            )
