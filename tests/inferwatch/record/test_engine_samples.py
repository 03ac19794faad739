"""Scrapes in the record: small, readable from any place on, and after damage."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from collectors.contract.readings import AnyReading, EngineSample
from inferwatch.record.file.sqlite import Cursor, transaction
from inferwatch.record.repair.salvage import fill_holes
from inferwatch.record.tables import engine_samples
from inferwatch.record.tables.codec import ReadingEncoder, recorded
from inferwatch.record.tables.migrations import migrate
from tests.inferwatch.metrics.scraped_servers import Served

FILE = Path(":memory:")


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, FILE)
        yield connection


def put(
    db: sqlite3.Connection, readings: Iterable[AnyReading], at_once: int = 9
) -> int:
    """Record them; how many could not be."""
    encoder, lost = ReadingEncoder(session=1), 0
    numbered = list(enumerate(readings, 1))
    for at in range(0, len(numbered), at_once):
        with transaction(db):
            batch = encoder.batch(numbered[at : at + at_once])
            batch.insert(db)
            lost += batch.lost
    return lost


def samples(count: int, servers: int = 3) -> list[EngineSample]:
    """Of some servers in turn, each busier than the one before."""
    served = [Served(f"chat-{number}:8000") for number in range(servers)]
    told = []
    for number in range(count):
        server = served[number % servers]
        for _ in range(number % servers + 1):
            server.request(ttft_s=0.01 * (number % 7), tokens=number % 5 + 1)
        told.append(server.at(number, running=number))
    return told


def test_reading_can_begin_at_any_of_them(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_samples, "LONGEST_CHAIN", 7)
    told = samples(200)
    put(db, told)

    for after in range(0, 200, 13):
        rest = list(recorded(db, 1, Cursor(after, ())))
        assert rest == list(enumerate(told[after:], after + 1))


def test_two_models_of_one_rank_and_new_names_come_back(db: sqlite3.Connection) -> None:
    told = []
    for number, each in enumerate(samples(60, servers=1)):
        model = "adapter" if number % 2 else "tiny"
        others = {f"new_{number // 20}": float(number)}
        told.append(msgspec.structs.replace(each, model=model, others=others))
    put(db, told)

    assert [each for _, each in recorded(db, 1)] == told
    (layouts,) = db.execute("SELECT count(*) FROM sample_layouts").fetchone()
    assert layouts == 6


def test_an_hour_of_a_busy_server_is_small(db: sqlite3.Connection) -> None:
    put(db, samples(3_600, servers=1))

    (bytes_,) = db.execute("SELECT sum(length(changes)) FROM engine_samples").fetchone()
    assert bytes_ < 3_600 * 130


def test_one_that_fits_no_row_takes_no_other_with_it(db: sqlite3.Connection) -> None:
    told = samples(30, servers=1)
    huge = msgspec.structs.replace(told[9], preemptions=2**70)

    lost = put(db, [*told[:9], huge, *told[10:]])

    assert lost == 1
    assert [each for _, each in recorded(db, 1)] == [*told[:9], *told[10:]]


@pytest.mark.parametrize("what", ["row", "layout"])
def test_what_rests_on_a_lost_row_goes_with_it_and_is_counted(
    db: sqlite3.Connection, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_samples, "LONGEST_CHAIN", 10)
    told = samples(40, servers=2)
    put(db, told)
    db.execute(
        "INSERT INTO sessions (session, command, state, started_ns, "
        "start_monotonic_ns, readings, inferwatch_version, boot_id, pid) "
        "VALUES (1, 'attach', 'complete', 0, 0, 40, '', '', 0)"
    )
    if what == "row":
        db.execute("DELETE FROM engine_samples WHERE ordinal = 25")
    else:
        db.execute("DELETE FROM sample_layouts")
    before = [each for _, each in recorded(db, 1)]

    [damage] = fill_holes(db)

    back = [each for _, each in recorded(db, 1)]
    assert back == before  # what makes no sense was not read before either
    assert [each for each in told if each in back] == back
    assert damage.lost == 40 - len(back)
    gone = [number for number, each in enumerate(told, 1) if each not in back]
    lost = {"row": [25, 27, 29, 31, 33, 35, 37, 39], "layout": [*range(1, 41)]}
    assert gone[0] == lost[what][0]
    assert set(gone) <= set(lost[what])
    assert len(gone) < 10 or what == "layout"
