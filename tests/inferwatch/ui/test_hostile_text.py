"""Whatever others put into what is shown, no screen hands it to the terminal."""

import ast
import asyncio
import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.text import Text
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Label

import inferwatch.ui
from collectors.contract.readings import LoadEvent, LoadKind, Note, NoteKind
from inferwatch.errors import SourceError
from inferwatch.feed import Mark
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.view import FailureCount, LoadRun, RunState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.app import TABS, InferwatchApp
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.terminal.terminal import TerminalApp
from inferwatch.visible import visible
from tests.inferwatch.hostile import HOSTILE, hostile
from tests.inferwatch.ui.limits_sessions import LIMITS
from tests.inferwatch.ui.stories import STORIES

SIZES = (80, 24), (200, 60)
MODES = {mode: key for key, mode, _ in TABS if mode not in {"fleet", "sessions"}}


def client() -> ClientView:
    """Of a load whose server answers in escapes."""
    failed = FailureCount(kind="http", count=3, first='400 {"message":"no"}')
    run = LoadRun(run_id="load-1", state=RunState.SENDING, failures=(failed,))
    began = LoadEvent(t_ns=1, kind=LoadKind.STARTED, source="load-1")
    return ClientView(run=run, events=(began,))


@dataclasses.dataclass
class HostileDesk:
    """A server of ours whose model and host have bad names."""

    running: bool = False
    plan: LoadPlan = dataclasses.field(
        default_factory=lambda: LoadPlan(run_id="r", model=HOSTILE, rate_per_s=2.0)
    )
    must_name_host: str | None = None
    unavailable: str | None = None

    async def start(self, plan: LoadPlan) -> None:
        del plan
        raise SourceError(f"it said {HOSTILE}")

    async def change(self, **_: Any) -> None:
        """Nothing."""

    async def stop(self) -> None:
        """Nothing."""


def written(app: App[Any]) -> str:
    """All that goes to the terminal of the screen in sight, checked."""
    strips = app.screen._compositor.render_strips()
    for strip in strips:
        segments = [each for each in strip if not each.control]
        text = "".join(each.text for each in segments)
        assert ascii(visible(text)) == ascii(text)
        assert cell_len(text) == app.size.width, ascii(text)
        assert not any(
            "quit" in str(each.style and each.style.meta) for each in segments
        )
    return "\n".join(strip.text for strip in strips)


def squeezed(app: App[Any]) -> str:
    """The same without what wrapping puts in."""
    return "".join(each for each in written(app) if each not in " ▌│─\n")


@pytest.fixture
def hostile_feed(feed: Any) -> Any:
    """Every text of what is watched is an attack."""

    def change(made: Snapshot) -> Snapshot:
        told = Note(t_ns=made.now_ns - 1, kind=NoteKind.PROBE, text="news")
        made = dataclasses.replace(
            made, notes=(*made.notes, told), client=client(), limits=LIMITS
        )
        attacked: Snapshot = hostile(made)
        return attacked

    feed.change = change
    feed.record = hostile(feed.record)
    feed.load_desk = HostileDesk()
    feed.log_tail = lambda lines: [hostile("INFO a line")] * lines
    return feed


Settle = Callable[[Pilot[Any]], Any]


@pytest.mark.parametrize(
    "small",
    [
        pytest.param(0, id="every other small"),
        pytest.param(1, id="the others small", marks=pytest.mark.soak),
    ],
)
async def test_no_screen_of_a_watch_obeys(
    hostile_feed: Any, settle: Settle, small: int
) -> None:
    app = InferwatchApp(SessionPage(hostile_feed))

    async with app.run_test(notifications=True, size=SIZES[0]) as pilot:
        for place, size in enumerate(SIZES):
            await pilot.resize_terminal(*size)
            app.notify(HOSTILE, severity="error", timeout=10)
            for mode in tuple(MODES)[(small + place) % 2 :: 2]:
                key = MODES[mode]
                await pilot.press(key)
                await settle(pilot)
                assert app.current_mode == mode
                assert "␛" in written(app), (mode, size)
                await pilot.press("down", "enter")
                await settle(pilot)
                written(app)
                await pilot.press("escape")
            await pilot.press("l")
            await settle(pilot)
            assert "␛]52" in written(app), size
            await pilot.press("l")


async def test_a_preview_of_a_request_and_the_request_opened_do_not_obey(
    hostile_feed: Any, settle: Settle
) -> None:
    story = STORIES["spiky"]()
    missing = (*story.missing, "the rest")
    story = hostile(dataclasses.replace(story, missing=missing))
    hostile_feed.recall.stories["demo:1"] = story
    app = InferwatchApp(SessionPage(hostile_feed))

    async with app.run_test(notifications=True, size=(200, 60)) as pilot:
        await pilot.press("2", "down")
        await settle(pilot)
        assert "internal id ␛]52;c;aGk=␇␛[31m␡␍<U+202E>[bold]x" in written(app)
        await pilot.press("enter")
        await settle(pilot)
        await app.workers.wait_for_complete()
        await pilot.press("shift+tab", "s")
        await settle(pilot)
        assert "engine's ␛]52;c;aGk=␇␛[31m␡␍<U+202E>[bold]x" in written(app)


async def test_the_start_and_the_loss_of_an_engine_do_not_obey(
    starting_feed: Any, lost_feed: Any, settle: Settle
) -> None:
    for feed in (starting_feed, lost_feed):
        plain = feed.change
        feed.change = lambda made, plain=plain: hostile(plain(made))
        feed.log_tail = lambda lines: [hostile("INFO a line")] * lines
        app = InferwatchApp(SessionPage(feed))

        async with app.run_test(notifications=True, size=(120, 40)) as pilot:
            await settle(pilot)
            written(app)
            await pilot.press("l")
            await settle(pilot)
            assert "␛" in written(app)


async def test_marks_of_a_replay_do_not_obey(
    replayed_feed: Any, settle: Settle
) -> None:
    playback = replayed_feed.playback
    playback.marks = tuple(
        Mark(t_ns=each.t_ns, kind=each.kind, text=hostile(each.text))
        for each in playback.marks
    )
    app, seen = InferwatchApp(SessionPage(replayed_feed)), 0

    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        for _ in playback.marks:
            await pilot.press("N")
            await settle(pilot)
            seen += written(app).count("␛]52")

    assert seen >= 2


async def test_a_load_that_cannot_be_started_says_so_without_obeying(
    hostile_feed: Any, settle: Settle
) -> None:
    hostile_feed.load_desk.plan = LoadPlan(run_id="r", model="m", rate_per_s=2.0)
    app = InferwatchApp(SessionPage(hostile_feed))

    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await pilot.press("7")
        await settle(pilot)
        await pilot.press("s")
        await settle(pilot)
        assert "itsaid" in squeezed(app)
        hostile_feed.load_desk.unavailable = f"no: {HOSTILE}"
        await settle(pilot)
        await pilot.press("s")
        await settle(pilot)
        assert "no:␛]52" in squeezed(app)
        hostile_feed.load_desk.unavailable = None
        hostile_feed.load_desk.must_name_host = HOSTILE
        await pilot.press("s")
        async with asyncio.timeout(30):  # the dialog comes when there is time for it
            while not app.screen.query("#consequence"):
                await settle(pilot)
        asked = app.screen.query_one("#consequence", Label)
        assert "the name of its host: ␛]52" in str(asked.content)


async def test_a_message_is_no_markup() -> None:
    app: TerminalApp[None] = TerminalApp()

    async with app.run_test(notifications=True, size=(120, 20)) as pilot:
        app.notify(f"said {HOSTILE}", title=HOSTILE)
        await pilot.pause()
        shown = squeezed(app)

    assert (
        shown.count(
            "␛]52;c;aGk=␇␛[31m␡␍<U+202E>[bold]x[@click=app.quit]y[/][/]<U+D800>"
        )
        == 2
    )


async def test_a_widget_that_forgot_is_caught_at_the_last_door() -> None:
    class Forgetful(TerminalApp[None]):
        def compose(self) -> ComposeResult:
            yield Label(Text(HOSTILE), markup=False)
            yield Label(HOSTILE, markup=False)

    app = Forgetful()
    async with app.run_test(notifications=True, size=(60, 10)) as pilot:
        await pilot.pause()

        assert (
            "]52;c;aGk=31m[bold]x[@click=app.quit]y[/][/]\N{REPLACEMENT CHARACTER}"
            in written(app)
        )


def test_text_that_is_not_written_in_the_program_is_no_markup() -> None:
    """A label or a message whose text comes from elsewhere says markup=False."""
    forgot = []
    for path in Path(inspect.getfile(inferwatch.ui)).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _name(node) in {"Label", "Static"}:
                text = node.args[0]
                said = any(each.arg == "markup" for each in node.keywords)
                assembled = "Content" in ast.unparse(text)
                if not (isinstance(text, ast.Constant) or said or assembled):
                    forgot.append(f"{path.name}:{node.lineno}")

    assert forgot == []


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""
