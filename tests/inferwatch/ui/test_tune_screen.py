"""A tune on the screen: what it shows, its keys, and how it ends."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from inferwatch.cli.running.pages import tune_page
from inferwatch.errors import SourceError
from inferwatch.studies.tune.progress import TuneProgress, TuneStage
from inferwatch.studies.tune.result.tune_result import TuneResult
from inferwatch.studies.tune.space import Point, Variable, space_of
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import TunePage
from inferwatch.ui.tune.screen import EndTuneScreen, SettingScreen, TuneScreen
from inferwatch.ui.tune.table import TuneTable, interval_bar
from inferwatch.ui.widgets.help_drawer import HelpDrawer
from tests.inferwatch.ui.pictures import ALL, Pictures, named
from tests.inferwatch.ui.scripted_tune import (
    CAUSE,
    ScriptedTune,
    beginning,
    ended,
    middle,
    point,
)

SMALL, USUAL, LARGE = (80, 24), (120, 40), (200, 60)
FRAME = {"c5c8c6", "ff5f57", "febc2e", "28c840"}
"""Buttons that an exported picture has around it."""
SIZES = pytest.mark.parametrize(
    "size", [SMALL, USUAL, LARGE], ids=["80x24", "120x40", "200x60"]
)


@asynccontextmanager
async def shown(
    task: ScriptedTune, size: tuple[int, int] = USUAL
) -> AsyncIterator[Pilot[None]]:
    """A tune on a screen of that size, as the command shows it."""
    async with tune_page(task, lambda _: None) as page:
        app = InferwatchApp(page)
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            yield pilot


async def settled(pilot: Pilot[None]) -> None:
    for _ in range(3):
        if isinstance(pilot.app.screen, TuneScreen):
            pilot.app.screen.look()
        for _ in range(3):  # a busy machine lays out late
            await pilot.pause()


def text_of(pilot: Pilot[None], name: str) -> str:
    panel = next(each for each in pilot.app.screen.query(name) if each.region)
    lines = [panel.render_line(y).text for y in range(panel.size.height)]
    return "\n".join(line.rstrip() for line in lines)


async def test_what_is_measured_now_and_why_come_first_and_the_latest_last() -> None:
    task = ScriptedTune(middle())
    async with shown(task) as pilot:
        head, said = text_of(pilot, "TuneHead"), text_of(pilot, "TuneMessages")
        assert "goodput meta-llama/Llama-3.1-8B-Instruct  ttft_s<0.5" in head
        assert "10 min 11 s · about 12 min left · of 2 h" in head
        assert "loading max-num-seqs 64 · max-num-batched-tokens 512  repeat 3" in head
        assert "━━━━━━━━━╌" in head
        assert "it is not told apart from the best: once more" in head
        assert (
            "★ Take max-num-seqs 64 · max-num-batched-tokens 2048: better than" in head
        )
        assert "the machine drifts by 0." in said
        assert "#13 32 · 2048: 8.2" in said
        assert said.splitlines()[-1] == (
            " · max-num-seqs 16 is out: 40% to 48% below the best"
        )

        task.progress = replace(middle(), rate_per_s=12.5)
        await settled(pilot)
        assert "repeat 3  at 12.5 requests/s" in text_of(pilot, "TuneHead")


async def test_settings_stand_by_how_good_they_are() -> None:
    async with shown(ScriptedTune(middle()), LARGE) as pilot:
        titles, *rows = text_of(pilot, "TuneTable").strip("\n").splitlines()

        assert titles.split()[:4] == ["seqs", "batched-tokens", "n", "good/s"]
        assert [row.split()[:3] for row in rows[:2]] == [
            ["★", "64", "2048"],
            ["▶≈", "64", "512"],
        ]
        assert "not told apart" in rows[1]
        assert [row.split()[:3] for row in rows if "present" in row] == [
            ["▼●", "32", "2048"]
        ]
        assert any("▼" in row and "below the best" in row for row in rows)
        assert "✗" in rows[-2] + rows[-1]
        assert "did not start: torch.OutOfMemoryError" in rows[-2] + rows[-1]
        assert "left out: the what-if model says" in rows[-2] + rows[-1]


async def test_enter_tells_a_cause_whole_and_names_each_session() -> None:
    async with shown(ScriptedTune(middle())) as pilot:
        await pilot.press("home", "enter")
        await pilot.pause()
        told = str(pilot.app.screen.query_one("Static").render())
        assert "trial 4, repeat 1: measured" in told
        assert "inferwatch replay 2026-11-23-07-04" in told
        assert "bound by max_num_seqs 62%" in told
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, TuneScreen)

        table = pilot.app.screen.query_one(TuneTable)
        table._key = point(8, 2048).text
        await settled(pilot)
        assert "did not start: torch.OutOfMemoryError" in text_of(pilot, "TuneDetail")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(pilot.app.screen, SettingScreen)
        told = str(pilot.app.screen.query_one("Static").render())
        assert CAUSE in told
        assert "--max-num-seqs=8 --max-num-batched-tokens=2048" in told
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, TuneScreen)

        await pilot.press("question_mark")
        await pilot.pause()
        assert pilot.app.screen.query(HelpDrawer)
        await pilot.press("escape")
        await pilot.pause()
        assert not pilot.app.screen.query(HelpDrawer)


async def test_before_anything_is_measured_nothing_is_claimed() -> None:
    async with shown(ScriptedTune(beginning())) as pilot:
        head, table = text_of(pilot, "TuneHead"), text_of(pilot, "TuneTable")

        assert "starting the engine" in head
        assert "nothing is measured yet" in head
        assert "left" not in head
        assert "★" not in table
        assert table.count("to come") == 8
        assert "drifts" not in text_of(pilot, "TuneMessages")


async def test_leaving_asks_once_and_ends_with_what_there_is() -> None:
    task = ScriptedTune(middle())

    async with shown(task) as pilot:
        for key in ("ctrl+c", "escape", "q"):
            await pilot.press(key)
            await pilot.pause()
            assert isinstance(pilot.app.screen, EndTuneScreen), key
            await pilot.press("escape")
            await pilot.pause()
            assert isinstance(pilot.app.screen, TuneScreen), key
            assert task.outcome == "failed", key

        await pilot.press("q")
        await pilot.pause()
        await pilot.press("y")
        await settled(pilot)

        assert pilot.app.return_code == 0
    assert task.outcome == "interrupted"


async def test_a_second_ctrl_c_means_yes() -> None:
    task = ScriptedTune(middle())

    async with shown(task) as pilot:
        await pilot.press("ctrl+c")
        await pilot.pause()
        await pilot.press("ctrl+c")
        await settled(pilot)

        assert pilot.app.return_code == 0
    assert task.outcome == "interrupted"


async def test_a_result_stays_until_people_leave_it() -> None:
    task = ScriptedTune(middle())

    async with shown(task) as pilot:
        task.over.set()
        for _ in range(3):
            await settled(pilot)
        assert pilot.app.return_code is None
        head = text_of(pilot, "TuneHead")
        assert "★ Take max-num-seqs 64" in head
        assert "left" not in head.splitlines()[0]
        assert "$ inferwatch serve" in head

        await pilot.press("q")
        await pilot.pause()

        assert pilot.app.return_code == 0
    assert task.outcome == "done"


async def test_a_failure_ends_the_screen_and_is_raised() -> None:
    task = ScriptedTune(beginning())
    task.failure = SourceError("the engine did not start: no memory")

    with pytest.raises(SourceError, match="no memory"):
        await _seen_to_its_end(task)


async def _seen_to_its_end(task: ScriptedTune) -> None:
    async with shown(task) as pilot:
        task.over.set()
        await settled(pilot)
        assert pilot.app.return_code == 0


async def test_who_ends_the_app_ends_the_tune() -> None:
    task = ScriptedTune(middle())

    async with shown(task) as pilot:
        pilot.app.exit()

    assert task.outcome == "interrupted"


async def test_the_cursor_stays_on_its_setting_while_others_move() -> None:
    task = ScriptedTune(middle())

    async with shown(task) as pilot:
        table = pilot.app.screen.query_one(TuneTable)
        await pilot.press("down", "down")
        pointed = table.pointed
        assert pointed is not None
        task.progress = replace(middle(), trials=middle().trials[:-2])
        await settled(pilot)

        assert table.pointed is not None
        assert table.pointed.key == pointed.key


async def test_a_small_terminal_shows_less_and_breaks_nothing() -> None:
    async with shown(ScriptedTune(middle()), (60, 15)) as pilot:
        for size in ((60, 15), (40, 10), (20, 5)):
            await pilot.resize_terminal(*size)
            await pilot.press("down", "enter")
            await pilot.pause()
            await pilot.press("escape")
            await pilot.pause()

            assert isinstance(pilot.app.screen, TuneScreen), size


async def test_without_colour_every_cell_is_grey(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async with shown(ScriptedTune(middle())) as pilot:
        picture = pilot.app.export_screenshot(simplify=True)

    colours = set(re.findall(r"#([0-9a-f]{6})", picture)) - FRAME
    assert len(colours) > 5
    assert all(colour[:2] == colour[2:4] == colour[4:] for colour in colours)


async def test_values_of_settings_are_text_whatever_they_say() -> None:
    odd = '{"method":"[/b]","ids":[1,2]}\x1b[31m'
    space = space_of(
        (Variable(flag="speculative-config", values=("default", odd)),),
        Point(flags=(("speculative-config", odd),)),
    )
    task = ScriptedTune(replace(beginning(), space=space, now=None))

    async with shown(task) as pilot:
        assert "to come" in text_of(pilot, "TuneTable")
        await pilot.press("enter")
        await pilot.pause()

        dialog = pilot.app.screen.query_one("VerticalScroll")
        assert str(dialog.border_title).startswith("speculative-config {")
        assert "[1,2]" in str(dialog._border_title)
        assert "\x1b" not in pilot.app.export_screenshot()


Compare = Callable[..., bool]


@pytest.mark.parametrize("moment", [beginning, middle, ended])
def test_picture(pictures: Pictures, moment: Callable[[], TuneProgress]) -> None:
    assert not pictures(app_of(moment()), named(*ALL), drawn())


@pytest.mark.parametrize(
    "keys",
    [("enter",), ("q",), pytest.param(("question_mark",), marks=pytest.mark.soak)],
)
def test_picture_of_what_is_over_it(snap_compare: Compare, keys: Any) -> None:
    app = app_of(middle())

    assert snap_compare(app, terminal_size=SMALL, run_before=drawn(*keys))


def app_of(progress: TuneProgress) -> InferwatchApp:
    """Of a tune that is at this moment and stays there."""
    loop = asyncio.new_event_loop()
    running: asyncio.Future[TuneResult] = loop.create_future()
    if progress.stage is TuneStage.DONE and progress.result is not None:
        running.set_result(progress.result)
    loop.close()
    return InferwatchApp(TunePage(ScriptedTune(progress), running, asyncio.Event()))


def drawn(*keys: str) -> Callable[[Pilot[None]], Any]:
    async def act(pilot: Pilot[None]) -> None:
        for key in ("", *keys, ""):
            if key:
                await pilot.press(key)
            await settled(pilot)

    return act


def test_an_interval_beyond_the_scale_says_that_it_goes_on() -> None:
    whole = "".join(run.text for run in interval_bar(5, (3, 8), (0, 10), 11))
    beyond = "".join(run.text for run in interval_bar(5, (-9, 80), (0, 10), 11))

    assert whole == "   ━━●━━━  "
    assert beyond == "◂━━━━●━━━━▸"


async def test_after_its_end_a_tune_promises_no_more_trials() -> None:
    done = ended()
    few = replace(done, trials=done.trials[:5])

    async with shown(ScriptedTune(few), LARGE) as pilot:
        rows = text_of(pilot, "TuneTable")

        assert "not told apart: 1 trial" in rows
        assert "may yet be best" not in rows
