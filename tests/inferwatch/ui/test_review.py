"""``R`` on Limits asks what of a set-up should change."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.pilot import Pilot

from inferwatch.record.replay.player import Player
from inferwatch.studies.what_if.heard import CannotTellError
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.dialogs import DialogTable
from inferwatch.ui.review import dialog
from inferwatch.ui.review.dialog import ReviewScreen
from tests.inferwatch.metrics.findings.planted import SMALL_BATCH
from tests.inferwatch.printed.recorded import ANCHORED, PINNED, execute, keep
from tests.inferwatch.studies.review.test_review import on_gpu
from tests.inferwatch.ui.conftest import ScriptedFeed, app_on
from tests.inferwatch.ui.pictures import SMALL, USUAL, Pictures, named
from tests.inferwatch.ui.typed_keys import is_busy

Settle = Callable[[Pilot[None]], Awaitable[None]]
PATIENCE_S = 60


@pytest.fixture(scope="module")
def small_batch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """A recorded engine that lets too few run at once."""
    folder = tmp_path_factory.mktemp("review")
    with pytest.MonkeyPatch.context() as home:
        home.setenv("XDG_CACHE_HOME", str(folder))
        home.setenv("TZ", "UTC")
        time.tzset()
        keep(folder / "s.db", "small batch", on_gpu(SMALL_BATCH)())
        execute(folder / "s.db", PINNED, ANCHORED)
        with closing(Player.open(folder / "s.db", "last")) as player:
            asyncio.run(player.playback.go_live())
            yield player
    time.tzset()


async def told(pilot: Pilot[None]) -> list[str]:
    """The rows of the dialog, once predictions are there."""
    await pilot.pause()
    screen, since_s = pilot.app.screen, time.monotonic()
    assert isinstance(screen, ReviewScreen)
    while is_busy(screen) and time.monotonic() < since_s + PATIENCE_S:
        await pilot.pause(0.05)
    await pilot.pause()
    table = screen.query_one(DialogTable)
    lines = table.draw(table.size.width, table.size.height)
    return ["".join(run.text for run in line).rstrip() for line in lines]


async def test_it_judges_by_the_use_that_is_chosen_and_predicts_the_gain(
    small_batch: Player, settle: Settle
) -> None:
    app = app_on("limits", small_batch)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("R")
        chat = await told(pilot)
        await pilot.press("u")
        batch = await told(pilot)

        assert chat[0].startswith("simulated for interactive use: 1 of ")
        assert "▲ max_num_seqs, now 2" in chat
        gain = "  gain: not known: with max_num_seqs 4 "
        assert any(each.startswith(gain) for each in chat)
        assert batch[0].startswith("simulated for batch use: 1 of ")
        scrolled = app.screen.query_one(VerticalScroll)
        await pilot.press("pagedown")
        await pilot.pause(0.3)
        assert scrolled.scroll_y > 5

        await pilot.press("R")
        assert not isinstance(app.screen, ReviewScreen)


async def test_why_a_gain_cannot_be_predicted_is_told(
    small_batch: Player, settle: Settle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def few(*_: object) -> None:
        raise CannotTellError("only 3 requests came")

    monkeypatch.setattr(dialog, "recorded_lately", few)
    async with app_on("limits", small_batch).run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("R")

        assert "  gain: not known: only 3 requests came" in await told(pilot)


async def test_without_an_engine_it_says_what_is_missing(settle: Settle) -> None:
    feed = ScriptedFeed()
    feed.change = lambda made: replace(made, engines=(), servers=())
    app = app_on("limits", feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("R")

        assert (await told(pilot))[0].startswith("Cannot judge: ")


def reviewing(player: Player, settle: Settle) -> Callable[[Pilot[None]], Any]:
    async def act(pilot: Pilot[None]) -> None:
        await asyncio.to_thread(player._scan.look)
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        for _ in range(2):  # what it shows decides how high its panels are
            app.look()
            await settle(pilot)
        await pilot.press("R")
        await told(pilot)

    return act


def test_picture(pictures: Pictures, small_batch: Player, settle: Settle) -> None:
    for sizes in named(SMALL), named(USUAL):
        app = app_on("limits", small_batch)

        assert not pictures(app, sizes, reviewing(small_batch, settle))
