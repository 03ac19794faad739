"""The list of requests: causes, columns, groups, finding; at three sizes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from inferwatch.ui.app import InferwatchApp
from tests.inferwatch.ui.conftest import app_on
from tests.inferwatch.ui.pictures import ALL, Pictures, named

VIEWS = {
    "columns": ("2", "c", "down", "down", "space", "right", "space"),
    "groups": ("2", "G"),
    "by-cause": ("2", *"GGGGGGG"),
    "one-group": ("2", "G", "down", "enter"),
    "find": ("2", "slash"),
    "found": ("2", "slash", *"slower than 100ms cause:kv"),
    "fault": ("2", "slash", *"slower than 2", "enter"),
}


def showing(*keys: str) -> Callable[[Pilot[None]], Any]:
    """Presses keys on a screen that has drawn itself, and lets it draw again."""

    async def act(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        for key in ("", *keys, ""):
            if key:
                await pilot.press(key)
            app.look()
            await pilot.pause()

    return act


LIKE_OTHERS = {
    *((view, "live") for view in ("groups", "by-cause", "find", "fault")),
    *((view, "replayed") for view in VIEWS if view != "groups"),
}
"""A replay differs from what is live in the same lines of each of them."""


@pytest.mark.parametrize(
    ("view", "played"),
    [
        pytest.param(
            view,
            feed,
            id=f"{view}-{played}",
            marks=[pytest.mark.soak] if (view, played) in LIKE_OTHERS else [],
        )
        for view in VIEWS
        for feed, played in (("feed", "live"), ("replayed_feed", "replayed"))
    ],
)
def test_picture(
    pictures: Pictures, request: pytest.FixtureRequest, view: str, played: str
) -> None:
    feed = request.getfixturevalue(played)
    for sizes in map(named, ALL) if view == "columns" else [named(*ALL)]:
        app = app_on("requests", feed)  # with the columns of a size, switched

        assert not pictures(app, sizes, showing(*VIEWS[view]))


def test_every_picture_belongs_to_a_test() -> None:
    folder = Path(__file__).parent / "__snapshots__" / "test_request_list_pictures"

    assert len(list(folder.glob("*.svg"))) == len(VIEWS) * 2 * len(ALL)
