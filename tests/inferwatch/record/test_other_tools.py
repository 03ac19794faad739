"""People use their own tools: plain SQL, and a few lines for token times."""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    EventKind,
    RequestEvent,
    RequestRecord,
    Step,
    Vantage,
)
from inferwatch.record.tables import steps
from inferwatch.record.tables.requests import EVENTS
from inferwatch.record.writing.recorder import Recorder


@pytest.fixture
def readings(traffic: Any, traffic_of: Callable[..., Any]) -> list[Any]:
    """An engine, and one that came after it and counts from the start again."""
    restarted = [
        msgspec.structs.replace(reading, source="engine-2")
        for reading in traffic_of(seed=2).run(3)
        if isinstance(reading, Step)
    ]
    return [*traffic.start(), *traffic.run(12), *restarted]


@pytest.fixture
def db(
    record: Callable[..., Recorder], path: Path, readings: list[Any]
) -> Iterator[sqlite3.Connection]:
    recorder = record(name="evening")
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)
    recorder.close()
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


Times = dict[tuple[int, int, int], list[int]]


def documented_decoder() -> Callable[[sqlite3.Connection, int], Times]:
    """The code in the module's docstring, run as it stands there."""
    _, _, code = str(steps.__doc__).partition("::\n")
    code, _, _ = code.partition("\nConsecutive")
    names: dict[str, Any] = {}
    exec(dedent(code), names)  # noqa: S102  it is the thing under test
    function: Callable[[sqlite3.Connection, int], Times] = names["token_times"]
    return function


def test_the_documented_lines_give_every_token_time(
    db: sqlite3.Connection, readings: list[Any]
) -> None:
    expected: defaultdict[str, list[int]] = defaultdict(list)
    for step in readings:
        if isinstance(step, Step):
            for member, tokens in zip(step.members, step.produced, strict=True):
                expected[f"{step.source} {member}"] += [step.end_ns] * tokens
    names = dict(db.execute("SELECT source, name FROM sources").fetchall())

    times = documented_decoder()(db, 1)

    assert {
        f"{names[source]} {member}": moments
        for (source, rank, member), moments in times.items()
    } == expected
    assert sum(map(len, expected.values())) > 1_000


def events(readings: list[Any], kind: EventKind, vantage: Vantage) -> dict[str, Any]:
    return {
        event.request_id: event
        for event in readings
        if isinstance(event, RequestEvent)
        and (event.kind, event.vantage) == (kind, vantage)
    }


def test_latencies_of_a_request_are_plain_columns(
    db: sqlite3.Connection, readings: list[Any]
) -> None:
    rows = db.execute(
        "SELECT request_id, ttft_s, queue_s, tpot_s, e2el_s, output_tokens, member "
        "FROM requests WHERE finished_ns IS NOT NULL"
    ).fetchall()

    by_kind = {at: events(readings, *at) for at in EVENTS}
    arrived = by_kind[EventKind.ARRIVED, Vantage.FRONTEND]
    first = by_kind[EventKind.FIRST_TOKEN, Vantage.FRONTEND]
    ended = by_kind[EventKind.FINISHED, Vantage.FRONTEND]
    added = by_kind[EventKind.ADDED, Vantage.ENGINE]
    scheduled = by_kind[EventKind.SCHEDULED, Vantage.ENGINE]
    assert len(rows) == len(ended) > 50
    for key, ttft_s, queue_s, tpot_s, e2el_s, tokens, member in rows:
        assert ttft_s == (first[key].t_ns - arrived[key].t_ns) / 1e9
        assert e2el_s == (ended[key].t_ns - arrived[key].t_ns) / 1e9
        assert queue_s == (scheduled[key].t_ns - added[key].t_ns) / 1e9
        assert (tokens, member) == (ended[key].output_tokens, added[key].ordinal)
        decode_s = (ended[key].t_ns - first[key].t_ns) / 1e9
        assert tpot_s == (
            None if tokens < 2 else pytest.approx(decode_s / (tokens - 1))
        )


def test_latencies_of_a_client_request_are_plain_columns(
    db: sqlite3.Connection, readings: list[Any]
) -> None:
    rows = db.execute("SELECT number, ttft_s, e2el_s FROM client_requests").fetchall()

    records: dict[int, Any] = {
        r.index: r for r in readings if isinstance(r, RequestRecord)
    }
    assert len(rows) == len(records)
    for number, ttft_s, e2el_s in rows:
        intended_ns = records[number].intended_ns
        assert ttft_s == (records[number].first_token_ns - intended_ns) / 1e9
        assert e2el_s == (records[number].last_token_ns - intended_ns) / 1e9


def test_steps_are_typed_columns(db: sqlite3.Connection, readings: list[Any]) -> None:
    rows = db.execute(
        "SELECT step, start_ns, end_ns, duration_ns, bound_by, output_tokens, "
        "preemptions, sources.name FROM steps JOIN sources USING (session, source)"
    ).fetchall()

    assert rows == [
        (
            step.index,
            step.start_ns,
            step.end_ns,
            step.duration_ns,
            step.bound_by.value,
            step.output_tokens,
            len(step.preempted),
            step.source,
        )
        for step in readings
        if isinstance(step, Step)
    ]


def test_the_file_explains_itself(db: sqlite3.Connection) -> None:
    query = "SELECT sql FROM sqlite_master WHERE name = 'steps'"
    (text,) = db.execute(query).fetchone()

    assert "-- when all tokens of the step came out" in text
