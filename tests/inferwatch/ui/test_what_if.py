"""``i`` asks what another setting would have made of the last minutes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import Input, Label

from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.replay.player import Player
from inferwatch.sample import sample_file
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.dialogs import DialogTable
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.what_if.dialog import FIELDS, WhatIfScreen
from tests.inferwatch.ui.conftest import ScriptedFeed, app_on
from tests.inferwatch.ui.pictures import LARGE, SMALL, USUAL, Pictures, named
from tests.inferwatch.ui.typed_keys import is_busy

Settle = Callable[[Pilot[None]], Awaitable[None]]
SIZES = ((80, 24), (120, 40), (200, 60))
PATIENCE_S = 60


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """The end of the sample session: nobody here goes elsewhere in it."""
    with pytest.MonkeyPatch.context() as home:
        home.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        home.setenv("TZ", "UTC")
        time.tzset()
        with closing(Player.open(sample_file(), "last")) as player:
            asyncio.run(player.playback.go_live())
            yield player
    time.tzset()


@pytest.fixture
def sample(read: Player, monkeypatch: pytest.MonkeyPatch) -> Iterator[Player]:
    """It, and clocks that show the same wherever the test runs."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield read
    monkeypatch.undo()
    time.tzset()


async def told(pilot: Pilot[None]) -> DialogTable:
    """What the dialog has found."""
    await pilot.pause()
    screen, since_s = pilot.app.screen, time.monotonic()
    assert isinstance(screen, WhatIfScreen)
    while is_busy(screen) and time.monotonic() < since_s + PATIENCE_S:
        await pilot.pause(0.05)
    await pilot.pause()
    return screen.query_one(DialogTable)


def written(table: DialogTable) -> str:
    lines = table.draw(table.size.width, table.size.height)
    return "\n".join("".join(run.text for run in line).rstrip() for line in lines)


async def ask(pilot: Pilot[None], **texts: str) -> str:
    for key, text in texts.items():
        pilot.app.screen.query_one(f"#field-{key}", Input).value = text
    await pilot.press("enter")
    return written(await told(pilot))


async def test_several_settings_stand_beside_what_was_and_how_well_it_is_simulated(
    sample: Player, settle: Settle
) -> None:
    """Rows of requests say less than the events of a record: it is near, not equal."""
    shown = sample.snapshot(SnapshotQuery(Window.SESSION))
    (recorded,) = [each for each in shown.latencies if each.metric == "ttft_s"]
    app = app_on("steps", sample)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("i")
        text = written(await told(pilot))

        assert "TTFT p50, ms" in text
        assert "as it was" in text
        present = [str(label.render()) for label in app.screen.query(".now")]
        assert present == ["now 32", "now 512", "now 255", "now 1", "now fcfs"]

        (line,) = [each for each in text.splitlines() if each.startswith("TTFT p50")]
        measured, as_was = map(float, line.split()[3:5])
        assert recorded.quantiles.p50 is not None
        assert measured == pytest.approx(recorded.quantiles.p50 * 1e3, rel=0.05)
        assert as_was == pytest.approx(measured, rel=0.1)

        text = await ask(pilot, max_num_seqs="8, 16")

        assert text.startswith("With max_num_seqs 8 instead of 32, TTFT p50 rises from")
        assert "With max_num_seqs 16 instead of 32, TTFT p50 " in text
        assert "seqs 8" in text
        assert "seqs 16" in text
        (seqs,) = [e for e in text.splitlines() if e.startswith("  max_num_seqs ")]
        with_8, with_16 = (float(each.rstrip("%")) for each in seqs.split()[-2:])
        assert with_8 > with_16 > 0

        await pilot.press("escape")
        assert not isinstance(app.screen, WhatIfScreen)


async def test_priorities_are_asked_for_in_a_field_of_their_own(
    sample: Player, settle: Settle
) -> None:
    app = app_on("steps", sample)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("i")
        await told(pilot)

        assert "all requests have the same priority" in await ask(
            pilot, policy="priority"
        )
        assert "Cannot say: no request's class" in await ask(pilot, policy="chat=0")
        await ask(pilot, policy="fifo")
        hint = app.screen.query_one("#hint", Label)
        assert "fcfs, priority or NAME=N" in str(hint.render())


NO_SETTING = (("0", "from 1 to"), ("x", "whole numbers"), ("2.5", "whole numbers"))


async def test_what_is_no_setting_is_said_and_nothing_is_predicted(
    sample: Player, settle: Settle
) -> None:
    app = app_on("steps", sample)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("i")
        before = written(await told(pilot))
        for text, fault in NO_SETTING:
            assert await ask(pilot, max_num_seqs=text) == before, text

            hint = app.screen.query_one("#hint", Label)
            assert fault in str(hint.render()), text
            assert hint.has_class("-wrong")


async def test_a_high_table_scrolls_in_a_low_terminal_and_it_closes_while_it_computes(
    sample: Player, settle: Settle
) -> None:
    app = app_on("steps", sample)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("i")
        await pilot.press("escape")
        await settle(pilot)
        assert not isinstance(app.screen, WhatIfScreen)

        await pilot.press("i")
        await told(pilot)
        scrolled = app.screen.query_one(VerticalScroll)
        assert scrolled.scroll_y == 0
        await pilot.press("pagedown")
        await pilot.pause(0.3)

        assert scrolled.scroll_y > 5


async def test_without_steps_it_says_what_is_missing(settle: Settle) -> None:
    app = app_on("steps", ScriptedFeed())
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("i")

        assert "Cannot say: no steps of an engine" in written(await told(pilot))


def asking(player: Player, text: str) -> Callable[[Pilot[None]], Any]:
    async def act(pilot: Pilot[None]) -> None:
        await asyncio.to_thread(player._scan.look)
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        app.look()
        await pilot.pause()
        await pilot.press("i")
        await told(pilot)
        await ask(pilot, **{FIELDS[0].key: text})

    return act


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("8, 16, 64", marks=pytest.mark.soak, id="asked"),
        pytest.param("", id="as it was"),
    ],
)
def test_picture(pictures: Pictures, sample: Player, text: str) -> None:
    for sizes in named(SMALL), named(LARGE, USUAL):
        app = InferwatchApp(SessionPage(sample))

        assert not pictures(app, sizes, asking(sample, text))
