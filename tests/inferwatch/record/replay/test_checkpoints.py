"""Checkpoints make seeking fast and change nothing that is seen."""

import asyncio
import os
import pickle
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from importlib.resources import as_file, files
from itertools import pairwise, takewhile
from pathlib import Path
from random import Random
from shutil import copyfile, copytree
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from collectors.contract.readings import AnyReading, Note, NoteKind, Step, Tick
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.findings import gather
from inferwatch.metrics.model.model import Model, SavedState
from inferwatch.metrics.series import samples, saving
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.checkpoints import file as checkpoint_file
from inferwatch.record.checkpoints.blocks import compress, decompress
from inferwatch.record.checkpoints.checkpoints import Checkpoint, Checkpoints
from inferwatch.record.checkpoints.file import (
    SOURCES,
    checkpoint_folder,
    checkpoint_path,
    digest_of,
    forget_checkpoints,
    make_room,
)
from inferwatch.record.replay.checkpoint_builder import CheckpointBuilder
from inferwatch.record.replay.player import Player
from inferwatch.record.replay.replay_state import ReplayState
from inferwatch.record.sessions.erasing import erase
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.codec import ReadingDecoder
from inferwatch.record.writing.recorder import Recorder

S = 1_000_000_000
LONG_S = 45
PAGE_BYTES = 8_192
"""Small, as the files are: some hundred pages, as a day's has thousands."""
NO_MORE = "no checkpoints from here on, so seeking takes longer"
AsOf = Callable[[list[AnyReading], int, Window], Snapshot]


class Size(NamedTuple):
    """How much happens in a session, and what its checkpoints may cost."""

    step_ms: float
    effort: int
    """Between two checkpoints."""
    crowded: int
    """So many checkpoints in the place of one, and of them room for a fourth."""
    most_bytes: int
    few_bytes: int
    """Not enough for all checkpoints that nothing crowds."""


SMALL = Size(40.0, 1_250, 15, 560_000, 130_000)
USUAL = Size(5.0, saving.MOST_EFFORT, 40, 1_500_000, 250_000)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(SMALL, id="small"),
        pytest.param(USUAL, id="usual", marks=pytest.mark.soak),
    ],
)
def size(request: pytest.FixtureRequest) -> Iterator[Size]:
    chosen: Size = request.param
    with pytest.MonkeyPatch.context() as efforts:
        efforts.setattr(saving, "MOST_EFFORT", chosen.effort)
        yield chosen


@pytest.fixture(scope="module")
def long_readings(traffic_of: Callable[..., Any], size: Size) -> list[AnyReading]:
    """An engine with a queue, for long enough to need some checkpoints."""
    traffic = traffic_of(slots=6, step_ms=size.step_ms)
    return [*traffic.start(), *traffic.run(LONG_S)]


@pytest.fixture(scope="module")
def long_recording(
    tmp_path_factory: pytest.TempPathFactory,
    long_readings: list[AnyReading],
    stopped_clock: Any,
) -> Path:
    """Recorded once, without checkpoints."""
    path: Path = tmp_path_factory.mktemp("long") / "inferwatch.db"
    clock = stopped_clock((LONG_S + 1) * S)
    recorder = Recorder.open(path, clock=clock, floor_bytes=0)
    for numbered in enumerate(long_readings, 1):
        recorder.put(*numbered)
    recorder.close()
    return path


@pytest.fixture(scope="module")
def built_recording(
    tmp_path_factory: pytest.TempPathFactory, long_recording: Path
) -> Path:
    """With checkpoints, made once and afterwards."""
    path = copyfile(long_recording, tmp_path_factory.mktemp("built") / "inferwatch.db")
    builder = CheckpointBuilder(path, find(path, "last"))
    builder.build()
    assert builder.covered_ns == (LONG_S + 1) * S
    return path


@pytest.fixture
def long_record(long_recording: Path, path: Path) -> Path:
    """A copy without checkpoints."""
    return copyfile(long_recording, path)


@pytest.fixture
def built(built_recording: Path, path: Path) -> Path:
    """A copy with its checkpoints beside it."""
    copytree(checkpoint_folder(built_recording), checkpoint_folder(path))
    return copyfile(built_recording, path)


@pytest.fixture
def player(built: Path) -> Iterator[Player]:
    player = Player.open(built, "last")
    yield player
    player.close()


def file_of(path: Path) -> Path:
    session = find(path, "last")
    return checkpoint_path(path, session.session, session.started_ns)


def checkpoints_of(path: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(file_of(path))) as connection:
        query = "SELECT ordinal, t_ns FROM checkpoints ORDER BY ordinal"
        return connection.execute(query).fetchall()


def tamper(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(file_of(path))) as connection:
        assert connection.execute(statement, values).rowcount > 0
        connection.commit()


async def test_random_moments_are_shown_as_by_playing_to_them(
    player: Player, long_readings: list[AnyReading], as_of: AsOf
) -> None:
    random = Random(7)

    for _ in range(8):
        t_ns, window = random.randint(0, LONG_S * S), random.choice(list(Window))
        await player.playback.seek(t_ns)

        assert player.snapshot(SnapshotQuery(window)) == as_of(
            long_readings, t_ns, window
        ), t_ns

    assert player._seekable._lookup._checkpoints is not None  # they were not refused


async def test_steps_across_a_checkpoint_are_shown_as_by_playing(
    player: Player, built: Path, long_readings: list[AnyReading], as_of: AsOf
) -> None:
    _, t_ns = checkpoints_of(built)[1]
    ends_ns = [each.end_ns for each in long_readings if isinstance(each, Step)]
    await player.playback.seek(t_ns + 20_000_000)

    for count in (-1, -8, 12):
        await player.playback.step(count)

        at_ns = player.now_ns()
        assert at_ns in ends_ns
        shown = player.snapshot(SnapshotQuery(Window.MINUTE))
        assert shown == as_of(long_readings, at_ns, Window.MINUTE)


async def test_a_restored_model_goes_on_to_the_end_as_one_that_was_never_saved(
    player: Player, built: Path, long_readings: list[AnyReading], as_of: AsOf
) -> None:
    (ordinal, t_ns), end_ns = checkpoints_of(built)[0], (LONG_S + 1) * S
    tamper(built, "DELETE FROM checkpoints WHERE ordinal > ?", ordinal)
    await player.playback.seek(t_ns)  # the only jump

    await player.playback.seek(end_ns)

    for window in Window:
        assert player.snapshot(SnapshotQuery(window)) == as_of(
            long_readings, end_ns, window
        )
    assert player._seekable._lookup._checkpoints is not None  # it was not refused


async def test_checkpoints_are_made_while_recording(
    record: Callable[..., Recorder],
    path: Path,
    long_readings: list[AnyReading],
    stopped_clock: Any,
    as_of: AsOf,
) -> None:
    recorder = record(clock=stopped_clock((LONG_S + 1) * S))
    pipeline = Pipeline(Model(), recorder)
    for at in range(0, len(long_readings), 50):
        pipeline.take(long_readings[at : at + 50])
        pipeline.snapshot(
            at * 10**6, SnapshotQuery(Window.SESSION)
        )  # settles rows, changes nothing
    pipeline.close()

    made = checkpoints_of(path)
    player = Player.open(path, "last")
    random = Random(2)
    try:
        assert len(made) >= 3
        for _ in range(5):
            t_ns, window = random.randint(0, LONG_S * S), random.choice(list(Window))
            await player.playback.seek(t_ns)
            assert player.snapshot(SnapshotQuery(window)) == as_of(
                long_readings, t_ns, window
            )
        assert (
            player._seekable._lookup._checkpoints is not None
        )  # they were not refused
    finally:
        player.close()


async def test_no_checkpoint_tells_of_readings_that_are_not_in_the_record(
    record: Callable[..., Recorder], path: Path, long_readings: list[AnyReading]
) -> None:
    pipeline = Pipeline(Model(), record(capacity=10))
    pipeline.take(long_readings)
    pipeline.close()

    assert not file_of(path).exists()


def test_checkpoints_begun_are_finished(long_record: Path) -> None:
    stopped = CheckpointBuilder(long_record, find(long_record, "last"))
    stopped._given_up = True
    stopped.build()
    assert stopped.covered_ns == 0

    again = CheckpointBuilder(long_record, find(long_record, "last"))
    again.build()
    once = checkpoints_of(long_record)
    tamper(long_record, "DELETE FROM checkpoints WHERE ordinal > ?", once[0][0])
    CheckpointBuilder(long_record, find(long_record, "last")).build()

    assert len(once) >= 3
    assert checkpoints_of(long_record) == once


def test_of_an_idle_engine_they_are_finished_where_they_would_have_been(
    record: Callable[..., Recorder], stopped_clock: Any, path: Path
) -> None:
    recorder = record(clock=stopped_clock(600 * S))
    for ordinal in range(1, 85):
        recorder.put(ordinal, Tick(t_ns=7 * ordinal * S))
    recorder.close()
    CheckpointBuilder(path, find(path, "last")).build()
    once = checkpoints_of(path)
    tamper(path, "DELETE FROM checkpoints WHERE ordinal > ?", once[2][0])

    CheckpointBuilder(path, find(path, "last")).build()

    assert len(once) == 9
    assert checkpoints_of(path) == once


def test_a_model_that_cannot_be_saved_is_recorded_all_the_same(
    record: Callable[..., Recorder], path: Path
) -> None:
    pipeline = Pipeline(Model(), record())
    pipeline.take([Note(t_ns=0, kind=NoteKind.PROBE, text="half a char \ud800")])

    pipeline.take([Tick(t_ns=61 * S), Tick(t_ns=62 * S)])
    pipeline.close()

    session = find(path, "last")
    assert (session.readings, session.unrecorded) == (3, 1)
    told = list(note_texts(path))
    assert [text.partition(":")[0] for text in told] == [NO_MORE]
    assert "surrogates not allowed" in told[0]


def test_a_checkpoint_that_cannot_be_kept_costs_no_reading(
    record: Callable[..., Recorder], path: Path
) -> None:
    recorder = record()
    recorder.put(1, Tick(t_ns=1))
    recorder.keep(Checkpoint(1, 2**70, Model().saved()))
    recorder.put(2, Tick(t_ns=2))
    recorder.close()

    assert find(path, "last").readings == 2
    assert recorder.health.ok
    assert not recorder.keeps


def test_that_checkpoints_are_kept_no_more_is_told_once_in_the_session(
    record: Callable[..., Recorder], path: Path, eventually: Any
) -> None:
    checkpoint_folder(path).write_text("where they should stand")
    recorder = record()
    pipeline = Pipeline(Model(), recorder)
    pipeline.take([Tick(t_ns=0), Tick(t_ns=61 * S)])
    eventually(lambda: not recorder.keeps)

    pipeline.take([Tick(t_ns=each * 61 * S) for each in (2, 3, 4)])
    pipeline.close()

    (told,) = note_texts(path)
    assert told.startswith(f"{NO_MORE}: [Errno 17] File exists")


def note_texts(path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(path)) as connection:
        for (text,) in connection.execute("SELECT text FROM notes"):
            yield text


async def test_why_checkpoints_cannot_be_made_afterwards_is_told(
    long_record: Path,
) -> None:
    checkpoint_folder(long_record).write_text("where they should stand")
    player = Player.open(long_record, "last")
    try:
        player._builder.build()

        assert str(player.record.message).startswith(f"{NO_MORE}: [Errno 17]")
        assert player.covered_ns == 0
    finally:
        player.close()


class Malice:
    """Would do harm if it were ever made."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("/tmp/inferwatch-was-here"),))


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("UPDATE checkpoints SET state = x'00'", marks=pytest.mark.soak),
        pytest.param("UPDATE checkpoints SET parts = x'9101'", marks=pytest.mark.soak),
        "UPDATE parts SET content = x'789c030000000001'",
        pytest.param("UPDATE blocks SET columns = x'00'", marks=pytest.mark.soak),
        pytest.param("UPDATE blocks SET sums = x'00'", marks=pytest.mark.soak),
        "DELETE FROM blocks",
        pytest.param("DELETE FROM rows", marks=pytest.mark.soak),
        "DROP TABLE checkpoints",
    ],
)
async def test_a_file_that_is_not_ours_is_refused_and_done_without(
    statement: str,
    built: Path,
    long_readings: list[AnyReading],
    as_of: AsOf,
) -> None:
    with closing(sqlite3.connect(file_of(built))) as connection:
        connection.execute(statement)
        connection.commit()
    player = Player.open(built, "last")
    t_ns, window = 40 * S, Window.SESSION

    try:
        player.snapshot(SnapshotQuery(window))
        await player.playback.seek(t_ns)
        shown = player.snapshot(SnapshotQuery(window))
    finally:
        player.close()

    assert shown == as_of(long_readings, t_ns, window)


async def test_strange_blocks_that_show_only_when_drawn_are_done_without(
    built: Path, long_readings: list[AnyReading], as_of: AsOf, run: Any
) -> None:
    tamper(built, "UPDATE blocks SET columns = x'00'")
    player = Player.open(built, "last")
    seen: list[Snapshot] = []

    async def look() -> None:
        await player.playback.seek(40 * S)
        async with asyncio.timeout(60):
            while not seen or seen[-1].window is not Window.SESSION:
                seen.append(player.snapshot(SnapshotQuery(Window.SESSION)))
                await asyncio.sleep(0.05)

    await run(player, look())

    assert seen[-1] == as_of(long_readings, 40 * S, Window.SESSION)


async def test_a_malicious_state_is_refused(
    built: Path, long_readings: list[AnyReading], as_of: AsOf
) -> None:
    place = SavedState.__struct_fields__.index("client")
    with closing(sqlite3.connect(file_of(built))) as connection:
        rows = connection.execute("SELECT ordinal, state FROM checkpoints").fetchall()
        for ordinal, packed in rows:
            state = msgspec.msgpack.decode(decompress(packed))
            state[place] = pickle.dumps(Malice())
            bad = compress(msgspec.msgpack.encode(state))
            connection.execute(
                "UPDATE checkpoints SET state = ? WHERE ordinal = ?", (bad, ordinal)
            )
        connection.commit()
    player = Player.open(built, "last")

    try:
        await player.playback.seek(40 * S)
        shown = player.snapshot(SnapshotQuery(Window.MINUTE))
        refused = player._seekable._lookup.refused
    finally:
        player.close()

    assert shown == as_of(long_readings, 40 * S, Window.MINUTE)
    assert refused
    assert not Path("/tmp/inferwatch-was-here").exists()


async def test_a_record_beside_which_nothing_can_be_written_is_sought_in(
    long_record: Path,
    long_readings: list[AnyReading],
    as_of: AsOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    player = Player.open(long_record, "last")

    try:
        player._builder.build()
        await player.playback.seek(30 * S)
        shown = player.snapshot(SnapshotQuery(Window.MINUTE))
        elsewhere = player._builder.path
        assert elsewhere.exists()
    finally:
        player.close()

    assert shown == as_of(long_readings, 30 * S, Window.MINUTE)
    assert not elsewhere.exists()
    assert not checkpoint_folder(long_record).exists()


def test_the_oldest_files_go_when_they_take_too_much(tmp_path: Path) -> None:
    for age in range(3):
        file = tmp_path / f"s{age}.db"
        file.write_bytes(b"x" * 100)
        os.utime(file, (1_000 - age, 1_000 - age))
    (tmp_path / "s2.db-wal").touch()
    (tmp_path / "not ours").touch()

    make_room(tmp_path, most_bytes=150)

    assert {each.name for each in tmp_path.iterdir()} == {"s0.db", "not ours"}


def test_a_file_of_checkpoints_grows_no_further_than_it_may(
    long_record: Path, monkeypatch: pytest.MonkeyPatch, size: Size
) -> None:
    most_bytes = size.few_bytes
    monkeypatch.setattr(checkpoint_file, "MOST_FILE_BYTES", most_bytes)
    monkeypatch.setattr(checkpoint_file, "PAGE_BYTES", PAGE_BYTES)
    builder = CheckpointBuilder(long_record, find(long_record, "last"))

    builder.build()

    assert 0 < file_of(long_record).stat().st_size <= most_bytes
    assert 0 < builder.covered_ns < LONG_S * S
    assert len(checkpoints_of(long_record)) >= 1
    assert str(builder.trouble).startswith(f"{NO_MORE}: database or disk is full")


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch, size: Size) -> None:
    """Room for a fourth of the checkpoints."""
    monkeypatch.setattr(saving, "MOST_EFFORT", size.effort // size.crowded)
    monkeypatch.setattr(checkpoint_file, "MOST_FILE_BYTES", size.most_bytes)
    monkeypatch.setattr(checkpoint_file, "PAGE_BYTES", PAGE_BYTES)


@pytest.mark.usefixtures("crowded")
async def test_a_long_session_has_its_checkpoints_further_apart_but_to_its_end(
    long_record: Path, long_readings: list[AnyReading], as_of: AsOf, size: Size
) -> None:
    builder = CheckpointBuilder(long_record, find(long_record, "last"))
    builder.build()

    assert builder.trouble is None
    assert builder.covered_ns == (LONG_S + 1) * S
    assert file_of(long_record).stat().st_size <= size.most_bytes
    numbers, stride = numbers_of(long_record), stride_of(long_record)
    assert stride >= 4
    gaps = {after - before for before, after in pairwise(numbers)}
    assert max(gaps) <= stride  # those that were not yet thinned are closer
    assert numbers[-1] > numbers[-2] > max(numbers) - 2 * stride
    nothing_is_left_and_nothing_lacks(long_record)
    await shown_as_by_playing(long_record, long_readings, as_of)


async def test_blocks_that_no_window_reaches_from_any_checkpoint_go_with_the_others(
    long_record: Path,
    long_readings: list[AnyReading],
    as_of: AsOf,
    size: Size,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saving, "MOST_EFFORT", size.effort // size.crowded)
    monkeypatch.setattr(samples, "KEPT_NS", 12 * S)
    monkeypatch.setattr(gather, "LONGER", Window.TEN_SECONDS)
    Checkpoints.open(file_of(long_record), to_write=True).close()
    with closing(sqlite3.connect(file_of(long_record))) as connection:
        connection.execute("PRAGMA user_version = 6")

    CheckpointBuilder(long_record, find(long_record, "last")).build()

    with closing(sqlite3.connect(file_of(long_record))) as connection:
        (held,) = connection.execute("SELECT count(*) FROM blocks").fetchone()
        query = "SELECT sum(last) FROM (SELECT max(place & 0xffffffff) + 1 AS last "
        query += "FROM blocks GROUP BY place >> 40)"
        (made,) = connection.execute(query).fetchone()
    assert held < made
    nothing_is_left_and_nothing_lacks(long_record)
    windows = (Window.TEN_SECONDS, Window.SESSION)
    await shown_as_by_playing(long_record, long_readings, as_of, windows)


def nothing_is_left_and_nothing_lacks(path: Path) -> None:
    with closing(sqlite3.connect(file_of(path))) as connection:
        rows = connection.execute("SELECT reach, parts FROM checkpoints").fetchall()
        needed = [msgspec.msgpack.decode(parts) for _, parts in rows]
        kept = connection.execute("SELECT part FROM parts").fetchall()
        places = connection.execute("SELECT place FROM blocks").fetchall()
        reaches = [msgspec.msgpack.decode(reach).values() for reach, _ in rows]
    assert {part for parts in needed for part in parts} == {part for (part,) in kept}
    reached = {at for reach in reaches for each in reach for at in range(*each)}
    assert reached <= {place for (place,) in places}
    unneeded = {place for (place,) in places} - reached
    since = Counter(place >> 40 for place in unneeded)  # the last that was kept
    assert max(since.values(), default=0) < stride_of(path)


@pytest.mark.usefixtures("crowded")
async def test_while_recording_they_are_thinned_as_they_are_afterwards(
    record: Callable[..., Recorder],
    path: Path,
    long_readings: list[AnyReading],
    stopped_clock: Any,
    as_of: AsOf,
) -> None:
    recorder = record(clock=stopped_clock((LONG_S + 1) * S))
    pipeline = Pipeline(Model(), recorder)
    pipeline.take(long_readings)
    pipeline.close()
    made = checkpoints_of(path)
    await shown_as_by_playing(path, long_readings, as_of)
    file_of(path).unlink()

    CheckpointBuilder(path, find(path, "last")).build()

    assert checkpoints_of(path) == made


@pytest.mark.usefixtures("crowded")
async def test_those_begun_and_thinned_are_finished_as_if_never_interrupted(
    long_record: Path, long_readings: list[AnyReading], as_of: AsOf
) -> None:
    session = find(long_record, "last")
    for share in (0.2, 0.5, 0.7):
        stopped = CheckpointBuilder(long_record, session)
        stopped._fold = partial(  # type: ignore[method-assign]  # ends early
            fold_some, stopped, round(share * len(long_readings))
        )
        stopped.build()
        assert stopped.trouble is None
    CheckpointBuilder(long_record, session).build()

    numbers = numbers_of(long_record)
    assert max(after - before for before, after in pairwise(numbers)) <= stride_of(
        long_record
    )
    await shown_as_by_playing(long_record, long_readings, as_of)


def fold_some(
    builder: CheckpointBuilder,
    count: int,
    state: ReplayState,
    reader: ReadingDecoder,
    into: Checkpoints,
) -> None:
    some = takewhile(lambda each: each[0] <= count, reader)  # its cursor goes along
    some_reader = cast("ReadingDecoder", SomeReader(reader, some))
    CheckpointBuilder._fold(builder, state, some_reader, into)


class SomeReader:
    """As if whoever read had been stopped there."""

    def __init__(
        self, reader: ReadingDecoder, readings: Iterator[tuple[int, AnyReading]]
    ) -> None:
        self._reader, self._readings = reader, readings

    def __iter__(self) -> Iterator[tuple[int, AnyReading]]:
        return self._readings

    def cursor(self, ordinal: int) -> Any:
        return self._reader.cursor(ordinal)


@pytest.mark.usefixtures("crowded")
async def test_two_who_write_them_at_once_make_what_one_would_have_made(
    long_record: Path, long_readings: list[AnyReading], as_of: AsOf
) -> None:
    session = find(long_record, "last")
    builders = [CheckpointBuilder(long_record, session) for _ in range(2)]

    await asyncio.gather(*(asyncio.to_thread(each.build) for each in builders))

    assert [each.trouble for each in builders] == [None, None]
    await shown_as_by_playing(long_record, long_readings, as_of)


async def test_one_that_goes_while_it_is_read_is_read_to_its_end(
    built: Path, long_readings: list[AnyReading], as_of: AsOf
) -> None:
    with (
        closing(Checkpoints.open(file_of(built), to_write=True)) as writing,
        closing(Checkpoints.open(file_of(built), to_write=False)) as reading,
    ):
        with reading.held():
            row = reading.row_before(t_ns=20 * S)
            assert row is not None
            writing._connection.execute("DELETE FROM parts")
            model, place = reading.restore(row)

        t_ns = row[1]
        shown = model.snapshot(t_ns, SnapshotQuery(Window.MINUTE))
        assert place.ordinal == row[0]
        assert shown == as_of(long_readings[: row[0]], t_ns, Window.MINUTE)


async def shown_as_by_playing(
    path: Path,
    readings: list[AnyReading],
    as_of: AsOf,
    windows: Sequence[Window] = tuple(Window),
) -> None:
    player, random = Player.open(path, "last"), Random(5)
    try:
        for _ in range(4):
            t_ns, window = random.randint(0, LONG_S * S), random.choice(windows)
            await player.playback.seek(t_ns)
            assert player.snapshot(SnapshotQuery(window)) == as_of(
                readings, t_ns, window
            ), t_ns
        assert (
            player._seekable._lookup._checkpoints is not None
        )  # they were not refused
    finally:
        player.close()


def numbers_of(path: Path) -> list[int]:
    with closing(sqlite3.connect(file_of(path))) as connection:
        query = "SELECT number FROM checkpoints ORDER BY ordinal"
        return [number for (number,) in connection.execute(query)]


def stride_of(path: Path) -> int:
    with closing(sqlite3.connect(file_of(path))) as connection:
        (level,) = connection.execute("PRAGMA user_version").fetchone()
        return 1 << int(level)


def test_checkpoints_go_before_the_disk_is_too_full_to_record(
    record: Callable[..., Recorder],
    built: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Any,
) -> None:
    def room(path: Path, floor_bytes: int) -> str | None:
        del path, floor_bytes
        return "too full" if file.exists() else None

    file = file_of(built)
    monkeypatch.setattr("inferwatch.record.writing.recorder.too_little_room", room)
    recorder = record()
    recorder.put(1, Tick(t_ns=1))

    eventually(lambda: recorder.health.written == 1)

    assert not file.exists()
    assert recorder.health.ok
    assert not recorder.keeps


def test_checkpoints_are_as_private_as_the_record(long_record: Path) -> None:
    long_record.chmod(0o600)

    CheckpointBuilder(long_record, find(long_record, "last")).build()

    assert file_of(long_record).stat().st_mode & 0o777 == 0o600


def test_the_checkpoints_of_a_deleted_session_are_forgotten(built: Path) -> None:
    forget_checkpoints(built, 7)
    assert file_of(built).exists()

    forget_checkpoints(built, 1)
    assert not file_of(built).exists()


FLOW = "inferwatch/metrics/steps/flow.py"


@pytest.mark.parametrize(
    ("edited", "old", "new", "valid"),
    [
        (FLOW, '"Waiting requests"', '"Requests that (still :-) wait"', True),
        (FLOW, "FlowColumn.QUEUE, text=", "FlowColumn.DECODE, text=", True),
        (FLOW, '"""A request\'s way', '"""The way of a request', True),
        (FLOW, "rank.step.running - sum", "rank.step.running + sum", False),
        (FLOW, "waiting: Annotated[", "waits: Annotated[", False),
        (FLOW, "Quantiles,\n        Number(", "int,\n        Number(", False),
        ("inferwatch/metrics/model/model.py", "return None", "return 0", False),
        ("collectors/contract/readings.py", "= None", "= 1", False),
    ],
)
def test_only_another_arithmetic_makes_checkpoints_invalid_and_no_wording(
    edited: str, old: str, new: str, valid: bool, tmp_path: Path
) -> None:
    for package in {package for package, _ in SOURCES}:
        with as_file(files(package)) as held:
            copytree(held, tmp_path / package)
    sources = [tmp_path / package / name for package, name in SOURCES]
    before = digest_of(*sources)

    code = (tmp_path / edited).read_text()
    assert old in code
    (tmp_path / edited).write_text(code.replace(old, new))

    assert (digest_of(*sources) == before) is valid


def test_a_checkpoint_of_another_arithmetic_is_not_known(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferwatch.record.checkpoints.file._arithmetic", lambda: "x")

    assert not file_of(built).exists()


def test_checkpoints_can_be_read_while_they_are_written(built: Path) -> None:
    with (
        closing(Checkpoints.open(file_of(built), to_write=True)) as writing,
        closing(Checkpoints.open(file_of(built), to_write=False)) as reading,
    ):
        assert writing.last == reading.last is not None


def test_deleting_a_session_for_good_takes_its_checkpoints_along(built: Path) -> None:
    erase(built, [1])

    assert list(checkpoint_folder(built).iterdir()) == []


async def test_a_replay_leaves_one_plain_file_of_checkpoints(
    recorded: Path, run: Callable[..., Awaitable[None]]
) -> None:
    player = Player.open(recorded, "last")

    await run(player, seen_to_the_end(player))

    beside = checkpoint_folder(recorded)
    assert [each.suffix for each in beside.iterdir()] == [".db"]


async def seen_to_the_end(player: Player) -> None:
    """With its reader open, as while people look."""
    while player.covered_ns < player.playback.span_ns[1]:
        await player.playback.seek(player.covered_ns)
        await asyncio.sleep(0.01)
    await player.playback.seek(20_000_000_000)
