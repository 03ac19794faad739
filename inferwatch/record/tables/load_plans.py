"""Load plans in recordings; earlier versions stored them as notes."""

import sqlite3
from collections.abc import Iterator, Mapping

import msgspec

from collectors.contract.readings import LoadPlanned, Note
from inferwatch.record.file.sqlite import START, Cursor
from inferwatch.record.tables.table import Numbered, PlainTable, SessionPart

NOTED = "load plan "
"""Prefix of a note of an earlier version that holds a plan as JSON."""
FIND_NOTED = (
    f"SELECT ordinal, t_ns, text FROM notes "  # noqa: S608  our own names
    f"WHERE session = ? AND text LIKE '{NOTED}{{%'"
)
FIND = (
    "SELECT ordinal, reading FROM other_readings "
    "WHERE session = ? AND kind = 'LoadPlanned'"
)


class NoteTable(PlainTable):
    """Notes; those of earlier versions that hold a load plan are read as one."""

    with_it = ("bookmarks",)

    def __init__(self) -> None:
        super().__init__("notes", Note, part=SessionPart.NOTES)

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        after: Cursor = START,
    ) -> Iterator[Numbered]:
        for ordinal, reading in super().read(connection, session, sources, after):
            if isinstance(reading, Note) and reading.text.startswith(f"{NOTED}{{"):
                plan = reading.text.removeprefix(NOTED)
                source, t_ns = reading.source, reading.t_ns
                yield ordinal, LoadPlanned(source=source, t_ns=t_ns, plan=plan)
            else:
                yield ordinal, reading


def load_plans(connection: sqlite3.Connection, session: int) -> list[LoadPlanned]:
    """The load plans of a session in order of receipt, without reading the rest."""
    plans = [
        (ordinal, LoadPlanned(t_ns=t_ns, plan=text.removeprefix(NOTED)))
        for ordinal, t_ns, text in connection.execute(FIND_NOTED, (session,))
    ]
    for ordinal, blob in connection.execute(FIND, (session,)):
        try:
            plans.append((ordinal, msgspec.msgpack.decode(blob, type=LoadPlanned)))
        except msgspec.MsgspecError:
            continue  # damaged file
    return [planned for _, planned in sorted(plans, key=lambda each: each[0])]
