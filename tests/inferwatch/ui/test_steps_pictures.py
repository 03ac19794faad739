"""Single steps, batches and stalls at three sizes, live and replayed."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from textual.pilot import Pilot

from inferwatch.record.replay.player import Player
from inferwatch.sample import sample_file
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.steps.screen import StepsScreen
from inferwatch.ui.steps.single_steps import SingleSteps
from tests.inferwatch.ui.conftest import app_on
from tests.inferwatch.ui.pictures import ALL, Pictures, named, soaked
from tests.inferwatch.ui.scripted_steps import feed_with_steps

VIEWS = {
    "single": ("v",),
    "zoomed": ("v", "z", "z", "z", "left_square_bracket"),
    "efficiency": ("v", "v", "down"),
}
MOMENT = 0.62
"""Of the sample: load runs, requests have queued."""
PATIENCE_S = 60


async def drawn(pilot: Pilot[None]) -> None:
    """What is shown has been read and drawn."""
    app = pilot.app
    assert isinstance(app, InferwatchApp)
    for _ in range(2):
        app.look()
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, StepsScreen)
        singly, since_s = screen.query_one(SingleSteps), time.monotonic()
        while singly.reading and time.monotonic() < since_s + PATIENCE_S:
            await pilot.pause(0.02)
        await pilot.pause()


def showing(*keys: str) -> Callable[[Pilot[None]], Any]:
    """Goes to the view."""

    async def act(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        app.look()
        await pilot.pause()
        for key in ("3", *keys):
            await pilot.press(key)
            await drawn(pilot)

    return act


@pytest.mark.parametrize("view", soaked(VIEWS, ["zoomed"]))
def test_picture_of_a_view(pictures: Pictures, view: str) -> None:
    app = app_on("steps", feed_with_steps())

    assert not pictures(app, named(*ALL), showing(*VIEWS[view]))


@pytest.fixture
def greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clocks show the same wherever the test runs."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    """Of the sample: each picture is of the same moment."""
    with pytest.MonkeyPatch.context() as home:
        home.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with closing(Player.open(sample_file(), "last")) as player:
            yield player


@pytest.mark.usefixtures("greenwich")
@pytest.mark.parametrize("view", soaked(["single", "efficiency"], ["efficiency"]))
def test_picture_of_a_replay(pictures: Pictures, player: Player, view: str) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await asyncio.to_thread(player._scan.look)
        await player.playback.seek(round(player.playback.span_ns[1] * MOMENT))
        await showing(*VIEWS[view])(pilot)

    app = app_on("steps", player)

    assert not pictures(app, named(*ALL), act)
