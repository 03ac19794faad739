"""Reads what can be read of the tables of a damaged file, around what cannot.

A table is read in the order of its key until a page is torn; then the next key that can
be found is looked for in ever longer strides, and what lies between is read backwards,
up to the torn page from its other side.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from inferwatch.storage.repair.damage import is_damage
from inferwatch.storage.repair.sense import checks_of, makes_sense
from inferwatch.storage.tables.table import insert_sql

FARTHEST = 1 << 62
Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A table of the damaged file, and how its rows are asked for.

    Those without a rowid are read session by session.
    """

    name: str
    columns: tuple[str, ...]
    key: str
    """An integer column that orders the rows."""
    by_session: bool

    def select(self, condition: str, order: str = "ASC") -> str:
        """Rows, their key first; not by an index: it may be torn when they are not."""
        only = "session = :session AND " if self.by_session else ""
        hint = "" if self.by_session else "NOT INDEXED "
        columns = ", ".join((self.key, *self.columns))
        return (
            f"SELECT {columns} FROM {self.name} {hint}"  # noqa: S608  our own names
            f"WHERE {only}{condition} ORDER BY {self.key} {order}"
        )


def source_of(connection: sqlite3.Connection, name: str) -> Source | None:
    """How to read a table; None when the file has none of that name.

    Raises:
        sqlite3.DatabaseError: not even the schema can be read.
    """
    rows = connection.execute(
        "SELECT name, pk FROM pragma_table_info(?)", (name,)
    ).fetchall()
    if not rows:
        return None
    columns = tuple(column for column, _ in rows)
    keys = [column for column, pk in sorted(rows, key=lambda row: row[1]) if pk]
    (without_rowid,) = connection.execute(
        "SELECT wr FROM pragma_table_list WHERE name = ?", (name,)
    ).fetchone()
    if without_rowid and len(keys) > 1:
        return Source(name, columns, keys[1], by_session=True)
    return Source(name, columns, "rowid", by_session=False)


class Salvage:
    """Copies tables from a damaged file into a sound one."""

    def __init__(self, damaged: sqlite3.Connection, sound: sqlite3.Connection) -> None:
        self._damaged, self._sound = damaged, sound
        self.torn: list[str] = []
        self.rows: dict[str, int] = {}

    def copy(self, name: str, sessions: Sequence[int]) -> None:
        """The rows of a table that can be read and mean something."""
        source = source_of(self._damaged, name)
        if source is None:
            return
        insert = insert_sql(name, source.columns, "INSERT OR IGNORE")
        checks = checks_of(name, source.columns)
        self.rows[name] = 0
        for session in sessions if source.by_session else (0,):
            for _, *values in self._walk(source, session):
                if makes_sense(checks, values):
                    self.rows[name] += self._insert(name, insert, values)
                else:
                    self._tear(name)

    def _insert(self, name: str, insert: str, values: Sequence[object]) -> int:
        try:
            return self._sound.execute(insert, values).rowcount
        except (sqlite3.IntegrityError, sqlite3.InterfaceError, OverflowError):
            self._tear(name)
            return 0

    def _tear(self, name: str) -> None:
        if name not in self.torn:
            self.torn.append(name)

    def _walk(self, source: Source, session: int) -> Iterator[Row]:
        """Forwards, over the torn pages, to the end."""
        reached = -FARTHEST
        while True:
            try:
                for row in self._read(source, session, reached, FARTHEST):
                    reached = int(str(row[0]))
                    yield row
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._tear(source.name)
            else:
                return
            beyond = self._next(source, session, reached)
            if beyond is None:
                return
            with suppress(sqlite3.DatabaseError):
                yield from self._read(source, session, reached, beyond, "DESC")
            reached = beyond

    def _next(self, source: Source, session: int, reached: int) -> int | None:
        """A key from which reading can go on; None when there is none."""
        stride, start = 1, max(reached, 0)
        while stride < FARTHEST:
            with suppress(sqlite3.DatabaseError):
                next(self._read(source, session, start + stride, FARTHEST), None)
                return start + stride
            stride *= 2
        return None

    def _read(
        self, source: Source, session: int, after: int, upto: int, order: str = "ASC"
    ) -> Iterator[Row]:
        bounds = {"session": session, "after": after, "upto": upto}
        condition = f"{source.key} > :after AND {source.key} <= :upto"
        yield from self._damaged.execute(source.select(condition, order), bounds)
