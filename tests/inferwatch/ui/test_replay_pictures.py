"""A recorded session of real vLLM in the very screens, at three sizes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from inferwatch.record.replay.player import Player
from inferwatch.sample import sample_file
from inferwatch.ui.app import InferwatchApp
from tests.inferwatch.ui.conftest import app_on
from tests.inferwatch.ui.pictures import ALL, Pictures, named

MOMENT = 0.62
"""Of the session: load runs, requests have queued."""
VIEWS = {"overview": "1", "requests": "2", "steps": "3", "kv": "4", "limits": "6"}


@pytest.fixture(autouse=True)
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


def showing(player: Player, key: str) -> Callable[[Pilot[None]], Any]:
    """Goes to the moment and to a screen, and lets it draw."""

    async def act(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        await asyncio.to_thread(player._scan.look)
        await player.playback.seek(round(player.playback.span_ns[1] * MOMENT))
        for _ in range(2):
            await pilot.press(key)
            app.look()
            await pilot.pause()

    return act


SOAKED = {"requests", "kv"}
"""Scripted sessions show as much of these screens."""


@pytest.mark.parametrize(
    "view",
    [pytest.param(v, marks=[pytest.mark.soak] * (v in SOAKED)) for v in VIEWS],
)
def test_picture_of_the_sample(pictures: Pictures, player: Player, view: str) -> None:
    app = app_on(view, player)

    assert not pictures(app, named(*ALL), showing(player, VIEWS[view]))


def test_every_picture_belongs_to_a_test() -> None:
    folder = Path(__file__).parent / "__snapshots__" / "test_replay_pictures"

    assert len(list(folder.glob("*.svg"))) == len(VIEWS) * len(ALL)
