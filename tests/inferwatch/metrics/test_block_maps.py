"""Maps of blocks are folded to what the pool was, or to nothing."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from collectors.contract.readings import AnyReading, BlockMap, Note, NoteKind
from inferwatch.metrics.cache import block_maps
from inferwatch.metrics.cache.memory import BlockPicture, BlockState
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from tests.inferwatch.metrics.drawn import drawn
from tests.inferwatch.metrics.scripted_pool import Pool, S, shared_load

ENGINE = "engine-1"


def seen(*readings: AnyReading, now_s: float = 10) -> Snapshot:
    model = Model()
    for each in readings:
        model.fold(each)
    return model.snapshot(round(now_s * S), SnapshotQuery(Window.SESSION))


def picture(*readings: AnyReading) -> BlockPicture | None:
    return next(iter(seen(*readings).block_maps), None)


def whole(sequence: int = 0, num_blocks: int = 8, **fields: Any) -> BlockMap:
    held: dict[str, Any] = {"holders": [1], "kept": [0], "blocks": [[1, 2]]}
    fields = held | {"cached": [2]} | fields
    return BlockMap(
        source=ENGINE,
        t_ns=S,
        sequence=sequence,
        whole=True,
        num_blocks=num_blocks,
        **fields,
    )


def change(sequence: int = 1, t_s: float = 2, **fields: Any) -> BlockMap:
    return BlockMap(
        source=ENGINE, t_ns=round(t_s * S), sequence=sequence, num_blocks=8, **fields
    )


def test_a_picture_is_the_pool_at_every_map() -> None:
    pool, model, maps = Pool(200), Model(), 0
    states: set[int] = set()
    for reading in shared_load(pool, 30):
        model.fold(reading)
        if not isinstance(reading, BlockMap):
            continue
        maps += 1
        (shown,) = model.snapshot(reading.t_ns, SnapshotQuery(Window.MINUTE)).block_maps
        refs = Counter(block for held in pool.held.values() for block in held)
        assert list(shown.references) == [refs[b] for b in range(200)]
        assert dict(zip(shown.holders, map(list, shown.held), strict=True)) == pool.held
        for block in range(1, 200):
            cached = block in pool.content
            idle = BlockState.CACHED if cached else BlockState.FREE
            used = BlockState.SHARED if refs[block] > 1 else BlockState.PRIVATE
            assert shown.states[block] == (used if refs[block] else idle)
        states |= set(shown.states)
    assert maps > 100
    assert pool.evicted > 100
    assert states == set(BlockState)


def test_the_null_block_is_nobodys() -> None:
    shown = picture(whole(blocks=[[0, 1, 0, 2]], kept=[0]))
    assert shown is not None
    assert shown.states[0] == BlockState.NULL
    assert shown.held == ((1, 2),)
    assert shown.counts == (5, 0, 2, 0)


def test_nothing_is_drawn_before_a_whole_map() -> None:
    assert picture(change(0), change(1)) is None


def test_a_change_is_drawn_upon_the_map_before_it() -> None:
    shown = picture(whole(), change(holders=[1], kept=[1], blocks=[[5, 6]], t_s=3))
    assert shown is not None
    assert (shown.held, shown.t_ns) == (((1, 5, 6),), 3 * S)
    assert shown.states[2] == BlockState.CACHED


def test_after_a_gap_the_next_whole_map_is_awaited() -> None:
    gap = (whole(0), change(2))
    assert picture(*gap) is None
    assert picture(*gap, change(3)) is None
    assert picture(*gap, change(3), whole(4)) is not None


def test_after_a_loss_the_next_map_says_whether_it_was_one() -> None:
    lost = Note(t_ns=2 * S, kind=NoteKind.DROPPED, text="3 lost", source=ENGINE)
    assert picture(whole(0), lost) is None
    assert picture(whole(0), lost, change(1)) is not None
    assert picture(whole(0), lost, change(2)) is None


def test_a_lost_engine_holds_nothing() -> None:
    lost = Note(t_ns=2 * S, kind=NoteKind.LOST, text="gone", source=ENGINE)
    assert picture(whole(0), lost) is None
    assert picture(whole(0), lost, change(1)) is None
    assert picture(whole(0), lost, whole(0)) is not None


def test_each_rank_and_server_has_a_picture_of_its_own() -> None:
    other = msgspec.structs.replace(whole(num_blocks=4), source="engine-2")
    second = msgspec.structs.replace(whole(num_blocks=5), rank=1)
    shown = seen(whole(), other, second).block_maps
    places = [(each.source, each.rank, len(each.states)) for each in shown]
    assert places == [(ENGINE, 0, 8), (ENGINE, 1, 5), ("engine-2", 0, 4)]


def test_a_server_alone_has_its_own_picture() -> None:
    model = Model()
    for source in (ENGINE, "engine-2"):
        model.fold(msgspec.structs.replace(whole(), source=source))
    (shown,) = model.snapshot(
        S, SnapshotQuery(Window.MINUTE, source="engine-2")
    ).block_maps
    assert shown.source == "engine-2"


def test_a_picture_is_made_once_until_something_changes() -> None:
    model = Model()
    model.fold(whole())
    first, again = (
        model.snapshot(S, SnapshotQuery(Window.MINUTE)).block_maps[0] for _ in range(2)
    )
    assert first is again


@pytest.mark.parametrize(
    "contradiction",
    [
        {"holders": [1], "kept": [3], "blocks": [[5]]},
        {"holders": [7], "kept": [1], "blocks": [[5]]},
        {"holders": [1], "kept": [-1], "blocks": [[5]]},
        {"holders": [1, 2], "kept": [0], "blocks": [[5]]},
        {"holders": [1], "kept": [0], "blocks": [[5]], "groups": [0, 1]},
        {"holders": [1], "kept": [0], "blocks": [[8]]},
        {"holders": [1], "kept": [0], "blocks": [[-1]]},
        {"cached": [8]},
        {"uncached": [1 << 70]},
        {"gone": [9]},
    ],
    ids=str,
)
def test_what_cannot_be_takes_the_picture_away(contradiction: dict[str, Any]) -> None:
    assert picture(whole(), change(**contradiction)) is None
    assert picture(whole(), change(**contradiction), change(2)) is None
    assert picture(whole(), change(**contradiction), whole(2)) is not None


def test_pools_beyond_all_measure_have_no_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert picture(whole(num_blocks=1 << 50)) is None
    monkeypatch.setattr(block_maps, "MOST_STANDING", 3)
    assert picture(whole()) is not None
    crowd: dict[str, Any] = {
        "holders": [1, 2],
        "kept": [0, 0],
        "blocks": [[1, 2], [1, 2]],
    }
    assert picture(whole(**crowd)) is None


ids = st.lists(st.integers(-1, 9), max_size=4)


@drawn(
    40,
    200,
    st.lists(
        st.builds(
            BlockMap,
            source=st.just(ENGINE),
            t_ns=st.integers(0, (1 << 64) - 1),
            sequence=st.integers(0, 4),
            whole=st.booleans(),
            num_blocks=st.sampled_from([0, 4, 8, 8, 8, -3, 1 << 40]),
            holders=ids,
            groups=ids,
            kept=ids,
            blocks=st.lists(ids, max_size=4),
            gone=ids,
            cached=ids,
            uncached=ids,
            cleared=st.booleans(),
        ),
        max_size=6,
    ),
)
def test_nonsense_never_raises(maps: list[BlockMap]) -> None:
    model = Model()
    for number, each in enumerate(maps):
        model.fold(msgspec.structs.replace(each, sequence=number))
        model.fold(each)
        for shown in model.snapshot(10 * S, SnapshotQuery(Window.MINUTE)).block_maps:
            assert len(shown.states) == len(shown.references) == each.num_blocks
    model.saved()
