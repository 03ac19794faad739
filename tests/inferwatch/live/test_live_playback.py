"""A live view is held and goes back through the record, while recording goes on."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import EngineInfo, EventKind, PromptBlocks, Vantage
from inferwatch.errors import StorageError
from inferwatch.live.past.live_playback import LivePlayback
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.replay.player import Player
from inferwatch.record.writing.recorder import Recorder
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage

S = 1_000_000_000
Until = Callable[..., Awaitable[None]]


class HandClock:
    """A session's clock that the test turns."""

    start_ns = 0

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


class Session:
    """An engine that makes a step every 10 ms of a clock turned by hand, recorded."""

    def __init__(self, recorder: Recorder | None, clock: Any, make_step: Any) -> None:
        self.clock, self.recorder = clock, recorder
        self.pipeline = Pipeline(Model(), recorder)
        self.playback = LivePlayback(clock, self.pipeline)
        self._make_step = make_step
        self._steps = 0
        self.beside = False
        """Another engine works, too."""
        info = EngineInfo(
            source="engine-1", t_ns=0, pid=1, model="m", vllm_version="0", device="cpu"
        )
        self.pipeline.take([info])

    def goes_on(self, seconds: int) -> None:
        """Make steps; 3 and 9 requests by turns, so that moments differ."""
        for _ in range(100 * seconds):
            self._steps += 1
            members = dict.fromkeys(range(3 if self._steps // 100 % 2 else 9), 1)
            made = self._make_step(10 * self._steps, members, index=self._steps)
            if self.beside:
                other = msgspec.structs.replace(
                    made,
                    source="engine-2",
                    end_ns=made.end_ns - 1_000,
                    members=[7],
                    scheduled=[1],
                    produced=[1],
                )
                self.pipeline.take([other])
            self.pipeline.take([made])
            self.clock.ns = made.end_ns
        self.pipeline.tick(self.clock.ns)

    def snapshot(self, query: SnapshotQuery) -> Snapshot:
        """Of the moment shown, as a Watch makes it."""
        past = self.playback.past(query)
        if past is not None:
            return past
        return self.pipeline.snapshot(self.clock.now_ns(), query)

    async def is_recorded(self, until: Until) -> None:
        """Everything so far is in the file."""
        assert self.recorder is not None
        taken, recorder = self.pipeline._ordinal, self.recorder
        await until(lambda: recorder.health.written == taken)


def shown(feed: Any) -> Snapshot:
    made: Snapshot = feed.snapshot(SnapshotQuery(Window.TEN_SECONDS, requests=False))
    return made


@pytest.fixture
async def session(
    tmp_path: Path, make_step: Any, until: Until
) -> AsyncIterator[Session]:
    """Twelve seconds old."""
    clock: Any = HandClock()
    recorder = Recorder.open(tmp_path / "s.db", clock=clock)
    made = Session(recorder, clock, make_step)
    made.goes_on(12)
    await made.is_recorded(until)
    yield made
    await made.playback.close()
    await asyncio.to_thread(recorder.close)


async def test_the_present_is_followed_until_paused(session: Session) -> None:
    before = shown(session)

    session.goes_on(1)

    assert session.playback.at_live
    assert session.playback.playing
    assert shown(session) != before
    assert session.playback.position_ns == session.clock.ns


async def test_a_held_view_stands_still_in_every_window_while_recording_goes_on(
    session: Session, until: Until
) -> None:
    session.playback.pause()
    held = {window: session.snapshot(SnapshotQuery(window)) for window in Window}
    at_ns = session.playback.position_ns
    assert session.recorder is not None
    written = session.recorder.health.written

    session.goes_on(3)
    await session.is_recorded(until)

    assert {w: session.snapshot(SnapshotQuery(w)) for w in Window} == held
    assert session.playback.position_ns == at_ns
    assert session.playback.span_ns == (0, at_ns + 3 * S)
    assert session.recorder.health.written > written + 300
    assert not session.playback.playing


async def test_a_held_view_tells_where_the_time_of_all_went_too(
    session: Session, make_event: Any
) -> None:
    front = {"vantage": Vantage.FRONTEND, "reason": "stop", "output_tokens": 3}
    session.pipeline.take(
        [
            make_event(11_000, EventKind.ARRIVED, "r"),
            make_event(11_400, EventKind.FINISHED, "r", **front),
        ]
    )
    session.goes_on(4)
    session.playback.pause()

    for window in (Window.MINUTE, Window.SESSION):
        query = SnapshotQuery(window, breakdown=True, tenants=True)
        held = session.snapshot(query)
        told, tenants = held.breakdown, held.tenants
        assert told is not None
        assert (told.requests, told.total_ns) == (1, 400_000_000)
        assert tenants is not None
        assert tenants.requests == 1


async def test_a_held_view_tells_of_tenants_and_misses_too(
    session: Session, make_event: Any
) -> None:
    told = {"prompt_tokens": 40, "cached_tokens": 0, "output_tokens": 3}
    front = {"vantage": Vantage.FRONTEND, "reason": "stop", "output_tokens": 3}
    blocks = PromptBlocks(
        source="engine-1",
        t_ns=12_600 * 1_000_000,
        ordinal=900,
        total_blocks=2,
        block_tokens=16,
        prompt_blocks=2,
        hashes=[1, 2],
        plain=[3, 4],
        prompt_tokens=40,
    )
    session.pipeline.take(
        [
            make_event(12_100, EventKind.ARRIVED, "r"),
            make_event(12_200, EventKind.ADDED, "r", ordinal=900, prompt_tokens=40),
            make_event(12_300, EventKind.SCHEDULED, "r", ordinal=900, **told),
            make_event(12_600, EventKind.FINISHED, "r", ordinal=900, **told),
            make_event(12_610, EventKind.FINISHED, "r", **front),
            blocks,
        ]
    )
    session.goes_on(4)
    whole = SnapshotQuery(Window.SESSION, misses=True, tenants=True)
    now = session.snapshot(whole)
    session.playback.pause()
    session.goes_on(1)

    held = session.snapshot(whole)
    assert held.prefix_misses is not None
    assert held.prefix_misses.prompts == 1
    assert (held.prefix_misses, held.tenants) == (now.prefix_misses, now.tenants)


async def test_going_back_shows_what_was_shown_then(
    session: Session, until: Until
) -> None:
    then_ns, then = session.clock.ns, shown(session)
    session.goes_on(4)
    await session.is_recorded(until)
    now = shown(session)

    await session.playback.seek(then_ns)

    assert shown(session) == then
    assert shown(session) != now
    assert not session.playback.at_live
    assert session.playback.position_ns == then_ns

    await session.playback.go_live()

    assert session.playback.at_live
    assert shown(session) == now


def alone(feed: Any, source: str) -> Snapshot:
    """As screens ask that show one server."""
    made: Snapshot = feed.snapshot(
        SnapshotQuery(
            Window.TEN_SECONDS,
            requests=False,
            breakdown=True,
            misses=True,
            tenants=True,
            needs=True,
            source=source,
        )
    )
    assert made.shown_source == source
    return made


async def test_one_server_is_held_and_gone_back_to_as_it_was_shown(
    session: Session, until: Until
) -> None:
    session.beside = True
    session.goes_on(3)
    then_ns, then = session.clock.ns, alone(session, "engine-2")
    session.playback.pause()
    session.goes_on(2)
    await session.is_recorded(until)
    assert alone(session, "engine-2") == then

    await session.playback.go_live()
    now = alone(session, "engine-2")
    await session.playback.seek(then_ns)

    assert now != then
    assert alone(session, "engine-2") == then


async def test_a_server_that_was_not_looked_at_is_shown_as_of_the_moment_held(
    session: Session, until: Until
) -> None:
    session.beside = True
    session.goes_on(3)
    then = session.pipeline.snapshot(
        session.clock.ns,
        SnapshotQuery(Window.TEN_SECONDS, requests=False, source="engine-2"),
    )
    await session.is_recorded(until)
    shown(session)
    session.playback.pause()
    session.goes_on(2)

    def is_there() -> bool:
        made = session.snapshot(
            SnapshotQuery(Window.TEN_SECONDS, requests=False, source="engine-2")
        )
        return bool(made.shown_source == "engine-2")

    await until(is_there)
    assert alone(session, "engine-2").steps == then.steps


async def test_steps_go_on_from_the_moment_held(session: Session) -> None:
    at_ns = session.clock.ns
    session.playback.pause()

    await session.playback.step(-1)
    await session.playback.step(-2)

    assert session.playback.position_ns == at_ns - 30_000_000


async def test_the_shape_and_the_marks_of_the_past_come_by_themselves(
    session: Session, until: Until
) -> None:
    session.playback.pause()

    await until(lambda: session.playback.shape is not None)

    shape = session.playback.shape
    assert shape is not None
    assert any(shape.output_tokens)


async def test_playing_faster_than_time_catches_up_with_it(
    session: Session, until: Until
) -> None:
    session.playback.pause()
    session.playback.set_speed(100)
    await session.playback.seek(2 * S)

    session.playback.play()
    assert session.playback.playing

    def caught_up() -> bool:
        shown(session)  # as the screen asks
        return session.playback.at_live

    await until(caught_up)


async def test_play_just_after_pause_waits_for_the_record_and_then_plays(
    session: Session, until: Until
) -> None:
    session.playback.pause()
    session.playback.play()

    assert session.playback.playing
    session.goes_on(2)
    at_ns = session.clock.ns
    await until(lambda: session.playback.position_ns > at_ns - 2 * S)
    assert not session.playback.at_live


async def test_what_is_hardly_past_is_now(session: Session) -> None:
    session.playback.pause()

    await session.playback.seek(session.clock.ns - 100_000_000)

    assert session.playback.at_live


@pytest.mark.parametrize("held", [False, True], ids=["live", "held"])
async def test_a_bookmark_is_kept_in_the_record(
    session: Session, until: Until, held: bool
) -> None:
    if held:
        await session.playback.seek(5 * S)

    await session.playback.bookmark("here", 4 * S)

    path = session.pipeline.database
    assert path is not None
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT session, t_ns, text FROM bookmarks").fetchall()
    assert rows == [(1, 4 * S, "here")]
    assert [each.text for each in session.playback.bookmarks()] == ["here"]
    assert session.playback.at_live is not held
    await session.playback.seek(3 * S)
    await until(lambda: "here" in {mark.text for mark in session.playback.marks})


async def test_without_a_record_a_view_is_held_and_let_go(make_step: Any) -> None:
    clock: Any = HandClock()
    session = Session(None, clock, make_step)
    session.goes_on(3)
    session.playback.pause()
    held = shown(session)
    session.goes_on(3)

    await session.playback.seek(1 * S)

    assert shown(session) == held
    assert "not recorded" in (session.playback.cannot_seek or "")
    with pytest.raises(StorageError, match="not recorded"):
        await session.playback.bookmark("here")
    session.playback.play()
    assert session.playback.at_live
    assert shown(session) != held


async def test_a_record_that_cannot_be_opened_says_why_and_the_view_is_held(
    tmp_path: Path, make_step: Any
) -> None:
    def refuse(path: Path, session_id: str) -> Player:
        raise StorageError(f"{path.name} {session_id} is locked")

    clock: Any = HandClock()
    with closing(Recorder.open(tmp_path / "s.db", clock=clock)) as recorder:
        session = Session(recorder, clock, make_step)
        session.playback = LivePlayback(clock, session.pipeline, refuse)
        session.goes_on(2)

        await session.playback.seek(1 * S)

        assert session.playback.cannot_seek == "s.db s1 is locked"
        assert session.playback.position_ns == 2 * S
        await session.playback.go_live()
        assert session.playback.cannot_seek is None


async def test_a_past_that_fails_does_not_keep_the_session_from_ending(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: Player) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Player, "run", fails)
    await session.playback.seek(3 * S)
    await session.playback.close()

    assert session.playback.at_live


async def test_letting_go_leaves_the_file_to_the_recorder_alone(
    session: Session, tmp_path: Path
) -> None:
    await session.playback.seek(3 * S)

    await session.playback.close()
    assert session.recorder is not None
    await asyncio.to_thread(session.recorder.close)

    files = [path.name for path in tmp_path.iterdir() if path.is_file()]
    assert files == ["s.db"]  # no log of writes that somebody still needs


async def test_a_live_screen_is_paused_scrubbed_and_returned_to_live(
    watching: Any, until: Until, make_step: Any
) -> None:
    async with watching("http://localhost:1") as run:
        await until(run.watch.live.is_set)
        watch, clock = run.watch, run.watch.clock
        await until(lambda: clock.now_ns() > 3 * S)
        made = make_step(clock.now_ns() / 1_000_000, {1: 1})
        watch._pipeline.take([made])
        app = InferwatchApp(SessionPage(watch))
        async with app.run_test(size=(120, 40)) as pilot:
            await until(lambda: app.current_mode == "overview")

            await pilot.press("space")
            await pilot.press("left_square_bracket")
            await until(lambda: watch.now_ns() < clock.now_ns() - S)
            held_ns = watch.now_ns()
            assert watch.snapshot(SnapshotQuery(Window.MINUTE)).now_ns == held_ns
            assert watch.present().now_ns > held_ns + S
            assert "behind" in app.screen.query_one("HeaderLine").render_line(0).text

            await pilot.press("end")
            await until(lambda: watch.playback.at_live)
            await pilot.pause()
            assert not app.screen.query_one("TimeLine").display
    assert any(each == made for each in await run.readings())
