"""Steps: one row each, with their members in a compressed blob per batch.

All tokens of a step have its ``end_ns`` as their time, so this returns every token time
of every request (``db`` is an ``sqlite3`` connection)::

    import json, zlib
    from collections import defaultdict
    from itertools import accumulate

    def token_times(db, session):
        query = "SELECT ordinal, source, rank, end_ns FROM steps WHERE session = ?"
        steps = {ordinal: step for ordinal, *step in db.execute(query, (session,))}
        query = "SELECT members FROM step_members WHERE session = ? ORDER BY ordinal"
        times = defaultdict(list)
        for (blob,) in db.execute(query, (session,)):
            held = json.loads(zlib.decompress(blob))
            ordinals = accumulate(held["ordinals"])
            for ordinal, *lists in zip(ordinals, held["members"], held["produced"]):
                source, rank, end_ns = steps[ordinal]
                for member, tokens in zip(*lists):
                    times[source, rank, member] += [end_ns] * tokens
        return times

Consecutive steps have nearly the same members, so their JSON compresses to about a
fifth of a byte per token and is easy to read.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

import msgspec

from collectors.contract.readings import Step
from inferwatch.record.file.sqlite import START, Cursor
from inferwatch.record.tables.table import (
    KEY,
    BlobColumn,
    ExportedRows,
    Key,
    Numbered,
    ReadingTable,
    Row,
    RowBatch,
    SessionPart,
    StructColumns,
    insert_sql,
    select_sql,
)

LISTS = ("members", "scheduled", "produced", "preempted")
RENAMED = {"index": "step"}  # INDEX is a keyword of SQL
DERIVED = ("overlap_ns", "output_tokens", "preemptions")

_written = StructColumns(Step, without=(*LISTS, "start_ns"), renamed=RENAMED)
STEP_COLUMNS = StructColumns(Step, without=LISTS, renamed=RENAMED)

INSERT = insert_sql("steps", (*KEY, *_written.names, *DERIVED))
SELECT = select_sql("steps", ("source", *STEP_COLUMNS.names))
INSERT_MEMBERS = insert_sql("step_members", ("session", "ordinal", "steps", "members"))
SELECT_MEMBERS = (
    "SELECT ordinal, members FROM step_members "
    "WHERE session = :session AND ordinal >= ("
    "  SELECT coalesce(max(ordinal), 0) FROM step_members"
    "  WHERE session = :session AND ordinal <= :ordinal) ORDER BY ordinal"
)
"""Starts at the blob that may hold the step after an ordinal."""


def pack(steps: list[tuple[int, Step]]) -> bytes:
    """Pack the member lists of steps, those of the same engine next to each other."""
    ordered = sorted(steps, key=lambda each: (each[1].source, each[1].rank, each[0]))
    ordinals = [0, *(ordinal for ordinal, _ in ordered)]
    differences = [after - before for before, after in pairwise(ordinals)]
    lists: dict[str, object] = {"ordinals": differences}
    for name in LISTS:
        lists[name] = [getattr(step, name) for _, step in ordered]
    return zlib.compress(msgspec.json.encode(lists))


def unpack(blob: bytes) -> dict[int, dict[str, Any]]:
    """Unpack the member lists of steps, by ordinal."""
    document = msgspec.json.decode(zlib.decompress(blob))
    lists = zip(*itemgetter(*LISTS)(document), strict=True)
    return {
        ordinal: dict(zip(LISTS, each, strict=True))
        for ordinal, each in zip(accumulate(document["ordinals"]), lists, strict=True)
    }


def _members(step: Step) -> Iterator[Row]:
    """Export rows: the members of a step, with the engine's token times."""
    about = (step.rank, step.index, step.end_ns)
    preempted = {*step.preempted}
    present = zip(step.members, step.scheduled, step.produced, strict=True)
    for member, scheduled, produced in present:
        yield *about, member, scheduled, produced, int(member in preempted)
    for member in step.preempted:
        if member not in step.members:
            yield *about, member, 0, 0, 1


class StepTable(ReadingTable[Step]):
    """Writes a step's row at once, its members when the batch is complete."""

    name = "steps"
    kind = Step
    part = SessionPart.STEPS
    moment = "end_ns"
    enums = _written.enums
    blobs = (
        BlobColumn(
            table="step_members",
            column="members",
            reader=unpack,
            quick=zlib.decompress,
        ),
    )
    unpacked = ExportedRows(
        name="step_members",
        columns=(
            "rank",
            "step",
            "end_ns",
            "member",
            "scheduled_tokens",
            "output_tokens",
            "preempted",
        ),
        rows=_members,
        moment="end_ns",
    )

    def __init__(self) -> None:
        self._session = 0
        self._steps: list[tuple[int, Step]] = []

    def add(self, batch: RowBatch, key: Key, reading: Step) -> None:
        """Add the row, with derived columns for SQL queries."""
        batch.steps += 1
        overlap_ns = reading.end_ns - reading.start_ns - reading.duration_ns
        derived = (overlap_ns, reading.output_tokens, len(reading.preempted))
        batch.add(INSERT, (*key, *_written.values(reading), *derived))
        self._session, ordinal, _ = key
        self._steps.append((ordinal, reading))

    def complete(self, batch: RowBatch) -> None:
        """Add one blob for all steps of the batch."""
        if self._steps:
            blob, first = pack(self._steps), self._steps[0][0]
            batch.add(INSERT_MEMBERS, (self._session, first, len(self._steps), blob))
            self._steps = []

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        after: Cursor = START,
    ) -> Iterator[Numbered]:
        """Steps with their members.

        Raises:
            KeyError: the members of a step are missing.
        """
        named = {"session": session, "ordinal": after.ordinal + 1}
        blobs = connection.execute(SELECT_MEMBERS, named)
        lists: dict[int, dict[str, Any]] = {}
        following = next(blobs, None)
        rows = connection.execute(SELECT, (session, after.ordinal))
        for ordinal, source, *values in rows:
            while following is not None and following[0] <= ordinal:
                lists, following = unpack(following[1]), next(blobs, None)
            fields = STEP_COLUMNS.restore(values)
            yield ordinal, Step(source=sources[source], **fields, **lists[ordinal])
