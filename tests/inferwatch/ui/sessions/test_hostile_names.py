"""A record that somebody else made: none of its words act on the terminal."""

from contextlib import closing
from pathlib import Path

import pytest

from inferwatch.record.connections import open_for_writing
from inferwatch.studies.compare.runs.selection import ComparisonRequest
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.compare.screen import CompareScreen
from inferwatch.ui.pages import ComparePage, StartPage
from tests.inferwatch.hostile import KEPT
from tests.inferwatch.ui.test_hostile_text import SIZES, squeezed, written
from tests.inferwatch.ui.typed_keys import looked_up

PICTURE = "␛]52;c;aGk="


in_both_sizes = pytest.mark.parametrize(
    "size",
    [pytest.param(SIZES[0], marks=pytest.mark.soak), SIZES[1]],
    ids=str,
)
"""What a small terminal shows, a large one shows too."""


@pytest.fixture
def hostile_record(record: Path) -> Path:
    with closing(open_for_writing(record)) as connection, connection:
        connection.execute(
            "UPDATE sessions SET name = ? || session, command = ?, tags = ?, "
            "model = '/' || ?, reason = ?",
            [f"{KEPT}\n"] * 5,
        )
    return record


@in_both_sizes
async def test_the_list_of_sessions_does_not_obey(
    app: InferwatchApp, hostile_record: Path, size: tuple[int, int]
) -> None:
    del hostile_record
    async with app.run_test(notifications=True, size=size) as pilot:
        await pilot.press("8")
        await looked_up(pilot)
        assert PICTURE in written(app)
        for key in ("R", "escape", "T", "escape", "R", "enter", "m", "slash"):
            await pilot.press(key)
            await looked_up(pilot)
            written(app)


async def test_the_start_screen_does_not_obey(hostile_record: Path) -> None:
    app = InferwatchApp(StartPage(hostile_record))

    async with app.run_test(notifications=True, size=(120, 40)) as pilot:
        await looked_up(pilot)
        assert PICTURE in written(app)
        app.notify(KEPT, severity="error")
        await pilot.pause()
        assert f"{PICTURE}␇␛[31m␡␍<U+202E>[bold]x[@click=app.quit]y" in squeezed(app)


@in_both_sizes
async def test_a_comparison_does_not_obey(
    hostile_record: Path, size: tuple[int, int]
) -> None:
    request = ComparisonRequest(database=hostile_record, sessions=("s1", "s3"))
    app = InferwatchApp(ComparePage(request))

    async with app.run_test(notifications=True, size=size) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, CompareScreen)
        while screen.comparing:
            await pilot.pause()
            await pilot.app.workers.wait_for_complete()
        for _ in range(3):
            await pilot.press("tab")
            await pilot.pause()
            assert PICTURE in written(app)
