"""What one request looks like, at three sizes; a change is reviewed as a picture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.messages import OpenRequest
from tests.inferwatch.ui.conftest import ScriptedFeed, app_on
from tests.inferwatch.ui.pictures import (
    ALL,
    SMALL,
    USUAL,
    Pictures,
    Size,
    named,
    soaked,
)
from tests.inferwatch.ui.stories import STORIES

VIEWS: dict[str, tuple[str, tuple[str, ...], tuple[Size, ...]]] = {
    **{name: (name, (), ALL) for name in STORIES},
    "late": ("spiky", ("s", "s"), ALL),
    "zoomed": ("spiky", ("s", "z", "z"), (SMALL, USUAL)),
    "first-token": ("queued", ("z",), (USUAL,)),
    "tokens": ("spiky", ("tab", "s"), (SMALL,)),
    "steps": ("queued", ("tab", "tab", "down"), (SMALL,)),
    "facts": ("spiky", ("tab", "tab", "tab"), (SMALL,)),
    "unknown-facts": ("unknown", ("tab", "tab", "tab"), (SMALL,)),
    "light": ("queued", ("t",), (USUAL,)),
    "unheard-of": ("nobody", (), (SMALL,)),
}
LIKE_OTHERS = (
    "quick",
    "queued",
    "spiky",
    "live",
    "long",
    "zoomed",
    "first-token",
    "tokens",
    "steps",
    "unknown-facts",
    "light",
    "unheard-of",
)
"""They show the parts of the others; words of their own are read by other tests."""
REPLAYED = (SMALL, USUAL)


def opening(key: str, *keys: str) -> Callable[[Pilot[None]], Any]:
    """Opens a request from Requests, presses keys, and lets the screen draw again."""

    async def act(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        await pilot.press("2")
        app.screen.post_message(OpenRequest(key))
        await pilot.pause()
        for pressed in ("", *keys, ""):
            if pressed:
                await pilot.press(pressed)
            app.look()
            await pilot.pause()
            await app.workers.wait_for_complete()
        await pilot.pause()

    return act


@pytest.fixture
def app(feed: ScriptedFeed) -> InferwatchApp:
    return app_on("requests", feed)


@pytest.mark.parametrize("name", soaked(VIEWS, LIKE_OTHERS))
def test_picture_of_a_request(
    pictures: Pictures, feed: ScriptedFeed, app: InferwatchApp, name: str
) -> None:
    key, keys, sizes = VIEWS[name]
    if key in STORIES:
        feed.recall.stories[key] = STORIES[key]()

    assert not pictures(app, named(*sizes), opening(key, *keys))


@pytest.mark.soak
def test_picture_of_a_request_in_a_replay(
    pictures: Pictures, replayed_feed: ScriptedFeed
) -> None:
    replayed_feed.recall.stories["queued"] = STORIES["queued"]()
    app = app_on("requests", replayed_feed)

    assert not pictures(app, named(*REPLAYED), opening("queued"))


def test_every_picture_belongs_to_a_test() -> None:
    """Left-over pictures would be reviewed for nothing."""
    folder = Path(__file__).parent / "__snapshots__" / "test_request_pictures"
    count = sum(len(sizes) for _, _, sizes in VIEWS.values()) + len(REPLAYED)

    assert len(list(folder.glob("*.svg"))) == count
