"""Readings of some kinds of a recorded session, without reading the others."""

import sqlite3
from collections.abc import Collection, Iterator

from collectors.contract.readings import AnyReading, LoadPlanned
from inferwatch.record.tables.codec import SELECT_SOURCES
from inferwatch.record.tables.load_plans import load_plans
from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.table import SourceNames, readable


def chosen_readings(
    connection: sqlite3.Connection,
    session: int,
    kinds: Collection[type[AnyReading]],
) -> Iterator[AnyReading]:
    """Those of these kinds, kind by kind, each in order of receipt.

    The caller holds a transaction open. What other tables hold of them because it fits
    into no row of theirs comes last.

    Raises:
        StorageError: at a row that makes no sense.
    """
    sources = SourceNames(connection.execute(SELECT_SOURCES, (session,)).fetchall())
    if LoadPlanned in kinds:
        yield from load_plans(connection, session)
    wanted = tuple(kind for kind in kinds if kind is not LoadPlanned)
    for table in every_table():
        if table.kind is not None and table.kind not in wanted:
            continue
        for _, reading in readable(table.read(connection, session, sources)):
            if isinstance(reading, wanted):
                yield reading
