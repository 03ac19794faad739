"""Whatever is put comes back, equal and in order."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from enum import Enum
from itertools import chain, count
from math import isinf
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.contract.readings import (
    AnswerHashes,
    AnyReading,
    EventKind,
    LoadPlanned,
    OtherProcesses,
    Refusals,
    RequestEvent,
    Step,
    Vantage,
)
from inferwatch.record.file.sqlite import transaction
from inferwatch.record.tables.codec import ReadingEncoder, recorded
from inferwatch.record.tables.migrations import migrate, session_tables
from inferwatch.record.tables.reading_tables import OtherReadingsTable, every_table
from inferwatch.record.tables.requests import RequestReadingTable
from inferwatch.record.tables.table import RowBatch
from inferwatch.record.writing.recorder import Recorder

ReadBack = Callable[[Path], list[tuple[int, AnyReading]]]

KINDS = get_args(AnyReading)
INTEGERS = st.integers(min_value=-(2**61), max_value=2**61)
FEW_TEXTS = st.sampled_from(["", "a", "b", "engine-1 ✓"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | FEW_TEXTS
FLOATS = st.floats(allow_nan=False)


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Whatever a field of that type may hold; few texts, so that requests meet."""
    if options := get_args(annotation):
        if get_origin(annotation) is list:
            return st.lists(values(options[0]), max_size=4)
        if get_origin(annotation) is dict:
            return st.dictionaries(*map(in_json, options), max_size=3)
        return st.one_of([values(option) for option in options])
    if issubclass(annotation, msgspec.Struct):
        return readings_of(annotation)
    if issubclass(annotation, Enum):
        return st.sampled_from(list(annotation))
    plain: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: INTEGERS,
        float: FLOATS,
        str: TEXTS,
        type(None): st.none(),
    }
    return plain[annotation]


def in_json(annotation: Any) -> st.SearchStrategy[Any]:
    """JSON knows no infinity."""
    return values(annotation).filter(
        lambda value: not (isinstance(value, float) and isinf(value))
    )


def readings_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    fields = msgspec.structs.fields(kind)
    few = {"source", "request_id", "rank"}
    return st.builds(
        kind,
        **{
            field.name: FEW_TEXTS
            if field.name in few and field.type is str
            else values(field.type)
            for field in fields
        },
    )


MANY = pytest.mark.parametrize(
    "examples", [15, pytest.param(200, marks=pytest.mark.soak)]
)
ALL_KINDS = st.one_of([readings_of(kind) for kind in KINDS])
REQUESTS_AND_STEPS = readings_of(RequestEvent) | readings_of(Step)


def written_and_read(batches: list[list[AnyReading]]) -> list[AnyReading]:
    """What comes back when each batch is a transaction; in memory, for speed."""
    numbers = count(1)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, Path(":memory:"))
        encoder = ReadingEncoder(session=1)
        for batch in batches:
            with transaction(connection):
                encoder.batch(zip(numbers, batch, strict=False)).insert(connection)
        return [reading for _, reading in recorded(connection, 1)]


def come_back(examples: int, of: st.SearchStrategy[list[list[AnyReading]]]) -> None:
    """Whatever is put into so many records is read from them."""

    @settings(max_examples=examples, deadline=None)
    @given(batches=of)
    def check(batches: list[list[AnyReading]]) -> None:
        assert written_and_read(batches) == list(chain(*batches))

    check()


@MANY
def test_any_readings_come_back_equal_and_in_order(examples: int) -> None:
    come_back(examples, st.lists(st.lists(ALL_KINDS, max_size=12), max_size=3))


@MANY
def test_events_of_the_same_requests_come_back_equal_and_in_order(
    examples: int,
) -> None:
    few = st.lists(REQUESTS_AND_STEPS, max_size=30)
    come_back(examples, st.lists(few, min_size=1, max_size=3))


def test_a_request_that_was_forgotten_is_not_lost() -> None:
    other = OtherReadingsTable()
    table, batch = RequestReadingTable(other, live_limit=1), RowBatch()
    kinds = [EventKind.ARRIVED, EventKind.ARRIVED, EventKind.FINISHED]
    events = [
        RequestEvent(t_ns=1, kind=kind, vantage=Vantage.FRONTEND, request_id=request_id)
        for kind, request_id in zip(kinds, "aba", strict=True)
    ]
    for ordinal, event in enumerate(events):
        table.add(batch, (1, ordinal, 0), event)
        table.complete(batch)

    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, Path(":memory:"))
        batch.insert(connection)
        back = [reading for _, reading in table.read(connection, 1, {0: ""})]

    assert back == events


class CountsRows:
    """A connection that counts how far its cursors were read."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.rows = 0

    def execute(self, query: str, values: tuple[int]) -> Iterator[Any]:
        for row in self._connection.execute(query, values):
            self.rows += 1
            yield row


def test_requests_are_read_no_further_than_needed(
    record: Callable[..., Recorder], path: Path, traffic: Any
) -> None:
    recorder = record()
    for numbered in enumerate(traffic.run(20), 1):
        recorder.put(*numbered)
    recorder.close()

    with closing(sqlite3.connect(path)) as connection:
        counting: Any = CountsRows(connection)
        events = RequestReadingTable(OtherReadingsTable()).read(
            counting, 1, {0: "", 1: ""}
        )
        for _ in range(50):
            next(events)

    assert 5 < counting.rows < 50


def test_every_kind_of_reading_that_comes_often_has_a_table_of_its_own() -> None:
    own = {table.kind for table in every_table()} - {None}

    rare = {
        AnswerHashes,
        LoadPlanned,
        OtherProcesses,
        Refusals,
    }  # among the other readings
    assert own == {*KINDS} - rare


def test_every_table_of_a_session_is_declared() -> None:
    declared, taken_apart = {"sources"}, set[str]()
    for table in every_table():
        declared |= {table.name, *table.with_it}
        taken_apart |= {table.unpacked.name} if table.unpacked else set()

    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, Path(":memory:"))
        found = set(session_tables(connection))
    assert found - taken_apart <= declared <= found


def test_a_session_of_a_small_engine_comes_back(
    record: Callable[..., Recorder], path: Path, read_back: ReadBack, traffic: Any
) -> None:
    put = [*traffic.start(), *traffic.run(20)]
    recorder = record()
    for numbered in enumerate(put, 1):
        recorder.put(*numbered)
    recorder.close()

    assert read_back(path) == list(enumerate(put, 1))


def test_what_merges_needs_no_second_place(
    record: Callable[..., Recorder], path: Path, traffic: Any
) -> None:
    recorder = record()
    for numbered in enumerate(traffic.run(20), 1):
        recorder.put(*numbered)
    recorder.close()

    connection = sqlite3.connect(path)
    others = connection.execute("SELECT count(*) FROM other_readings").fetchone()
    requests = connection.execute("SELECT count(*) FROM requests").fetchone()
    connection.close()
    assert others == (0,)
    assert requests > (100,)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_booleans_and_enums_are_themselves_again(
    kind: type[AnyReading],
    path: Path,
    record: Callable[..., Recorder],
    read_back: ReadBack,
) -> None:
    types = {bool: True, int: 1, float: 1.5, str: "x"}
    fields = {
        field.name: example(field.type, types) for field in msgspec.structs.fields(kind)
    }
    reading = kind(**fields)
    recorder = record()
    recorder.put(1, reading)
    recorder.close()

    ((_, back),) = read_back(path)
    for name, value in fields.items():
        assert type(getattr(back, name)) is type(value), name


def example(annotation: Any, types: dict[type, Any]) -> Any:
    if get_origin(annotation) in {list, dict}:
        return get_origin(annotation)()
    for option in get_args(annotation) or (annotation,):
        if option in types:
            return types[option]
        if issubclass(option, Enum):
            return next(iter(option))
    return next(iter(annotation))
