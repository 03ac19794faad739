"""Imported runs as sessions, written by what writes recorded ones."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from collectors.clock import SessionClock, anchor
from collectors.readings import AnyReading
from inferwatch.errors import StorageError
from inferwatch.export.results.detect import ResultFile
from inferwatch.export.results.found import Result
from inferwatch.export.results.readings import duration_ns, readings_of
from inferwatch.metrics.receipts import Receipts
from inferwatch.storage.connections import reading
from inferwatch.storage.faults import explain
from inferwatch.storage.housekeeping import changing
from inferwatch.storage.recorded_session import About, RecordedSession
from inferwatch.storage.transaction import transaction

BATCH = 1_000
COMMAND = "import"
CUT_SHORT: str | None = "the import was cut short"


class PastClock(SessionClock):
    """Of a session that began then and lasted so long: its now is its end."""

    def __init__(self, began_unix_ns: int | None, lasted_ns: int) -> None:
        now = anchor()
        if began_unix_ns is None:
            began_unix_ns = now.wall_ns - lasted_ns
        super().__init__(now.t_ns - (now.wall_ns - began_unix_ns))
        self._lasted_ns = lasted_ns

    def now_ns(self) -> int:
        """The end."""
        return self._lasted_ns

    def follow(self, readings: Iterable[AnyReading]) -> Iterator[AnyReading]:
        """It ends no sooner than the last of these is there, however many coincide."""
        receipts = Receipts()
        for each in readings:
            self._lasted_ns = max(self._lasted_ns, receipts.take(each))
            yield each


def keep(
    database: Path, file: ResultFile, name: str | None = None
) -> list[tuple[str, Result]]:
    """Make the runs of a file sessions; their ids.

    Raises:
        StorageError: the file does not let us.
    """
    kept = []
    several = len(file.results) > 1
    for place, result in enumerate(file.results, 1):
        title = name or file.path.stem
        title = f"{title}-{place}" if several else title
        try:
            kept.append((_keep(database, file, result, title), result))
        except sqlite3.Error as error:
            raise StorageError(explain(error, database)) from error
    return kept


def earlier(database: Path, digest: str) -> Sequence[str]:
    """The sessions that were made from the same file and are still there."""
    if not database.exists():
        return []
    with reading(database) as connection:
        query = (
            "SELECT id FROM sessions WHERE imported_from LIKE ? AND deleted_ns IS NULL"
        )
        rows = connection.execute(query, (f"%#{digest}",)).fetchall()
    return [session_id for (session_id,) in rows]


def _keep(database: Path, file: ResultFile, result: Result, name: str) -> str:
    told_by = f"{result.tool}, {file.path} #{file.digest}"
    clock = PastClock(result.began_unix_ns, duration_ns(result))
    about = About(clock=clock, name=name, command=COMMAND)
    session = RecordedSession.begin(database, about)
    run_id = f"{COMMAND}-{file.digest[:6]}"
    numbered = enumerate(clock.follow(readings_of(result, run_id, told_by)), 1)
    lost, reason = 0, CUT_SHORT
    try:
        while some := list(islice(numbered, BATCH)):
            lost += session.write(session.batch(some), lost)
        reason = None
    finally:
        session.end(lost, reason)
    _label(database, session.number, result.model, told_by)
    return f"s{session.number}"


def _label(database: Path, session: int, model: str | None, told_by: str) -> None:
    """What only the session's row says."""
    with changing(database) as connection, transaction(connection):
        connection.execute(
            "UPDATE sessions SET imported_from = ?, model = ? WHERE session = ?",
            (told_by, model, session),
        )
