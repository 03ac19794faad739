"""A recorded session is shown at any moment of it, as it was shown then."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from shutil import copyfile
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    CanaryRequest,
    LoadPlanned,
    Phase,
    RequestRecord,
    Step,
    Tick,
)
from inferwatch.cli.running.replay_start import ReplayStart
from inferwatch.errors import NoSuchSessionError, StorageError
from inferwatch.feed import Feed, FeedState, MarkKind, Playback
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.replay.player import Player
from inferwatch.record.sessions.erasing import erase
from inferwatch.record.sessions.sessions import find
from inferwatch.record.writing.recorder import Recorder
from inferwatch.sample import sample_file

S = 1_000_000_000
END_NS = 31 * S
AsOf = Callable[[list[AnyReading], int, Window], Snapshot]
PATIENCE_S = 60.0


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - it is not ours to signal
            await asyncio.sleep(0.01)


async def test_a_sought_moment_shows_what_playing_to_it_shows(
    player: Player, readings: list[AnyReading], as_of: AsOf
) -> None:
    random = Random(4)

    for _ in range(8):
        t_ns, window = random.randint(0, 30 * S), random.choice(list(Window))
        await player.playback.seek(t_ns)

        assert player.now_ns() == player.playback.position_ns == t_ns
        assert player.snapshot(SnapshotQuery(window)) == as_of(
            readings, t_ns, window
        ), t_ns


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (SnapshotQuery(Window.SESSION, misses=True), "prefix_misses"),
        (SnapshotQuery(Window.SESSION, tenants=True), "tenants"),
        (SnapshotQuery(Window.SESSION, breakdown=True), "breakdown"),
        (SnapshotQuery(Window.SESSION, needs=True), "step_needs"),
    ],
    ids=["misses", "tenants", "breakdown", "needs"],
)
async def test_what_is_asked_for_later_at_the_same_moment_is_told(
    tmp_path: Path, asked: SnapshotQuery, field: str
) -> None:
    path = Path(copyfile(sample_file(), tmp_path / "sample.db"))
    query = SnapshotQuery(Window.SESSION)
    with closing(Player.open(path, "last")) as replay:
        await replay.playback.seek(replay.playback.span_ns[1])
        for _ in range(2):
            assert getattr(replay.snapshot(query), field) is None
            assert getattr(replay.snapshot(asked), field) is not None


async def test_steps_go_on_and_back_one_by_one(
    player: Player, readings: list[AnyReading], as_of: AsOf
) -> None:
    ends_ns = [each.end_ns for each in readings if isinstance(each, Step)]
    at = 400
    await player.playback.seek(ends_ns[at] + 1)

    for count, expected in ((1, at + 1), (-1, at), (-3, at - 3), (2, at - 1)):
        await player.playback.step(count)

        assert player.now_ns() == ends_ns[expected]
        for window in Window:
            shown = player.snapshot(SnapshotQuery(window))
            assert shown == as_of(readings, ends_ns[expected], window)


async def test_a_step_back_from_between_two_steps_goes_to_the_former(
    player: Player, readings: list[AnyReading]
) -> None:
    ends_ns = [each.end_ns for each in readings if isinstance(each, Step)]
    await player.playback.seek(ends_ns[50] + 10)

    await player.playback.step(-1)

    assert player.now_ns() == ends_ns[50]


async def test_there_is_nothing_before_the_first_step_and_after_the_last(
    player: Player,
) -> None:
    await player.playback.seek(0)
    await player.playback.step(-1)
    assert player.now_ns() == 0

    await player.playback.seek(100 * S)
    assert player.now_ns() == END_NS
    await player.playback.step(1)
    assert player.now_ns() == END_NS


async def test_playing_moves_the_position_and_ends_at_the_end(
    player: Player, readings: list[AnyReading], as_of: AsOf, run: Any
) -> None:
    playback = player.playback

    async def play() -> None:
        playback.set_speed(1_000)
        playback.play()
        await until(lambda: player.now_ns() > 0)
        await until(lambda: not playback.playing)

    await run(player, play())

    assert playback.speed == 100
    assert player.now_ns() == END_NS
    assert player.snapshot(SnapshotQuery(Window.MINUTE)) == as_of(
        readings, END_NS, Window.MINUTE
    )


async def test_a_paused_player_stays(player: Player, run: Any) -> None:
    async def pause() -> None:
        player.playback.play()
        await until(lambda: player.now_ns() > 0)
        player.playback.pause()
        await until(lambda: not player.playback.seeking)
        await player.playback.seek(5 * S)
        await asyncio.sleep(0.2)

    await run(player, pause())

    assert player.now_ns() == 5 * S


async def test_steps_that_cannot_be_read_are_said(
    player: Player, recorded: Path
) -> None:
    await player.playback.seek(5 * S)
    with closing(sqlite3.connect(recorded)) as connection:
        connection.execute("DROP TABLE steps")

    await player.playback.step(1)

    assert player.now_ns() == 5 * S
    assert "no such table: steps" in str(player.record.message)


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[AnyReading]:
    """No moment after 10 s can be shown; all readings that were folded on the way."""
    seen: list[AnyReading] = []
    snapshot, fold = Model.snapshot, Model.fold

    def broken(model: Model, now_ns: int, *args: Any, **kwargs: Any) -> Snapshot:
        if now_ns > 10 * S:
            raise ValueError("there is a mistake")
        return snapshot(model, now_ns, *args, **kwargs)

    def counted(model: Model, reading: AnyReading) -> None:
        seen.append(reading)
        if len(seen) > 100_000:
            raise AssertionError("it is folded again and again")
        fold(model, reading)

    monkeypatch.setattr(Model, "snapshot", broken)
    monkeypatch.setattr(Model, "fold", counted)
    return seen


async def test_a_moment_that_cannot_be_shown_is_tried_once_more_and_then_told(
    player: Player, readings: list[AnyReading], folded: list[AnyReading]
) -> None:
    await player.playback.seek(9 * S)
    before = player.snapshot(SnapshotQuery(Window.MINUTE))

    await player.playback.seek(30 * S)

    assert len(folded) < 2 * len(readings) + 1_000
    assert player.snapshot(SnapshotQuery(Window.MINUTE)) is before
    assert "cannot be shown" in str(player.record.message)
    assert "there is a mistake" in str(player.record.message)
    await player.playback.seek(8 * S)
    assert player.snapshot(SnapshotQuery(Window.MINUTE)).now_ns == 8 * S
    assert player.record.message is None


async def test_a_window_that_cannot_be_shown_does_not_make_the_player_begin_again(
    player: Player, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    snapshot = Model.snapshot

    def broken(model: Model, now_ns: int, query: SnapshotQuery) -> Snapshot:
        if query.window is Window.SESSION:
            raise ValueError("there is a mistake")
        return snapshot(model, now_ns, query)

    monkeypatch.setattr(Model, "snapshot", broken)

    async def look() -> None:
        await player.playback.seek(10 * S)
        async with asyncio.timeout(60):
            while player.record.message is None:
                player.snapshot(SnapshotQuery(Window.SESSION))
                await asyncio.sleep(0.01)
        assert player.snapshot(SnapshotQuery(Window.SESSION)).now_ns == 10 * S
        assert player._seekable.arrived  # nobody need seek again

    await run(player, look())


async def test_a_later_seek_overtakes_an_earlier_one(player: Player) -> None:
    earlier = asyncio.create_task(player.playback.seek(29 * S))
    await asyncio.sleep(0)
    later = asyncio.create_task(player.playback.seek(2 * S))
    await asyncio.gather(earlier, later)

    assert player.now_ns() == 2 * S
    assert not player.playback.seeking


async def test_a_seek_overtakes_going_live(
    record: Callable[..., Recorder], readings: list[AnyReading], path: Path
) -> None:
    recorder = record()
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)
    player = Player.open(path, "last")
    try:
        live = asyncio.create_task(player.playback.go_live())
        await asyncio.sleep(0)

        await asyncio.gather(live, player.playback.seek(0))

        assert player.playback.goes_on
        assert not player.playback.at_live
        assert not player.playback.playing
    finally:
        player.close()


async def test_the_old_picture_is_shown_until_the_new_one_is_there(
    player: Player,
) -> None:
    await player.playback.seek(10 * S)
    before = player.snapshot(SnapshotQuery(Window.MINUTE))

    with player._seekable._seeking:  # somebody seeks
        assert player.snapshot(SnapshotQuery(Window.MINUTE)) is before
        assert player.snapshot(SnapshotQuery(Window.SESSION)).now_ns == 10 * S


def test_there_is_a_picture_while_whoever_winds_takes_another(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    seekable = player._seekable
    session = SnapshotQuery(Window.SESSION)
    taken = seekable._take(session)

    def likeness(*_: object) -> tuple[bool, ...]:
        seekable._snapshots = {session: taken}
        return (True,)

    monkeypatch.setattr("inferwatch.record.replay.seekable_session._likeness", likeness)

    assert player.snapshot(SnapshotQuery(Window.MINUTE)).window is Window.MINUTE


async def test_a_session_that_is_being_recorded_is_followed(  # noqa: PLR0913, PLR0917 - fixtures
    record: Callable[..., Recorder],
    path: Path,
    traffic: Any,
    stopped_clock: Any,
    as_of: AsOf,
    eventually: Any,
    run: Any,
) -> None:
    clock = stopped_clock(10 * S)
    recorder = record(clock=clock)
    readings = [*traffic.start(), *traffic.run(10)]
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)
    eventually(lambda: recorder.health.written == len(readings))
    player = Player.open(path, "last")
    playback = player.playback

    async def follow() -> None:
        assert playback.goes_on
        await playback.seek(4 * S)
        assert not playback.at_live
        assert player.snapshot(SnapshotQuery(Window.MINUTE)) == as_of(
            readings, 4 * S, Window.MINUTE
        )
        await playback.go_live()
        assert playback.at_live
        assert playback.span_ns == (0, player.now_ns()) == (0, 10 * S)
        clock.ns = 15 * S
        more = list(traffic.run(5))
        for numbered in enumerate(more, len(readings) + 1):
            recorder.put(*numbered)
        readings.extend(more)
        await until(lambda: player.now_ns() == 15 * S)
        await playback.step(-1)
        assert not playback.at_live
        recorder.close()
        await until(lambda: not playback.goes_on)

    await run(player, follow())

    t_ns = player.now_ns()
    assert 14 * S < t_ns < 15 * S
    assert player.snapshot(SnapshotQuery(Window.SESSION)) == as_of(
        readings, t_ns, Window.SESSION
    )


async def test_a_bookmark_is_there_when_the_session_is_opened_again(
    player: Player, recorded: Path, run: Any
) -> None:
    await player.playback.seek(7 * S)
    await player.playback.bookmark("the p99 broke here")
    again = Player.open(recorded, "last")
    assert ReplayStart(at="P99 broke").moment(again) == 7 * S

    await run(again, until(lambda: again.playback.marks))

    for each in (player, again):
        (mark,) = [m for m in each.playback.marks if m.kind is MarkKind.BOOKMARK]
        assert (mark.t_ns, mark.text) == (7 * S, "the p99 broke here")


async def test_a_bookmark_in_a_file_that_cannot_be_written_is_refused(
    player: Player, recorded: Path
) -> None:
    recorded.unlink()
    recorded.mkdir()

    with pytest.raises(StorageError):
        await player.playback.bookmark("nowhere")


async def test_a_session_that_is_deleted_meanwhile_is_told(
    player: Player, recorded: Path
) -> None:
    await player.playback.seek(7 * S)
    seen = player.snapshot(SnapshotQuery(Window.MINUTE))
    erase(recorded, [find(recorded, "last").session])

    await player.playback.seek(3 * S)

    assert "was deleted meanwhile" in (player.record.message or "")
    assert player.snapshot(SnapshotQuery(Window.MINUTE)) == seen


async def test_no_bookmark_is_kept_for_a_session_that_was_deleted(
    player: Player, recorded: Path
) -> None:
    erase(recorded, [find(recorded, "last").session])

    with pytest.raises(NoSuchSessionError, match="was deleted meanwhile"):
        await player.playback.bookmark("for nobody")

    with closing(sqlite3.connect(recorded)) as record:
        assert record.execute("SELECT count(*) FROM bookmarks").fetchone() == (0,)


async def test_a_bookmark_in_a_damaged_file_is_refused(
    player: Player, recorded: Path
) -> None:
    torn = bytearray(recorded.read_bytes())
    torn[8192:12288] = bytes(4096)
    recorded.write_bytes(torn)

    with pytest.raises(StorageError, match="and nothing is written to it"):
        await player.playback.bookmark("nowhere")

    assert recorded.read_bytes() == torn


def test_a_session_that_is_not_there_is_refused(recorded: Path) -> None:
    with pytest.raises(NoSuchSessionError):
        Player.open(recorded, "yesterday")


async def test_a_player_says_what_it_is(player: Player) -> None:
    feed: Feed = player
    playback: Playback | None = feed.playback

    assert playback is player.playback
    assert feed.state is FeedState.REPLAYING
    assert not feed.served
    assert not feed.can_restart
    assert feed.load_desk is None
    assert feed.record is not None
    assert feed.record.session_id == "s1"
    assert feed.record.message is None
    assert feed.log_tail(5) == []
    await feed.restart()
    await feed.stop_engine()


def test_what_a_damaged_file_has_lost_of_the_session_is_told(recorded: Path) -> None:
    sound = recorded.read_bytes()
    recorded.write_bytes(sound[: len(sound) * 6 // 10])

    player = Player.open(recorded, "last")
    try:
        assert player.record.message is not None
        assert "readings lost" in player.record.message
    finally:
        player.close()


def test_of_a_sound_file_there_is_no_trouble(player: Player) -> None:
    assert player.record.message is None


@pytest.mark.parametrize("engine", [True, False])
def test_a_session_of_a_load_alone_is_known_as_such(
    record: Callable[..., Recorder],
    path: Path,
    make_step: Callable[..., Step],
    engine: bool,
) -> None:
    recorder = record()
    plan = LoadPlanned(t_ns=1, plan='{"run_id":"a","model":"big"}')
    request = RequestRecord(
        index=0, external_id="a-0", phase=Phase.STEADY, intended_ns=1
    )
    steps = [make_step(1_000, {1: 1})] if engine else []
    readings: list[AnyReading] = [plan, request, *steps]
    for numbered in enumerate(readings, 1):
        recorder.put(*numbered)
    recorder.close()

    player = Player.open(path, "last")
    player.close()

    assert player.only_load is not engine
    assert find(path, "last").model == "big"


async def test_a_record_that_holds_a_canary_can_be_replayed(
    record: Callable[..., Recorder], stopped_clock: Callable[[int], Any], path: Path
) -> None:
    recorder = record(clock=stopped_clock(5 * S))
    recorder.put(1, Tick(t_ns=S))
    recorder.put(2, CanaryRequest(source="a", sent_ns=2 * S, first_token_ns=3 * S))
    recorder.put(3, Tick(t_ns=4 * S))
    recorder.close()

    player = Player.open(path, "last")
    try:
        await player.playback.seek(4 * S)
        canary = player.snapshot(SnapshotQuery(Window.MINUTE)).canary
    finally:
        player.close()

    assert canary is not None
    assert (canary.sent, canary.ttft_s.max) == (1, 1.0)
