"""From one page to the next and back, without a terminal."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.pilot import Pilot

from collectors.contract.clock import SessionClock
from collectors.contract.readings import HostSample
from inferwatch.cli.running.on_screen import AppRunner
from inferwatch.cli.running.pages import (
    _say_goodbye,
    compare_page,
    open_page,
    replay_page,
)
from inferwatch.cli.running.recording import where_recorded
from inferwatch.cli.running.replay_start import ReplayStart
from inferwatch.errors import NoSuchSessionError, StorageError, UsageError
from inferwatch.metrics.series.window import Window
from inferwatch.record.imported.imported_sessions import store_runs
from inferwatch.record.imported.result_file import read_results
from inferwatch.record.replay.player import Player, RecordedPlayback
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.compare.runs.selection import ComparisonRequest
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.frame.host_question import LeavingScreen
from inferwatch.ui.messages import (
    GoTo,
    OpenComparison,
    OpenSample,
    OpenServers,
    OpenSession,
)
from inferwatch.ui.pages import (
    ComparePage,
    OpeningPage,
    OpenPage,
    Page,
    SessionPage,
    Tell,
)
from tests.collectors.http_server import VLLM, serving
from tests.inferwatch.conftest import Traffic

VLLM_RESULT = (
    Path(__file__).parent.parent / "printing" / "export" / "samples" / "vllm_bench.json"
)
Piloted = Pilot[None]
END_NS = 21_000_000_000


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty seconds of a small engine."""
    path = tmp_path_factory.mktemp("recording") / "s.db"
    clock: Any = type("Clock", (), {"start_ns": 0, "now_ns": lambda _: END_NS})()
    recorder = Recorder.open(path, name="a little", clock=clock, floor_bytes=0)
    traffic = Traffic(step_ms=20.0)
    for numbered in enumerate([*traffic.start(), *traffic.run(20)], 1):
        recorder.put(*numbered)
    recorder.close()
    return path


@pytest.fixture
def database(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds it as s1."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copy(recording, tmp_path / "s.db"))


@asynccontextmanager
async def shown(
    opening: OpeningPage, opens: OpenPage = open_page
) -> AsyncIterator[tuple[InferwatchApp, Piloted]]:
    """The app, without a terminal, for as long as it is looked at."""
    async with opening as page:
        app = InferwatchApp(page, opens)
        async with app.run_test() as pilot:
            yield app, pilot
        await app.close(lambda _: None)


async def until(pilot: Piloted, holds: Callable[[], bool]) -> None:
    """Wait for it; what is shown then is a page again."""
    async with asyncio.timeout(60):
        while not holds() or pilot.app.current_mode == LeavingScreen.NAME:
            await pilot.pause(0.01)


async def gone_to(app: InferwatchApp, pilot: Piloted, wish: GoTo) -> Page:
    """Where that leads."""
    before = app.page
    app.post_message(wish)
    await until(pilot, lambda: app.page is not before)
    return app.page


async def back(app: InferwatchApp, pilot: Piloted) -> Page:
    """Where that leads back to."""
    before = app.page
    await pilot.press("q")
    await until(pilot, lambda: app.page is not before)
    return app.page


async def ended(app: InferwatchApp, pilot: Piloted) -> None:
    """It ends by itself."""
    async with asyncio.timeout(60):
        while app.return_code is None:
            await pilot.pause(0.01)


def notified(app: InferwatchApp) -> list[str]:
    return [note.message for note in app._notifications]


class Opener:
    """Opens pages as told, and keeps a book of what was ended."""

    def __init__(self, *pages: Page, tells: str = "", fails: str = "") -> None:
        self.pages, self.ended = list(pages), list[Page]()
        self._tells, self._fails = tells, fails

    @asynccontextmanager
    async def __call__(self, wish: GoTo, tell: Tell) -> AsyncIterator[Page]:
        del wish
        page = self.pages.pop(0)
        yield page
        if self._tells:
            tell(self._tells)
        self.ended.append(page)
        if self._fails:
            raise StorageError(self._fails)


@asynccontextmanager
async def players(database: Path, count: int) -> AsyncIterator[list[SessionPage]]:
    """Places of so many replays that nobody runs."""
    opened = [
        await asyncio.to_thread(Player.open, database, "s1") for _ in range(count)
    ]
    yield [SessionPage(each) for each in opened]
    for each in opened:
        each.close()


async def test_what_is_opened_leads_back_to_where_it_was_opened(
    database: Path,
) -> None:
    wish = OpenSession(database=database, session="a little")

    async with shown(replay_page(database, "s1", ReplayStart())) as (app, pilot):
        first = app.page
        assert not app.leads_back
        second = await gone_to(app, pilot, wish)
        third = await gone_to(app, pilot, wish)
        assert app.leads_back

        assert await back(app, pilot) is second
        assert await back(app, pilot) is first
        assert not app.leads_back
        assert app.current_mode == "overview"
        assert notified(app) == []

    assert len({id(each) for each in (first, second, third)}) == 3


async def test_a_moment_that_cannot_be_gone_to_ends_the_replay_and_is_told(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: RecordedPlayback) -> None:
        raise StorageError("it cannot be shown")

    monkeypatch.setattr(RecordedPlayback, "go_live", refuse)

    async def look() -> None:
        async with shown(replay_page(database, "s1", ReplayStart())) as (app, pilot):
            await ended(app, pilot)

    with pytest.raises(StorageError, match="it cannot be shown"):
        await look()


async def test_what_cannot_be_opened_is_said_where_one_is(database: Path) -> None:
    gone = OpenSession(database=database, session="s77")

    async with shown(replay_page(database, "s1", ReplayStart())) as (app, pilot):
        first = app.page
        app.post_message(gone)
        await until(pilot, lambda: bool(notified(app)))

        assert "No session 's77'" in notified(app)[0]
        assert app.page is first


async def test_the_sample_and_a_comparison_lead_back(database: Path) -> None:
    compared = OpenComparison(database=database, sessions=("s1", "s1"))

    async with shown(replay_page(database, "s1", ReplayStart())) as (app, pilot):
        first = app.page
        sample = await gone_to(app, pilot, OpenSample())
        assert isinstance(sample, SessionPage)
        assert sample.view.window is Window.MINUTE
        assert await back(app, pilot) is first

        assert isinstance(await gone_to(app, pilot, compared), ComparePage)
        assert app.current_mode == "compare"
        assert await back(app, pilot) is first


async def test_to_leave_is_to_leave_everything(database: Path) -> None:
    async with players(database, 3) as (first, *others):
        opener = Opener(*others)
        async with shown(nullcontext(first), opener) as (app, pilot):
            await gone_to(app, pilot, OpenSample())
            await gone_to(app, pilot, OpenSample())
            app.exit()

    assert opener.ended == others[::-1]


async def test_what_ended_unseen_is_not_shown_again(database: Path) -> None:
    async with players(database, 2) as (first, second):
        first.over = asyncio.create_task(asyncio.sleep(3600))
        async with shown(nullcontext(first), Opener(second)) as (app, pilot):
            await gone_to(app, pilot, OpenSample())
            first.over.cancel()
            await pilot.press("q")
            await ended(app, pilot)


@pytest.mark.soak
async def test_what_a_page_tells_at_its_end_is_told_to_the_terminal_too(
    database: Path,
) -> None:
    told: list[str] = []
    async with players(database, 3) as (first, *others):
        app = InferwatchApp(first, Opener(*others, tells="stopping ..."))
        async with app.run_test() as pilot:
            await gone_to(app, pilot, OpenSample())
            await back(app, pilot)
            await gone_to(app, pilot, OpenSample())
        assert told == []
        await app.close(told.append)

    assert told == ["stopping ..."] * 2


async def test_what_a_page_ends_with_is_said_where_one_comes_back(
    database: Path,
) -> None:
    async with players(database, 2) as (first, second):
        opener = Opener(second, fails="the engine was lost")
        async with shown(nullcontext(first), opener) as (app, pilot):
            await gone_to(app, pilot, OpenSample())
            assert await back(app, pilot) is first

            assert notified(app) == ["the engine was lost"]


async def test_a_fault_on_the_way_ends_everything_and_is_raised(
    database: Path,
) -> None:
    async with players(database, 2) as (first, second):
        opener = Opener(second)
        app = InferwatchApp(first, opener)
        async with app.run_test() as pilot:
            await gone_to(app, pilot, OpenSample())
            app.post_message(OpenSample())  # the opener has no other page
            await ended(app, pilot)

        with pytest.raises(IndexError):
            await app.close(lambda _: None)
        assert opener.ended == [second]


async def test_who_leaves_while_the_first_page_opens_never_sees_it(
    database: Path,
) -> None:
    runner = AppRunner()
    runner.leave()

    await runner.show(replay_page(database, "s1", ReplayStart()))

    assert runner.app is None


async def test_a_session_or_a_moment_that_is_not_there_is_never_shown(
    database: Path,
) -> None:
    runner = AppRunner()

    with pytest.raises(NoSuchSessionError):
        await runner.show(replay_page(database, "s77", ReplayStart()))
    with pytest.raises(UsageError):
        await runner.show(replay_page(database, "s1", ReplayStart(at="noon")))
    assert runner.app is None


async def test_a_comparison_without_anything_to_see_ends_with_why(
    database: Path,
) -> None:
    request = ComparisonRequest(database=database, sessions=("s1", "s1"))

    with pytest.raises(UsageError, match="nothing"):
        async with compare_page(request) as page:
            page.failure = UsageError("nothing")


async def test_a_load_on_a_server_that_was_not_watched_opens_on_its_screen(
    tmp_path: Path,
) -> None:
    path = tmp_path / "imported.db"
    store_runs(path, [read_results(VLLM_RESULT)])

    async with replay_page(path, "last", ReplayStart()) as page:
        assert (page.view.screen, page.view.database) == ("load", path)


async def test_hardware_without_an_engine_opens_on_its_screen(tmp_path: Path) -> None:
    path = tmp_path / "hardware.db"
    recorder = Recorder.open(path, clock=SessionClock(), command="attach")
    for ordinal, source in enumerate(("", "gpu1")):
        recorder.put(ordinal, HostSample(t_ns=1, source=source, processes=[]))
    recorder.close()

    async with replay_page(path, "last", ReplayStart()) as page:
        assert page.view.screen == "hardware"


@pytest.mark.parametrize(
    ("start", "begins_s", "window", "plays"),
    [
        pytest.param(ReplayStart(), None, Window.SESSION, False, id="the whole"),
        pytest.param(ReplayStart(at="10s"), 10, Window.MINUTE, False, id="a moment"),
        pytest.param(
            ReplayStart(speed=0.5), 0, Window.MINUTE, True, id="from the start"
        ),
        pytest.param(
            ReplayStart(at="10s", speed=2), 10, Window.MINUTE, True, id="both"
        ),
    ],
)
async def test_a_replay_begins_where_it_was_asked_to(
    database: Path,
    start: ReplayStart,
    begins_s: float | None,
    window: Window,
    plays: bool,
) -> None:
    async with replay_page(database, "s1", start) as page:
        playback = page.feed.playback
        assert playback is not None
        async with asyncio.timeout(20):
            while not playback.position_ns or playback.playing != plays:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.02)
        there_ns, end_ns = playback.position_ns, playback.span_ns[1]

    wanted_ns = end_ns if begins_s is None else begins_s * 1e9
    assert there_ns == pytest.approx(wanted_ns, abs=3e9)
    assert page.view.window is window


async def test_a_server_attached_to_from_a_screen_shows_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_DB", str(tmp_path / "own.db"))
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("INFERWATCH_API_KEY", "sk-planted-4711")
    async with serving({"/metrics": VLLM}) as server:
        wish = OpenServers(urls=(server.url.replace("//", "//me:pa55word@"),))
        async with shown(open_page(wish, lambda _: None)) as (app, pilot):
            await until(pilot, lambda: len(server.heads) > 2)
            await pilot.pause(1)
            picture = app.export_screenshot()

    assert any("Basic bWU6cGE1NXdvcmQ=" in head for head in server.heads)
    assert server.url.rpartition(":")[2] in picture
    assert not any(each in picture for each in ("sk-planted", "pa55word", "bWU6"))


def test_what_was_recorded_is_named_by_id_and_file(tmp_path: Path) -> None:
    record = SimpleNamespace(session_id="s8", flight=None)
    watch: Any = SimpleNamespace(alarms=None, record=record, failure=None)
    told: list[str] = []

    _say_goodbye(watch, tmp_path / "a b.db", told.append, runs_on=False)

    where = f"--db '{tmp_path}/a b.db'"
    assert told == [f"recorded as s8: `inferwatch replay s8 {where}` opens it again."]


def test_what_is_not_the_first_of_its_model_is_compared_next(database: Path) -> None:
    clock: Any = type("Clock", (), {"start_ns": 0, "now_ns": lambda _: END_NS})()
    recorder = Recorder.open(database, clock=clock, floor_bytes=0)
    traffic = Traffic(step_ms=20.0)
    for numbered in enumerate([*traffic.start(), *traffic.run(2)], 1):
        recorder.put(*numbered)
    recorder.close()

    db = f"--db {database}"
    assert where_recorded("s1", database).endswith("opens it again.")
    assert where_recorded("s2", database) == (
        f"recorded as s2: `inferwatch replay s2 {db}` opens it again. "
        f"`inferwatch compare s1 s2 {db}` compares it with the one before."
    )
