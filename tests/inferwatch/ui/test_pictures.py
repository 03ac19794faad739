"""What the screens look like, at three sizes; a change is reviewed as a picture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from tests.inferwatch.ui.pictures import ALL, SMALL, USUAL, Pictures, Size, named
from tests.inferwatch.ui.typed_keys import handed_out

Compare = Callable[..., bool]

VIEWS: dict[str, tuple[tuple[str, ...], tuple[Size, ...]]] = {
    "overview": ((), ALL),
    "requests": (("2",), ALL),
    "steps": (("3", "shift+left", "left"), ALL),
    "kv": (("4",), ALL),
    "filter": (("2", "slash", *"stop"), (USUAL,)),
    "cursor": (("shift+left", "shift+left"), (SMALL, USUAL)),
    "help": (("question_mark",), (SMALL, USUAL)),
    "log": (("l",), (SMALL, USUAL)),
    "light": (("t",), (USUAL,)),
    "palette": (("ctrl+p",), (SMALL,)),
}


def showing(*keys: str) -> Callable[[Pilot[None]], Any]:
    """Presses keys on a screen that has drawn itself, and lets it draw again."""

    async def act(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, InferwatchApp)
        for key in ("", *keys, ""):
            if key:
                await pilot.press(key)
                await handed_out(pilot)
            app.look()
            await pilot.pause()

    return act


SOAKED = {"filter", "cursor", "help", "log", "light"}
"""Pictures of other screens show as much of them."""


@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        pytest.param(*view, id=name, marks=[pytest.mark.soak] * (name in SOAKED))
        for name, view in VIEWS.items()
    ],
)
def test_picture(
    pictures: Pictures,
    app: InferwatchApp,
    keys: tuple[str, ...],
    sizes: tuple[Size, ...],
) -> None:
    assert not pictures(app, named(*sizes), showing(*keys))


@pytest.mark.parametrize("state", ["starting_feed", "lost_feed", "untouched_feed"])
def test_picture_of_a_state(
    pictures: Pictures, request: pytest.FixtureRequest, state: str
) -> None:
    app = InferwatchApp(SessionPage(request.getfixturevalue(state)))

    assert not pictures(app, named(SMALL, USUAL), showing())


def test_picture_of_the_question(snap_compare: Compare, feed: Any) -> None:
    feed.served = True

    assert snap_compare(
        InferwatchApp(SessionPage(feed)), terminal_size=SMALL, run_before=showing("Q")
    )


PLAYED = {
    "replayed": ("replayed_feed", ()),
    "replayed-requests": ("replayed_feed", ("2",)),
    "paused": ("watched_feed", ("space", "left_square_bracket")),
}


@pytest.mark.parametrize(
    "name",
    [
        "replayed",
        pytest.param("replayed-requests", marks=pytest.mark.soak),
        "paused",
    ],
)
def test_picture_of_another_moment(
    pictures: Pictures, request: pytest.FixtureRequest, name: str
) -> None:
    feed, keys = PLAYED[name]
    app = InferwatchApp(SessionPage(request.getfixturevalue(feed)))

    assert not pictures(app, named(*ALL), showing(*keys))


@pytest.mark.soak
def test_picture_of_a_time_that_is_none(
    snap_compare: Compare, replayed_feed: Any
) -> None:
    app = InferwatchApp(SessionPage(replayed_feed))
    asked = showing("g", *"noon", "enter")

    assert snap_compare(app, terminal_size=SMALL, run_before=asked)


def test_every_picture_belongs_to_a_test() -> None:
    """Left-over pictures would be reviewed for nothing."""
    folder = Path(__file__).parent / "__snapshots__" / "test_pictures"
    count = sum(len(sizes) for _, sizes in VIEWS.values()) + 6 + 1
    count += len(PLAYED) * len(ALL) + 1

    assert len(list(folder.glob("*.svg"))) == count
