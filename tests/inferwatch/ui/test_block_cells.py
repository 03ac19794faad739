"""Blocks as cells, asserted as text art: order, scale, what most of a cell is."""

import doctest
from dataclasses import replace

import numpy as np
import pytest

from inferwatch.metrics.cache.memory import BlockPicture, BlockState
from inferwatch.ui.kv import block_cells
from inferwatch.ui.kv.block_cells import (
    BlockHolders,
    Look,
    MapOrder,
    MapScale,
    arrange,
    fold,
    pointed_cells,
    scale_for,
)
from inferwatch.ui.kv.block_map import GLYPHS, block_lines, first_holder
from tests.inferwatch.ui.block_maps import busy, memory_of, pool

TWELVE = pool(12, [(1, 2, 5, 6), (1, 2, 8), (4,)], cached=(3, 10))
"""Blocks 1 and 2 are a shared beginning; 7, 9 and 11 are free."""
ONE = MapScale(1, 12, 1)


def art(picture: BlockPicture, by: MapOrder, scale: MapScale = ONE) -> str:
    looks = fold(arrange(BlockHolders(picture), by), scale)
    return "".join(GLYPHS[Look(look)][0] for look in looks)


def ids(picture: BlockPicture, by: MapOrder) -> list[int]:
    return [int(each) for each in arrange(BlockHolders(picture), by).order]


def test_examples_in_docstrings_are_true() -> None:
    result = doctest.testmod(block_cells)

    assert result.attempted > 0
    assert result.failed == 0


def test_by_id_each_block_stands_in_its_place() -> None:
    assert ids(TWELVE, MapOrder.ID) == [*range(12)]
    assert art(TWELVE, MapOrder.ID) == "×▓▓⣿███·█·⣿·"


def test_by_holder_the_blocks_of_a_request_stand_together_and_neighbours_differ() -> (
    None
):
    assert ids(TWELVE, MapOrder.HOLDER) == [1, 2, 5, 6, 8, 4, 3, 10, 7, 9, 11, 0]
    assert art(TWELVE, MapOrder.HOLDER) == "▓▓██▇█⣿⣿···×"


def test_by_prefix_blocks_that_the_same_requests_share_stand_together() -> None:
    picture = pool(12, [(1, 2, 3), (1, 2, 7, 5), (1, 2, 4), (7, 5, 8)], cached=(9,))

    assert ids(picture, MapOrder.PREFIX)[:4] == [1, 2, 7, 5]  # by three, then by two
    assert art(picture, MapOrder.PREFIX) == "▓▓▒▒█▇█⣿···×"


@pytest.mark.parametrize("by", MapOrder)
@pytest.mark.parametrize("count", [1, 2, 257, 4_097])
def test_every_block_stands_somewhere_once(by: MapOrder, count: int) -> None:
    assert sorted(ids(busy(count), by)) == [*range(count)]


@pytest.mark.parametrize("by", MapOrder)
def test_an_empty_pool_and_a_full_one_can_be_arranged(by: MapOrder) -> None:
    assert art(pool(4), by).count("·") == 3
    assert "·" not in art(pool(4, [(1, 2, 3)]), by)


def test_a_cell_shows_what_most_of_it_is() -> None:
    assert art(TWELVE, MapOrder.ID, MapScale(4, 3, 1)) == "▓█·"


def test_of_as_many_of_each_the_one_that_is_held_is_shown() -> None:
    picture = pool(5, [(1, 2), (2,)], cached=(3,))

    assert art(picture, MapOrder.ID, MapScale(5, 1, 1)) == "▓"
    assert art(pool(4, [(1,)]), MapOrder.ID, MapScale(2, 2, 1)) == "█·"


def test_the_last_cell_counts_only_the_blocks_there_are() -> None:
    assert art(pool(9, [(8,)]), MapOrder.ID, MapScale(4, 3, 1)) == "··█"


@pytest.mark.parametrize(
    ("count", "width", "rows"),
    [(256, 70, 9), (4_097, 70, 9), (50_001, 70, 9), (50_001, 110, 12), (257, 190, 20)],
)
def test_all_blocks_find_room_and_the_scale_says_how(
    count: int, width: int, rows: int
) -> None:
    scale = scale_for(count, width, rows)

    assert scale.columns * scale.wide <= width
    assert scale.columns * rows * scale.blocks >= count
    assert f"= {scale.blocks:,} block" in scale.text
    if scale.blocks > 1:  # no larger than it must be
        assert scale.columns * rows * (scale.blocks - 1) < count


def test_single_blocks_have_a_cell_each_however_many_there_are() -> None:
    assert scale_for(50_000, 100, 9, single=True) == MapScale(1, 96, 1)


def test_looks_differ_without_colour() -> None:
    assert len({glyph for glyph, _ in GLYPHS.values()}) == len(GLYPHS)


def test_a_cell_with_one_block_of_a_request_stands_out() -> None:
    held = BlockHolders(TWELVE)
    blocks = arrange(held, MapOrder.ID)

    flags = pointed_cells(blocks, MapScale(4, 3, 1), held.of(1))

    assert flags.tolist() == [True, False, True]


def said(picture: BlockPicture, *blocks: int, tokens: int | None = 16) -> list[str]:
    names = {
        each.ordinal: each for each in memory_of([picture], "req-{}".format).holders
    }
    lines = block_lines(BlockHolders(picture), np.array(blocks), names, tokens)
    return [" ".join("".join(run.text for run in line).split()) for line in lines]


def test_one_block_is_told_by_id_state_holders_position_and_references() -> None:
    assert said(TWELVE, 2) == [
        "▸ block 2 shared reference count 2",
        ("req-400 tokens 16–31, block 2 of 4 · req-399 tokens 16–31, block 2 of 3"),
    ]
    assert said(TWELVE, 8, tokens=None) == [
        "▸ block 8 private reference count 1",
        "req-399 its block 3 of 3",
    ]
    assert said(TWELVE, 3)[1] == ""
    assert "nobody can hold it" in said(TWELVE, 0)[0]
    assert "free" in said(TWELVE, 7)[0]


def test_no_tokens_are_told_of_a_request_whose_blocks_are_not_for_each_once() -> None:
    slid = memory_of([TWELVE]).holders[0]
    names = {slid.ordinal: replace(slid, tokens=slid.blocks * 16 + 900)}

    _, second = block_lines(BlockHolders(TWELVE), np.array([5]), names, 16)

    assert "".join(run.text for run in second).endswith("its block 3 of 4")


def test_several_blocks_are_counted_by_state_and_holder() -> None:
    assert said(TWELVE, 4, 5, 6, 7) == [
        "▸ blocks 4–7 3 private, 1 free",
        "req-400 2 blocks · req-398 1 block",
    ]
    assert said(TWELVE, 1, 8)[0] == "▸ blocks 2, between 1 and 8 1 shared, 1 private"


def test_more_holders_than_there_is_room_for_are_counted() -> None:
    crowd = pool(3, [(1,)] * 300)

    first, second = said(crowd, 1)

    assert "reference count ≥ 255" in first
    assert second.endswith("· 292 more")


def test_whoever_holds_most_of_a_cell_is_its_holder() -> None:
    held = BlockHolders(TWELVE)

    assert first_holder(held, np.array([1, 2, 5])) == 400
    assert first_holder(held, np.array([8])) == 399
    assert first_holder(held, np.array([3, 7])) is None


def test_a_block_beyond_the_pool_is_left_out() -> None:
    picture = pool(4, [(1, 2)])
    odd = BlockPicture(
        source=picture.source,
        rank=0,
        t_ns=0,
        states=picture.states,
        references=picture.references,
        holders=(400,),
        held=((1, 9, -1, 2),),
    )

    assert ids(odd, MapOrder.HOLDER) == [1, 2, 3, 0]
    assert BlockState(odd.states[3]) is BlockState.FREE
