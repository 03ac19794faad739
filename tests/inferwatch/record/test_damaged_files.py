"""What can be read of a damaged file is read, and what is lost is counted."""

import gzip
import os
import random
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from collectors.contract.clock import anchor
from collectors.contract.readings import AnyReading, Step
from inferwatch.errors import StorageError
from inferwatch.record.connections import open_for_reading
from inferwatch.record.repair import recovery
from inferwatch.record.repair.recovery import damage_of, recover_into
from inferwatch.record.replay.marks import bookmarks, keep_bookmark
from inferwatch.record.sessions import housekeeping
from inferwatch.record.sessions.erasing import erase, vacuum
from inferwatch.record.sessions.sessions import find, list_sessions
from inferwatch.record.tables.session_state import SessionState
from inferwatch.record.tables.steps import STEP_COLUMNS, unpack

FILES = Path(__file__).parent / "files"
PAGE = 4096
SCHEMA = {1, 30, 31, 32, 33, 34}
"""Pages of the schema in the file of version 3."""
Numbered = tuple[int, AnyReading]
ReadBack = Callable[[Path, str], list[Numbered]]


@pytest.fixture(scope="module")
def whole() -> bytes:
    """A record of real vLLM under load."""
    return gzip.decompress((FILES / "schema_3.db.gz").read_bytes())


@pytest.fixture
def original(whole: bytes, tmp_path: Path, read_back: ReadBack) -> list[Numbered]:
    """What it holds."""
    path = tmp_path / "original.db"
    path.write_bytes(whole)
    return read_back(path, "last")


@pytest.fixture
def material(
    whole: bytes, original: list[Numbered]
) -> Callable[[], tuple[bytes, list[Numbered]]]:
    """Both; what falsifies a property is printed with its arguments."""
    return lambda: (whole, original)


def bare(numbered: Numbered) -> Numbered:
    """Without what stands elsewhere and may be lost alone."""
    ordinal, reading = numbered
    elsewhere = ("members", "scheduled", "produced", "preempted", "processes")
    lists: dict[str, Any] = {name: [] for name in elsewhere if hasattr(reading, name)}
    lists["source"] = ""
    return ordinal, type(reading)(
        **{name: getattr(reading, name) for name in reading.__struct_fields__} | lists
    )


def noise(data: bytes, pages: list[int], seed: int = 1) -> bytes:
    """The same with other bytes on these pages, counted from 1."""
    chance, torn = random.Random(seed), bytearray(data)
    for page in pages:
        torn[(page - 1) * PAGE : page * PAGE] = chance.randbytes(PAGE)
    return bytes(torn)


@pytest.mark.parametrize("percent", [30, 60, 90])
def test_of_a_file_cut_off_its_beginning_is_read(
    whole: bytes,
    original: list[Numbered],
    path: Path,
    read_back: ReadBack,
    percent: int,
) -> None:
    path.write_bytes(whole[: len(whole) * percent // 100])

    left = read_back(path, "last")
    damage = damage_of(path)

    assert damage is not None
    assert damage.lost == len(original) - len(left) > 0
    assert {*map(repr, map(bare, left))} <= {*map(repr, map(bare, original))}
    assert len(left) > len(original) * (percent - 60) // 100
    assert f"{damage.lost:,} of {len(original):,} readings are lost" in damage.sentence
    assert find(path, "last").unrecorded == damage.lost


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    pages=st.lists(st.integers(1, 56), min_size=1, max_size=3, unique=True),
    seed=st.integers(0, 99),
)
@example(pages=[5], seed=0)  # the schema's version
@example(pages=[6], seed=0)  # the sessions
@example(pages=[5, 30], seed=0)  # the version and some of the schema
@example(pages=[1, 30], seed=0)  # the header and some of the schema
def test_around_torn_pages_everything_else_is_read(
    material: Callable[[], tuple[bytes, list[Numbered]]],
    path: Path,
    read_back: ReadBack,
    pages: list[int],
    seed: int,
) -> None:
    whole, original = material()
    path.write_bytes(noise(whole, pages, seed))

    rows = list_sessions(path)
    damage = damage_of(path)
    left = [numbered for row in rows for numbered in read_back(path, row.id)]

    assert damage is not None
    assert {ordinal for ordinal, _ in left} <= {ordinal for ordinal, _ in original}
    if 5 not in pages or not SCHEMA & {*pages}:  # else only what version 1 knew is read
        assert {*map(repr, map(bare, left))} <= {*map(repr, map(bare, original))}
    if rows and rows[0].command == "demo":  # its own row is there
        assert damage.lost == len(original) - len(left)


def test_a_torn_page_costs_no_more_than_stood_on_it(
    whole: bytes, original: list[Numbered], path: Path, read_back: ReadBack
) -> None:
    """A leaf of steps: some dozen rows; those before and after it are there."""
    intact = path.with_name("intact.db")
    intact.write_bytes(whole)
    with closing(sqlite3.connect(intact)) as connection:
        [page, *_] = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = 'steps' AND pagetype = 'leaf' "
            "ORDER BY path LIMIT 1 OFFSET 3"
        ).fetchone()
    path.write_bytes(noise(whole, [page]))

    left = [ordinal for ordinal, _ in read_back(path, "last")]

    lost = sorted({ordinal for ordinal, _ in original} - set(left))
    assert 0 < len(lost) < 120
    assert min(left) < lost[0] < lost[-1] < max(left)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: b"\0" * 100 + data[100:], id="header of zeros"),
        pytest.param(lambda data: b"garbage!" * 12 + data[96:], id="header of garbage"),
        pytest.param(lambda data: noise(data, [1]), id="first page"),
        pytest.param(lambda data: noise(data, [30, 31, 32, 33, 34]), id="schema"),
        pytest.param(lambda data: noise(data, [2]), id="pointer map"),
    ],
)
def test_what_only_says_where_things_lie_can_be_done_without(
    whole: bytes,
    original: list[Numbered],
    path: Path,
    read_back: ReadBack,
    spoil: Callable[[bytes], bytes],
) -> None:
    path.write_bytes(spoil(whole))

    assert read_back(path, "last") == original


def test_a_file_of_which_nothing_is_lost_is_not_called_damaged(
    whole: bytes, path: Path
) -> None:
    """It is not written to all the same: SQLite would make it worse."""
    path.write_bytes(noise(whole, [2]))  # the pointer map
    into = path.with_name("sound.db")

    damage = damage_of(path)

    assert damage is not None
    assert not damage.is_loss
    assert damage.sentence.startswith(f"nothing in {path} is lost")
    with pytest.raises(StorageError, match=r"recover NEW\.db --db .* saves all of it"):
        housekeeping.rename(path, 1, "x")
    assert not recover_into(path, into).is_loss
    assert damage_of(into) is None


def test_a_lost_bookmark_is_told(whole: bytes, path: Path) -> None:
    """It is not a reading, so none is lost with it."""
    path.write_bytes(whole)
    keep_bookmark(path, find(path, "last"), 7, "here")
    with closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'bookmarks'"
        ).fetchone()
    path.write_bytes(noise(path.read_bytes(), [root]))

    damage = damage_of(path)

    assert damage is not None
    assert (damage.lost, damage.is_loss) == (0, True)
    assert "rows of bookmarks could not be read" in damage.sentence


def test_a_lost_schema_of_this_version_can_be_done_without(
    path: Path, read_back: ReadBack
) -> None:
    path.write_bytes(gzip.decompress((FILES / "schema_4.db.gz").read_bytes()))
    list_sessions(path)  # migrates it
    original = read_back(path, "last")
    with closing(sqlite3.connect(path)) as connection:
        pages = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = 'sqlite_schema' AND pageno > 1"
        ).fetchall()
    path.write_bytes(noise(path.read_bytes(), [page for (page,) in pages]))

    assert read_back(path, "last") == original
    with closing(open_for_reading(path)) as connection:
        assert [mark.text for mark in bookmarks(connection, 1)] == ["hello"]


def flip(path: Path, place: str) -> None:
    """One bit in the middle of a value: pages and header stay as they should be."""
    table, column = place.split(".")
    with closing(sqlite3.connect(path)) as connection, connection:
        key, held = connection.execute(
            f"SELECT ordinal, {column} FROM {table} LIMIT 1 OFFSET 3"  # noqa: S608
        ).fetchone()
        torn = bytearray(held if isinstance(held, bytes) else held.encode())
        torn[len(torn) // 2] ^= 1
        value = bytes(torn) if isinstance(held, bytes) else torn.decode()
        change = f"UPDATE {table} SET {column} = ? WHERE ordinal = ?"  # noqa: S608
        connection.execute(change, (value, key))


@pytest.mark.parametrize(
    ("place", "lost"),
    [("step_members.members", 0), ("token_times.gaps_ns", 1), ("steps.bound_by", 1)],
)
def test_a_flipped_bit_in_a_value_is_seen_and_what_it_costs_is_counted(
    whole: bytes,
    original: list[Numbered],
    path: Path,
    read_back: ReadBack,
    place: str,
    lost: int,
) -> None:
    path.write_bytes(whole)
    flip(path, place)

    damage = damage_of(path)
    left = read_back(path, "last")

    assert damage is not None
    assert damage.is_loss
    assert damage.lost == len(original) - len(left) == lost
    assert (damage.membersless > 0) == (lost == 0)
    assert {*map(repr, map(bare, left))} <= {*map(repr, map(bare, original))}


def test_a_file_with_a_flipped_bit_in_a_value_can_be_kept_in_order(
    whole: bytes, path: Path
) -> None:
    """SQLite finds it as it should be: one lost reading locks nobody out."""
    path.write_bytes(whole)
    flip(path, "token_times.gaps_ns")

    housekeeping.rename(path, 1, "still mine")
    keep_bookmark(path, find(path, "last"), 7, "here")
    housekeeping.put_away(path, [1])

    [row] = list_sessions(path, bin_too=True)
    assert row.name == "still mine"
    assert row.deleted_ns is not None
    assert row.unrecorded == 1


@pytest.mark.parametrize(
    "place", ["step_members.members", "token_times.gaps_ns", "steps.bound_by"]
)
def test_a_flipped_bit_in_a_large_file_is_told_in_a_sentence_and_the_rest_saved(
    whole: bytes,
    path: Path,
    read_back: ReadBack,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """It is not looked through when it is opened."""
    path.write_bytes(whole)
    flip(path, place)
    into = path.with_name("saved.db")
    monkeypatch.setattr(recovery, "CHECKED_UP_TO_BYTES", 0)
    readings = find(path, "last").readings

    with pytest.raises(StorageError, match="is unreadable; `inferwatch sessions rec"):
        read_back(path, "last")
    damage = recover_into(path, into)

    assert damage.is_loss
    assert len(read_back(into, "last")) == readings - damage.lost


def test_a_step_of_which_no_blob_tells_is_not_given_those_of_another(
    whole: bytes, path: Path, monkeypatch: pytest.MonkeyPatch, read_back: ReadBack
) -> None:
    path.write_bytes(whole)
    monkeypatch.setattr(recovery, "CHECKED_UP_TO_BYTES", 0)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "DELETE FROM step_members WHERE ordinal = "
            "(SELECT ordinal FROM step_members ORDER BY ordinal LIMIT 1 OFFSET 3)"
        )

    with pytest.raises(StorageError, match="is unreadable"):
        read_back(path, "last")


def test_a_name_that_is_no_longer_text_keeps_nothing_from_being_read(
    whole: bytes, original: list[Numbered], path: Path, read_back: ReadBack
) -> None:
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE sessions SET name = CAST(x'6162ff63' AS TEXT)")

    assert find(path, "last").name == "ab\N{REPLACEMENT CHARACTER}c"
    assert read_back(path, "last") == original


def test_a_session_whose_state_is_lost_was_interrupted(
    whole: bytes, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(whole)
    monkeypatch.setattr(recovery, "CHECKED_UP_TO_BYTES", 0)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE sessions SET state = 'comp|ete'")

    assert find(path, "last").state is SessionState.INTERRUPTED


def test_what_was_being_recorded_is_interrupted_in_the_file_it_is_saved_into(
    whole: bytes, path: Path, tmp_path: Path
) -> None:
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE sessions SET state = 'recording', ended_ns = NULL, started_ns = ?",
            (anchor().wall_ns,),
        )
        connection.execute("DELETE FROM clock_anchors")

    recover_into(path, tmp_path / "rescued.db")

    assert find(path, "s1").state is SessionState.UNKNOWN
    assert find(tmp_path / "rescued.db", "s1").state is SessionState.INTERRUPTED


def test_the_damaged_file_itself_is_left_as_it_is(whole: bytes, path: Path) -> None:
    torn = noise(whole, [40, 41])
    path.write_bytes(torn)

    list_sessions(path)

    assert path.read_bytes() == torn
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: housekeeping.rename(path, 1, "x"), id="rename"),
        pytest.param(lambda path: housekeeping.put_away(path, [1]), id="delete"),
        pytest.param(lambda path: erase(path, [1]), id="erase"),
        pytest.param(vacuum, id="vacuum"),
    ],
)
def test_a_damaged_file_is_not_changed(
    whole: bytes, path: Path, change: Callable[[Path], object]
) -> None:
    torn = noise(whole, [40])
    path.write_bytes(torn)

    with pytest.raises(StorageError, match=r"inferwatch sessions recover NEW\.db"):
        change(path)

    assert path.read_bytes() == torn


@pytest.mark.parametrize("wrong", [b"1", "1", 1.5])
def test_a_column_with_what_was_never_written_there_is_unreadable(
    wrong: bytes | str | float,
) -> None:
    """SQLite takes a value for what its first byte says: one bit makes it another."""
    step = Step(rank=0, index=7, start_ns=1, end_ns=2, duration_ns=1)
    held = dict(zip(STEP_COLUMNS.fields, STEP_COLUMNS.values(step), strict=True))
    held |= {"bound_by": "seqs", "memberless": 0}

    STEP_COLUMNS.restore(list(held.values()))
    with pytest.raises(TypeError, match="rank"):
        STEP_COLUMNS.restore(list((held | {"rank": wrong}).values()))


def test_a_source_whose_name_is_lost_is_unknown(
    whole: bytes, original: list[Numbered], path: Path, read_back: ReadBack
) -> None:
    path.write_bytes(noise(whole, [8]))  # the root of sources

    left = read_back(path, "last")

    assert list(map(bare, left)) == list(map(bare, original))
    assert {reading.source.rstrip("0123456789") for _, reading in left} == {"unknown-"}


def test_a_sound_file_has_no_damage(whole: bytes, path: Path) -> None:
    path.write_bytes(whole)

    assert damage_of(path) is None


@pytest.mark.parametrize(
    "data", [b"dear diary, " * 900, bytes(9000), b"SQLite format 3\0" + bytes(9000)]
)
def test_what_was_never_ours_is_not_guessed_at(path: Path, data: bytes) -> None:
    path.write_bytes(data)

    with pytest.raises(StorageError, match="not a recording of inferwatch"):
        list_sessions(path)
    assert path.read_bytes() == data


def test_steps_whose_members_are_lost_are_kept_without(
    whole: bytes, original: list[Numbered], path: Path, read_back: ReadBack
) -> None:
    path.write_bytes(noise(whole, [10]))  # the root of step_members

    left = read_back(path, "last")
    damage = damage_of(path)

    assert list(map(bare, left)) == list(map(bare, original))
    assert damage is not None
    assert damage.sessions[0].membersless == find(path, "last").steps


def test_nobody_is_said_to_be_in_a_step_that_is_lost(whole: bytes, path: Path) -> None:
    """Whoever reads members looks their steps up."""
    path.write_bytes(noise(whole, [43, 45]))

    with closing(open_for_reading(path)) as connection:
        steps = {row[0] for row in connection.execute("SELECT ordinal FROM steps")}
        blobs = connection.execute("SELECT steps, members FROM step_members").fetchall()
    held = [(count, unpack(blob)) for count, blob in blobs]

    assert len(steps) < 480
    assert {ordinal for _, each in held for ordinal in each} == steps
    assert all(count == len(each) > 0 for count, each in held)


def test_what_is_saved_is_a_record_like_any_other(
    whole: bytes, path: Path, read_back: ReadBack
) -> None:
    path.write_bytes(noise(whole, [50]))
    into = path.with_name("rescued.db")

    damage = recover_into(path, into)

    assert read_back(into, "last") == read_back(path, "last")
    assert damage_of(into) is None
    assert damage.facts["readings_lost"] == find(into, "last").unrecorded
    with pytest.raises(StorageError, match="exists: choose another file"):
        recover_into(path, into)


def test_nothing_is_left_of_saving_that_was_cut_short(
    whole: bytes, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(noise(whole, [50]))
    into = path.with_name("rescued.db")

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recovery, "fill_holes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recover_into(path, into)

    assert not into.exists()


def test_what_is_saved_of_a_record_is_for_its_user_alone(
    whole: bytes, path: Path
) -> None:
    path.write_bytes(noise(whole, [1]))
    into = path.with_name("new.db")
    before = os.umask(0o022)
    try:
        recover_into(path, into)
    finally:
        os.umask(before)

    assert into.stat().st_mode & 0o777 == 0o600


def test_a_large_damaged_file_is_salvaged_only_when_asked(
    whole: bytes, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path.with_name("run #3.db")
    path.write_bytes(noise(whole, [1]))
    monkeypatch.setattr(recovery, "SALVAGED_UP_TO_BYTES", 1000)

    with pytest.raises(StorageError, match=r"`inferwatch sessions recover") as raised:
        list_sessions(path)

    command = shlex.split(str(raised.value).split("`")[1], comments=True)
    assert command[2:] == ["recover", "NEW.db", "--db", str(path)]


def test_a_crash_is_no_damage(
    record: Callable[..., Any], traffic: Any, path: Path, read_back: ReadBack
) -> None:
    """The log beside the file belongs to it: it is read, nothing is salvaged."""
    recorder = record()
    for ordinal, reading in enumerate([*traffic.start(), *traffic.run(1)], 1):
        recorder.put(ordinal, reading)
    crashed = path.with_name("crashed.db")
    with closing(sqlite3.connect(path)) as holds_the_log:
        holds_the_log.execute("SELECT * FROM sessions").fetchall()
        recorder.close()
        crashed.write_bytes(path.read_bytes())
        log = path.with_name(path.name + "-wal")
        crashed.with_name(crashed.name + "-wal").write_bytes(log.read_bytes())

    assert damage_of(crashed) is None
    assert len(read_back(crashed, "last")) == ordinal
    open_for_reading(crashed).close()
