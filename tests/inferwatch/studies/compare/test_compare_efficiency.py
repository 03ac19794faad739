"""MBU and MFU of a session: derived from its batches, by the peaks that it recorded."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.tables.codec import recorded
from inferwatch.record.tables.migrations import migrate
from inferwatch.sample import sample_file
from inferwatch.studies.compare.reading import following
from inferwatch.studies.compare.reading.following import followed_numbers
from inferwatch.studies.compare.reading.requests import ServerRequests
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut

WHOLE = ComparedSpan(
    origin_ns=0, start_ns=0, end_ns=1 << 50, cut=WarmupCut.NONE, load_runs=1
)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "sample.db"
    path.write_bytes(sample_file().read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, path)
        yield connection


def values(connection: sqlite3.Connection) -> dict[str, float]:
    requests = ServerRequests(connection, 1)
    found = followed_numbers(connection, 1, requests, WHOLE).sums
    return {
        key: each.above.sum() / each.below.sum()
        for key, each in found.items()
        if key in {"mbu", "mfu"}
    }


def test_they_are_those_of_limits(connection: sqlite3.Connection) -> None:
    model = Model()
    for _, reading in recorded(connection, 1):
        model.fold(reading)
    (end_ns,) = connection.execute("SELECT max(end_ns) FROM steps").fetchone()
    limits = model.snapshot(end_ns, SnapshotQuery(Window.SESSION)).limits
    assert limits is not None
    points = [each for each in (limits.decode, limits.prefill) if each is not None]
    spent_s = sum(each.steps * each.step_s for each in points)
    expected = {
        "mbu": sum(e.steps * e.step_s * (e.mbu or 0.0) for e in points) / spent_s,
        "mfu": sum(e.steps * e.step_s * (e.mfu or 0.0) for e in points) / spent_s,
    }

    assert values(connection) == pytest.approx(
        expected, rel=1e-3
    )  # Limits keeps 10^5 FLOP


def test_half_the_peak_is_used_twice_as_well(connection: sqlite3.Connection) -> None:
    before = values(connection)
    connection.execute(
        "UPDATE measured_peaks SET flops = (SELECT json_group_object(key, value / 2) "
        "FROM json_each(flops))"
    )

    after = values(connection)

    assert after["mfu"] == pytest.approx(2 * before["mfu"])
    assert after["mbu"] == before["mbu"]


def test_without_a_peak_nothing_is_derived(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM measured_peaks")

    assert values(connection) == {}


def test_of_too_many_steps_nothing_is_derived(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "MOST_STEPS", 100)

    assert values(connection) == {}
