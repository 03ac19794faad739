"""Rows of the record as arrays of integers, a stretch at a time."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np

from inferwatch.metrics.series.quantiles import Ints

UNKNOWN = -(1 << 62)
"""NULL: no moment and no count is so small."""
STRETCH = 50_000


def stretches(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    session: int,
    where: str = "",
) -> Iterator[Ints]:
    """Some rows of a session at a time, a column of the array for each column."""
    known = ", ".join(f"coalesce({column}, {UNKNOWN})" for column in columns)
    query = f"SELECT {known} FROM {table} WHERE session = ? {where}"  # noqa: S608  our own names
    with closing(connection.execute(query, (session,))) as cursor:
        while rows := cursor.fetchmany(STRETCH):
            yield np.array(rows, np.int64)


def whole(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    session: int,
    where: str = "",
) -> dict[str, Ints]:
    """All rows of a session, by column."""
    parts = list(stretches(connection, table, columns, session, where))
    empty = np.zeros((0, len(columns)), np.int64)
    rows = np.concatenate(parts) if parts else empty
    return {column: rows[:, place] for place, column in enumerate(columns)}


def between(begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Moments of the end, and durations, of what has both."""
    known = (begin_ns != UNKNOWN) & (end_ns != UNKNOWN)
    return end_ns[known], end_ns[known] - begin_ns[known]
