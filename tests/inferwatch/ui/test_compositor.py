"""What is drawn of a change: the same as Textual's own compositor draws, by less."""

from random import Random
from typing import Any

import pytest
from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.strip import Strip

from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.terminal.compositor import SparseCompositor

SIZE = (120, 40)


@pytest.mark.parametrize("key", ["1", "2", "3", "4", "?"])
async def test_a_change_is_drawn_as_textual_draws_it(
    app: InferwatchApp, settle: Any, key: str
) -> None:
    random = Random(key)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press(key)
        await settle(pilot)
        sparse = app.screen._compositor
        assert isinstance(sparse, SparseCompositor)
        for _ in range(60):
            changed = {_some_region(random) for _ in range(random.randint(1, 4))}
            sparse._dirty_regions = set(changed)
            ours = sparse.render_partial_update()
            sparse._dirty_regions = set(changed)
            textuals = Compositor.render_partial_update(sparse)

            assert _drawn(ours) == _drawn(textuals), changed


def _some_region(random: Random) -> Region:
    x, y = random.randrange(SIZE[0]), random.randrange(SIZE[1])
    width, height = random.randint(1, SIZE[0] - x), random.randint(1, SIZE[1] - y)
    return Region(x, y, width, height)


def _drawn(update: Any) -> list[tuple[int, int, Strip | None]]:
    """Row, column and content of each piece that the terminal is sent."""
    assert isinstance(update, ChopsUpdate)
    return [
        (y, start, strip)
        for y, first, last in update.spans
        for end, (start, strip) in zip(
            update.chop_ends[y], update.chops[y].items(), strict=True
        )
        if start < last and end > first
    ]
