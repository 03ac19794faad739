"""Keys may be typed faster than screens come: none is lost, none breaks anything."""

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import count, cycle
from pathlib import Path
from random import Random
from typing import Any

import pytest
from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.widgets import Input

from inferwatch.cli.running.pages import compare_page, open_page, replay_page
from inferwatch.cli.running.replay_start import ReplayStart
from inferwatch.errors import UsageError
from inferwatch.sample import sample_file
from inferwatch.studies.compare.runs.selection import ComparisonRequest
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.kit.dialogs import PromptScreen
from inferwatch.ui.messages import GoTo, OpenDemo
from inferwatch.ui.pages import OpeningPage, SessionPage, StartPage, Tell
from inferwatch.ui.view import View
from tests.inferwatch.ui.typed_keys import handed_out

MUCH = (pytest.mark.soak, pytest.mark.timeout(600))
TYPED = [
    pytest.param(1, 25, id="a little"),
    *(pytest.param(seed, 600, id=f"much {seed}", marks=MUCH) for seed in range(1, 5)),
]
"""Seeds, and how many keys."""
WORDS = (
    ("q", "c", "l", "7", "8", "?", "escape", "x", "g", "b", "e", "enter"),
    tuple("1234780?+-,.[]<>#/abcdefgjklmnoprstuvwxyzADNR"),
    ("tab", "shift+tab", "up", "down", "left", "right", "pagedown", "home", "end"),
    ("8 home m down m c", "home enter", "7 q c l", "space w q 8 enter", "ctrl+s 2 /"),
)
"""What leads elsewhere or opens something; any key; what moves; how people type."""


def key_of(character: str) -> events.Key:
    """As the terminal's parser makes it of what is typed."""
    if len(character) > 1 or character == "\r":
        return events.Key({"\r": "enter"}.get(character, character), None)
    name = character if character.isalnum() else _character_to_key(character)
    return events.Key(name, character)


def type_in(app: InferwatchApp, keys: Sequence[str]) -> None:
    """All at once, as a line that was held up delivers it."""
    for key in keys:
        app.post_message(key_of(key))


def opening(wish: GoTo, tell: Tell) -> OpeningPage:
    """What the program opens, but for engines."""
    if isinstance(wish, OpenDemo):
        raise UsageError("no engine in this test")
    return open_page(wish, tell)


def burst(chance: Random) -> list[str]:
    """A handful of keys."""
    words = [chance.choice(chance.choice(WORDS)) for _ in range(chance.randint(1, 9))]
    return " ".join(words).split()


async def typed_at_random(
    app: InferwatchApp, chance: Random, most: int
) -> tuple[int, set[str]]:
    """Type until it is left, or enough: how many keys, and where they led."""
    typed, seen = 0, set[str]()
    async with app.run_test(size=(120, 40)) as pilot:
        while app.return_code is None and typed < most:
            keys = burst(chance)
            typed += len(keys)
            type_in(app, keys)
            for _ in range(chance.choice((0, 1, 5, 40))):
                await asyncio.sleep(0)
            if chance.random() < 0.6:
                await looked(pilot)
            seen.update(type(each).__name__ for each in app.screen_stack)
    await app.close(lambda _: None)
    return typed, seen


async def looked(pilot: Pilot[Any]) -> None:
    """Whatever is looked up has come."""
    await pilot.pause()
    for _ in range(50):
        if not any(each.is_running for each in pilot.app.workers):
            return
        await pilot.pause(0.01)


@pytest.fixture
def beginnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched_feed: Any
) -> Iterator[Callable[[], OpeningPage]]:
    """Where one can begin, round and round; keys may have binned what was recorded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def copy(number: int) -> Path:
        path = tmp_path / f"record{number}.db"
        shutil.copy(sample_file(), path)
        return path

    copies = map(copy, count())
    return cycle(
        (
            lambda: nullcontext(StartPage(next(copies))),
            lambda: nullcontext(SessionPage(watched_feed, View(database=next(copies)))),
            lambda: replay_page(next(copies), "s1", ReplayStart()),
            lambda: compare_page(
                ComparisonRequest(
                    database=next(copies),
                    sessions=(str(next(copies)), str(next(copies))),
                )
            ),
        )
    )


@pytest.mark.parametrize(("seed", "enough"), TYPED)
async def test_no_sequence_of_keys_breaks_a_page(
    beginnings: Iterator[Callable[[], OpeningPage]], seed: int, enough: int
) -> None:
    chance, typed, seen = Random(seed), 0, set[str]()
    for begin in beginnings:
        async with begin() as page:
            app = InferwatchApp(page, opening)
            keys, screens = await typed_at_random(app, chance, enough // 4)
        typed += keys
        seen |= screens
        if typed > enough:
            break

    # On a busy machine keys wait at most so long, and lead to fewer of the others.
    assert {"StartScreen", "OverviewScreen"} < seen, seen
    assert enough < 100 or len(seen) > 3, seen


async def test_what_follows_a_key_goes_where_that_key_leads(watched_feed: Any) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=(120, 40)) as pilot:
        type_in(app, "2g12:3")
        await handed_out(pilot)

        assert isinstance(app.screen, PromptScreen)
        assert app.screen.query_one(Input).value == "12:3"


async def test_the_key_to_leave_waits_for_nothing(watched_feed: Any) -> None:
    app = InferwatchApp(SessionPage(watched_feed))
    async with app.run_test(size=(120, 40)) as pilot:
        type_in(app, ["b", *"a bookmark of many letters", "ctrl+c", "ctrl+c"])
        await pilot.pause()

        assert app.return_code == 0
