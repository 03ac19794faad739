"""What is written for a change makes a terminal show what Textual would have drawn."""

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pyte
import pytest
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.pilot import Pilot
from textual.strip import Strip

from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.pages import SessionPage
from inferwatch.ui.terminal.picture import Picture
from inferwatch.ui.view import View

S = 1_000_000_000
CONSOLE = Console(color_system="truecolor", force_terminal=True)
SIZE = Size(24, 3)
SHOWN_ON_BLANK = ("underscore", "strikethrough", "reverse")
SHOWN = ("data", "fg", "bold", "italics", *SHOWN_ON_BLANK)


class Told:
    """A terminal that is told changes, and one that is told everything."""

    def __init__(self, size: Size) -> None:
        self.picture = Picture()
        self.bytes = 0
        self._size = size
        self._screen = pyte.Screen(*size)
        self._stream = pyte.Stream(self._screen)

    def take(self, update: CompositorUpdate, size: Size | None = None) -> None:
        if size is not None and size != self._size:
            self._size = size
            self._screen.resize(size.height, size.width)
        assert self.picture.take(update, self._size, ColorSystem.TRUECOLOR)
        self._feed()

    def take_after_a_while(self, updates: Iterable[CompositorUpdate]) -> None:
        for update in updates:
            self.picture.take(update, self._size, ColorSystem.TRUECOLOR)
        self._feed()

    def _feed(self) -> None:
        text = self.picture.changes()
        self.bytes += len(text)
        self._stream.feed(text)

    def assert_shows(self, whole: LayoutUpdate) -> None:
        screen = pyte.Screen(*self._size)
        stream = pyte.Stream(screen)
        stream.feed("\x1b[?7l")
        for y, strips in enumerate(whole.strips):
            row = "".join(strip.render(CONSOLE) for strip in strips)
            stream.feed(f"\x1b[{y + 1};1H{row}")
        for y in range(self._size.height):
            assert self._row(self._screen, y) == self._row(screen, y), f"row {y}"

    def _row(self, screen: pyte.Screen, y: int) -> list[tuple[Any, ...]]:
        return [_look(screen.buffer[y][x]) for x in range(self._size.width)]


def _look(cell: Any) -> tuple[Any, ...]:
    if cell.data in {" ", ""} and not cell.reverse:
        return (cell.data, cell.bg, *(getattr(cell, name) for name in SHOWN_ON_BLANK))
    return (cell.bg, *(getattr(cell, name) for name in SHOWN))


LETTERS = "ab  ··▁█⣿─漢字🙂é→−…"
STYLES = [
    None,
    *(
        Style.parse(each)
        for each in (
            "#aabbcc on #101010",
            "bold #aabbcc on #101010",
            "#ff0000 on #101010",
            "underline #aabbcc on #202020",
            "reverse on #101010",
            "italic green",
            "on red",
        )
    ),
]


def a_strip(chance: Random, width: int) -> Strip:
    segments = [
        Segment("".join(chance.choices(LETTERS, k=chance.randint(1, 9))), style)
        for style in chance.choices(STYLES, k=8)
    ]
    return Strip(segments).adjust_cell_length(width)


def a_picture(chance: Random, size: Size) -> LayoutUpdate:
    strips: list[Iterable[Strip]] = [
        [a_strip(chance, size.width)] for _ in range(size.height)
    ]
    return LayoutUpdate(strips, size.region)


@pytest.mark.parametrize("seed", range(30))
def test_any_picture_follows_any_other(seed: int) -> None:
    chance, told = Random(seed), Told(SIZE)
    for _ in range(8):
        whole = a_picture(chance, SIZE)
        told.take(whole)
        told.assert_shows(whole)


def test_what_was_not_told_for_a_while_is_told_at_once() -> None:
    chance, told = Random(1), Told(SIZE)
    wholes = [a_picture(chance, SIZE) for _ in range(5)]

    told.take_after_a_while(wholes)

    told.assert_shows(wholes[-1])


def test_a_part_that_changed_is_written_and_no_more() -> None:
    told, style = Told(SIZE), STYLES[1]
    row = Strip([Segment("x" * 24, style)])
    told.take(LayoutUpdate([[row], [row], [row]], SIZE.region))
    before = told.bytes
    part = Strip([Segment("xxyx", style)])
    told.take(ChopsUpdate([{}, {4: part}, {}], [(1, 4, 8)], [[], [8], []]))

    changed = Strip([Segment("xxxxxxyxxxxxxxxxxxxxxxxx", style)])
    told.assert_shows(LayoutUpdate([[row], [changed], [row]], SIZE.region))
    assert told.bytes - before == len("\x1b[2;7Hy")


def test_nothing_is_written_where_nothing_changed() -> None:
    chance, told = Random(2), Told(SIZE)
    whole = a_picture(chance, SIZE)
    told.take(whole)
    before = told.bytes

    told.take(whole)

    assert not told.picture.differs
    assert told.bytes == before


def test_all_is_written_when_the_terminal_may_show_anything() -> None:
    chance, told = Random(3), Told(SIZE)
    whole = a_picture(chance, SIZE)
    told.take(whole)
    told._stream.feed("\x1b[2J\x1b[31;4msomebody else")

    told.picture.forget()
    told.take(whole)

    told.assert_shows(whole)


class Watched(InferwatchApp):
    """Tells a terminal what changed, as the driver would."""

    told: Told | None = None

    def _display(self, screen: Any, renderable: Any) -> None:
        super()._display(screen, renderable)
        if self.told is None:
            self.told = Told(self.size)
        if isinstance(renderable, CompositorUpdate) and not self._batch_count:
            self.told.take(renderable, self.size)

    def assert_told(self) -> None:
        compositor = self.screen._compositor
        stack = self._background_screens
        whole = compositor.render_update(full=True, screen_stack=stack)
        assert self.told is not None
        assert isinstance(whole, LayoutUpdate)
        self.told.assert_shows(whole)


async def drawn(pilot: Pilot[Any]) -> None:
    await pilot.pause()
    await pilot.pause()


@pytest.mark.parametrize(
    "size", [(80, 24), pytest.param((120, 40), marks=pytest.mark.soak)]
)
async def test_the_terminal_shows_every_screen_as_it_is(
    watched_feed: Any, tmp_path: Path, size: tuple[int, int]
) -> None:
    view = View(database=tmp_path / "none.db")
    app = Watched(SessionPage(watched_feed, view))
    keys = "1 2 3 4 7 8 l 1 l l question_mark escape t g escape 2 down enter slash a"
    async with app.run_test(size=size) as pilot:
        for number, key in enumerate([*keys.split(), "escape", "7", "e", "tab", "8"]):
            await pilot.press(key)
            watched_feed.at_ns += (1 + number % 3) * S // 2
            app.look()
            await drawn(pilot)
            app.assert_told()
        await pilot.resize_terminal(100, 30)
        await drawn(pilot)
        app.assert_told()
        app.notify("漢字 and 🙂 in a toast")
        await drawn(pilot)
        app.assert_told()
