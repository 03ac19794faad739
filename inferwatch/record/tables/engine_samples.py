"""Scrapes: one row each, with only those histograms that changed.

A server reports about two hundred numbers per scrape, few of which change from one
second to the next. Constant parts (names, bounds) form a *layout*, which is stored
once; the rest is groups of numbers: requests by finish reason; family-specific metrics;
then each histogram as its sum and its counts per bucket. ``changes`` holds the changed
groups as ``[number of the group, ...]``: counts as differences (trailing zeros left
out), sums and family-specific metrics as they are.

The rows of a rank with one layout form a chain with ``place`` 0, 1, 2 ...; now and then
all chains restart, at the ordinal ``base``, so that reading can start there.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest
from typing import Any

from collectors.contract.readings import EngineSample, Histogram
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
    StructColumns,
    insert_sql,
)

LONGEST_CHAIN = 100
"""Rows: the most that one damaged row makes unreadable."""
MOST_AT_ONCE = 2_000
"""Rows of all chains together: the most to read before any position."""
MOST_LAYOUTS = 1_000
"""Layouts remembered: a server that keeps changing costs disk space, not memory."""
LARGEST = 2**63

Groups = list[list[Any]]
Layout = tuple[Any, ...]
"""Model; finish reasons; other names; keys, lengths and bounds of histograms."""

Of = tuple[int, str, int]
"""Source, rank and layout."""

_columns = StructColumns(
    EngineSample, without=("model", "finished", "histograms", "others")
)
MEANS = ("ttft_s", "itl_s")
MEAN_COLUMNS = ("ttft_sum_s", "ttft_count", "itl_sum_s", "itl_count")
CHAIN = ("layout", "base", "place", "changes")
INSERT = insert_sql("engine_samples", (*KEY, *_columns.names, *MEAN_COLUMNS, *CHAIN))
INSERT_LAYOUT = insert_sql(
    "sample_layouts",
    ("session", "layout", "model", "finished", "others", "histograms"),
)
SELECT = (
    f"SELECT ordinal, source, {', '.join((*CHAIN, *_columns.names))} "  # noqa: S608  our own names
    "FROM engine_samples WHERE session = :session AND ordinal >= ("
    "  SELECT base FROM engine_samples"
    "  WHERE session = :session AND ordinal > :ordinal ORDER BY ordinal LIMIT 1)"
    "ORDER BY ordinal"
)
"""Rows from the start of the chains that contain the first row after an ordinal."""
SELECT_LAYOUT = (
    "SELECT model, finished, others, histograms FROM sample_layouts "
    "WHERE session = ? AND layout = ?"
)
MEND = (
    "DELETE FROM engine_samples WHERE session = :session AND ordinal IN ("
    "  SELECT ordinal FROM (SELECT ordinal, layout, place, row_number() OVER ("
    "    PARTITION BY source, rank, layout, base ORDER BY ordinal) AS nth"
    "    FROM engine_samples WHERE session = :session)"
    "  WHERE nth <> place + 1 OR layout NOT IN ("
    "    SELECT layout FROM sample_layouts WHERE session = :session))"
)
"""Deletes rows that depend on a lost row."""


def pack(changes: Groups) -> bytes:
    """Serialise groups of numbers, which may be infinite."""
    return zlib.compress(json.dumps(changes, separators=(",", ":")).encode())


def unpack(blob: bytes) -> Groups:
    groups: Groups = json.loads(zlib.decompress(blob))
    return groups


def _layout(sample: EngineSample) -> Layout:
    histograms = tuple(
        (key, len(each.counts), *each.bounds) for key, each in sample.histograms.items()
    )
    return sample.model, tuple(sample.finished), tuple(sample.others), histograms


def _groups(sample: EngineSample) -> Groups:
    groups: Groups = [[*sample.finished.values()], [*sample.others.values()]]
    for each in sample.histograms.values():
        counts = (after - before for before, after in pairwise((0, *each.counts)))
        groups.append([each.sum, *counts])
    return groups


def _zeros(layout: Layout) -> Groups:
    _, finished, others, histograms = layout
    zeros = [[0.0, *(0 for _ in range(length))] for _, length, *_ in histograms]
    return [[0] * len(finished), [0.0] * len(others), *zeros]


def _count_of_values(number: int) -> int:
    """How many numbers at a group's start are stored as values, not as changes."""
    return (0, LARGEST, 1)[min(number, 2)]


def _changes(before: Groups, now: Groups) -> Groups:
    changes = []
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        if old != new:
            whole = _count_of_values(number)
            numbers = [
                each - was for was, each in zip(old[whole:], new[whole:], strict=True)
            ]
            while numbers and not numbers[-1]:
                numbers.pop()
            changes.append([number, *new[:whole], *numbers])
    return changes


def _changed(before: Groups, changes: Groups) -> Groups:
    now = [*before]
    for number, *numbers in changes:
        whole, old = _count_of_values(number), before[number]
        counts = zip_longest(old[whole:], numbers[whole:], fillvalue=0)
        now[number] = numbers[:whole] + [was + more for was, more in counts]
    return now


@dataclass(slots=True)
class SampleChain:
    """State of the chain of a source, rank and layout."""

    groups: Groups
    place: int = -1


class EngineSampleTable(ReadingTable[EngineSample]):
    """Writes a scrape as a row of changes against the previous one."""

    name = "engine_samples"
    kind = EngineSample
    with_it = ("sample_layouts",)
    blobs = (
        BlobColumn(table=name, column="changes", reader=unpack, quick=zlib.decompress),
        *(
            BlobColumn(table="sample_layouts", column=column, reader=json.loads)
            for column in ("finished", "others", "histograms")
        ),
    )
    mend = (MEND,)

    def __init__(self) -> None:
        self._layouts: dict[Layout, int] = {}
        self._named = 0
        self._chains: dict[Of, SampleChain] = {}
        self._base = 0
        self._rows = 0

    def add(self, batch: RowBatch, key: Key, reading: EngineSample) -> None:
        """Add the row, and its layout if new.

        Raises:
            OverflowError, UnicodeEncodeError: no row can hold it, so the next row must
                not depend on it.
        """
        values = (*_columns.values(reading), *_means(reading))
        if any(type(each) is int and abs(each) >= LARGEST for each in values):
            raise OverflowError
        reading.rank.encode()
        layout = _layout(reading)
        number = self._layouts.get(layout)
        if number is None:
            number = self._name(batch, key[0], layout)
        groups = _groups(reading)
        chain = self._chain((key[2], reading.rank, number), key[1], layout)
        blob = pack(_changes(chain.groups, groups))
        chain.groups, chain.place = groups, chain.place + 1
        self._rows += 1
        batch.add(INSERT, (*key, *values, number, self._base, chain.place, blob))

    def _name(self, batch: RowBatch, session: int, layout: Layout) -> int:
        if len(self._layouts) >= MOST_LAYOUTS:
            self._layouts.clear()
        model, *lists = layout
        if model is not None:
            model.encode()
        number = self._layouts[layout] = self._named
        self._named += 1
        batch.add(INSERT_LAYOUT, (session, number, model, *map(json.dumps, lists)))
        return number

    def _chain(self, of: Of, ordinal: int, layout: Layout) -> SampleChain:
        chain = self._chains.get(of)
        ended = chain is not None and chain.place + 1 >= LONGEST_CHAIN
        if ended or not self._chains or self._rows >= MOST_AT_ONCE:
            self._chains.clear()
            self._base, self._rows, chain = ordinal, 0, None
        if chain is None:
            chain = self._chains[of] = SampleChain(_zeros(layout))
        return chain

    def read(
        self,
        connection: sqlite3.Connection,
        session: int,
        sources: Mapping[int, str],
        after: Cursor = START,
    ) -> Iterator[Numbered]:
        """Samples, each rebuilt from its row and the rows it builds on."""
        layouts: dict[int, Layout | None] = {}
        chains: dict[Of, SampleChain] = {}
        base = None
        rows = connection.execute(
            SELECT, {"session": session, "ordinal": after.ordinal}
        )
        for ordinal, source, number, begins, place, blob, *values in rows:
            fields = _columns.restore(values)
            if begins != base:
                chains, layouts, base = {}, {}, begins
            if number not in layouts:
                layouts[number] = _read_layout(connection, session, number)
            layout = layouts[number]
            if layout is None:
                continue  # lost in a damaged file
            of = (source, fields["rank"], number)
            chain = chains.get(of)
            if place == 0:
                chain = chains[of] = SampleChain(_zeros(layout))
            if chain is None or place != chain.place + 1:
                continue  # likewise
            chain.groups, chain.place = _changed(chain.groups, unpack(blob)), place
            if ordinal > after.ordinal:
                stored = _stored_fields(layout, chain.groups)
                yield ordinal, EngineSample(source=sources[source], **fields, **stored)

    @staticmethod
    def _values(sample: EngineSample) -> Iterator[Row]:
        """Export rows of values without a column of their own, such as histograms."""
        about = (sample.t_ns, sample.rank)
        for way, count in sample.finished.items():
            yield *about, f"finished {way}", count, None, None
        for name, value in sample.others.items():
            yield *about, name, value, None, None
        for key, each in sample.histograms.items():
            bounds = (*map(str, each.bounds), "+Inf")
            buckets = dict(zip(bounds, each.counts, strict=False))
            total = each.counts[-1] if each.counts else None
            yield *about, key, each.sum, total, json.dumps(buckets)

    unpacked = ExportedRows(
        name="engine_sample_values",
        columns=("t_ns", "rank", "name", "value", "count", "buckets_json"),
        rows=_values,
        moment="t_ns",
        on_request=False,
    )


def _means(sample: EngineSample) -> tuple[float | int | None, ...]:
    """Sum and count of the most frequently queried histograms."""
    histograms = (sample.histograms.get(key) for key in MEANS)
    return tuple(
        part
        for each in histograms
        for part in (
            (each.sum, each.counts[-1]) if each and each.counts else (None,) * 2
        )
    )


def _read_layout(
    connection: sqlite3.Connection, session: int, number: int
) -> Layout | None:
    row = connection.execute(SELECT_LAYOUT, (session, number)).fetchone()
    if row is None:
        return None
    model, *lists = row
    return model, *map(json.loads, lists)


def _stored_fields(layout: Layout, groups: Groups) -> dict[str, Any]:
    """The fields of an EngineSample that are stored in groups of numbers."""
    model, finished, others, histograms = layout
    ended, family, *numbers = groups
    return {
        "model": model,
        "finished": dict(zip(finished, ended, strict=True)),
        "others": dict(zip(others, family, strict=True)),
        "histograms": {
            key: Histogram(bounds=bounds, counts=[*accumulate(counts)], sum=total)
            for (key, _, *bounds), (total, *counts) in zip(
                histograms, numbers, strict=True
            )
        },
    }
