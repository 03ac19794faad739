"""Reads damaged files: what can be read goes into a sound copy, the rest is counted.

The damaged file itself is never written to.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from inferwatch.errors import NewerSchemaError, StorageError
from inferwatch.record.file.copies import Stamp, copy_of, log_of
from inferwatch.record.file.sqlite import connect, explain, make_private, transaction
from inferwatch.record.repair.checks import first_sqlite_fault, first_unreadable_value
from inferwatch.record.repair.damage import Damage, is_damage, rescue_command
from inferwatch.record.repair.header import (
    fix_header,
    has_whole_schema,
    is_ours,
    restore_schema,
)
from inferwatch.record.repair.salvage import Salvage, fill_holes
from inferwatch.record.tables.migrations import SCHEMA_VERSION, migrate, session_tables
from inferwatch.record.tables.session_state import SessionState

CHECKED_UP_TO_BYTES = 32_000_000
"""Larger files are not looked through whenever they are opened."""
SALVAGED_UP_TO_BYTES = 500_000_000
"""Larger ones are salvaged only when that is asked for: it takes minutes."""
SESSIONS_LOOKED_FOR = 64
"""When nothing tells which there are."""
OF_NO_SESSION = ("tunes", "tune_trials")
"""Tables whose rows stay when sessions go."""


def damage_of(path: Path) -> Damage | None:
    """What a damaged file has lost; None for a sound one, as far as was looked.

    Raises:
        StorageError: nothing at all can be read of it.
    """
    found = readable_copy(path)
    return found[1] if found else None


def damage_of_layout(path: Path) -> Damage | None:
    """What is lost where SQLite finds fault itself: writing would make it worse.

    Raises:
        StorageError: nothing at all can be read of it.
    """
    sound = log_of(path).exists() or _is_laid_out(Stamp.of(path))
    return None if sound else damage_of(path)


def readable_copy(path: Path, *, certain: bool = False) -> tuple[Path, Damage] | None:
    """A sound copy of a damaged file, and what it lacks; None where there is no damage.

    ``certain``: reading it has failed already.

    Raises:
        StorageError: nothing at all can be read of it.
    """
    stamp = Stamp.of(path)
    if not certain and (log_of(path).exists() or _is_sound(stamp)):
        return None
    if path.stat().st_size > SALVAGED_UP_TO_BYTES:
        raise StorageError(
            f"{path} is damaged: {rescue_command(path)} saves what can be read"
        )
    return _salvaged(stamp)


def recover_into(path: Path, into: Path) -> Damage:
    """Save what can be read of a damaged file in a new one.

    Raises:
        StorageError: nothing at all can be read, or the new file exists.
    """
    if into.exists():
        raise StorageError(f"{into} exists: choose another file to save into")
    if not path.exists():
        raise StorageError(f"{path} does not exist")
    damage = _salvage(path, into)
    with closing(connect(into, "rw")) as connection:  # into it nobody records
        states = SessionState.INTERRUPTED, SessionState.RECORDING
        connection.execute("UPDATE sessions SET state = ? WHERE state = ?", states)
    return damage


@lru_cache(maxsize=64)
def _is_sound(stamp: Stamp) -> bool:
    """Neither SQLite nor we find fault, as far as looking takes no time."""
    return _is_laid_out(stamp) and _finds_nothing(stamp, first_unreadable_value)


@lru_cache(maxsize=64)
def _is_laid_out(stamp: Stamp) -> bool:
    return _finds_nothing(stamp, first_sqlite_fault)


def _finds_nothing(
    stamp: Stamp, look: Callable[[sqlite3.Connection], str | None]
) -> bool:
    if stamp.path.stat().st_size > CHECKED_UP_TO_BYTES:
        return True
    try:
        with closing(connect(stamp.path, "ro")) as connection:
            return look(connection) is None
    except UnicodeDecodeError:
        return False
    except sqlite3.DatabaseError as error:
        return not is_damage(error)


@lru_cache(maxsize=64)
def _salvaged(stamp: Stamp) -> tuple[Path, Damage]:
    sound = copy_of(stamp.path).with_suffix(".sound")
    return sound, _salvage(stamp.path, sound)


def _salvage(path: Path, into: Path) -> Damage:
    try:
        if not is_ours(path):
            raise StorageError(
                f"{path} is damaged, or not a recording of inferwatch: "
                "nothing can be read of it"
            )
        copy = copy_of(path)
        fix_header(copy)
        if not has_whole_schema(copy):
            restore_schema(copy)
        with closing(connect(copy, "rw")) as damaged:
            damaged.text_factory = lambda data: data.decode("utf-8", "replace")
            damaged.execute("PRAGMA writable_schema = ON")  # reads what is torn
            make_private(into)
            with _made_whole(into), closing(connect(into, "rwc")) as sound:
                return _copied(path, damaged, sound)
    except (sqlite3.Error, OSError) as error:
        raise StorageError(explain(error, path)) from error


@contextmanager
def _made_whole(into: Path) -> Iterator[None]:
    """A file made in part would be taken for all there is."""
    try:
        yield
    except BaseException:
        into.unlink(missing_ok=True)
        raise


def _copied(
    path: Path, damaged: sqlite3.Connection, sound: sqlite3.Connection
) -> Damage:
    _refuse_newer(damaged, path)
    sound.execute("PRAGMA auto_vacuum = INCREMENTAL")
    sound.execute("PRAGMA synchronous = OFF")
    migrate(sound, path)
    salvage = Salvage(damaged, sound)
    with transaction(sound):
        salvage.copy("sessions", ())
        numbers = list(_numbers(damaged, sound))
        for table in session_tables(sound):
            salvage.copy(table, numbers)
        for table in OF_NO_SESSION:
            salvage.copy(table, ())
        sessions = fill_holes(sound)
    return Damage(
        path=path,
        sessions=tuple(sessions),
        rows=salvage.rows,
        torn=tuple(salvage.torn),
    )


def _numbers(damaged: sqlite3.Connection, sound: sqlite3.Connection) -> Iterator[int]:
    """The numbers of sessions there may be."""
    (known,) = sound.execute("SELECT max(session) FROM sessions").fetchone()
    last = max(known or 0, SESSIONS_LOOKED_FOR)
    with suppress(sqlite3.DatabaseError):
        (used,) = damaged.execute("SELECT max(seq) FROM sqlite_sequence").fetchone()
        last = used or last
    return iter(range(1, last + 1))


def _refuse_newer(damaged: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of a newer inferwatch: its tables may mean something else."""
    with suppress(sqlite3.DatabaseError):
        (version,) = damaged.execute(
            "SELECT max(version) FROM schema_versions"
        ).fetchone()
        if version is not None and version > SCHEMA_VERSION:
            raise NewerSchemaError(
                f"{path} is damaged, and was written by a newer inferwatch"
            )
