"""Who holds the KV cache, how much is wasted and saved, and how long it lasts."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    EngineInfo,
    EngineSettings,
    EventKind,
    Note,
    NoteKind,
    RequestEvent,
    Step,
    Vantage,
)
from inferwatch.metrics.cache.memory import Memory
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.steps.engines import Setting
from tests.inferwatch.metrics.scripted_pool import Pool, S, shared_load

ENGINE = "engine-1"


def info(**fields: Any) -> EngineInfo:
    fields = {"num_kv_blocks": 100, "kv_block_tokens": 16} | fields
    return EngineInfo(
        source=ENGINE, t_ns=0, pid=1, model="m", vllm_version="1", **fields
    )


def event(kind: EventKind, ordinal: int, t_s: float, **fields: Any) -> RequestEvent:
    return RequestEvent(
        source=ENGINE,
        t_ns=round(t_s * S),
        kind=kind,
        vantage=Vantage.ENGINE,
        request_id=f"cmpl-r{ordinal}-0-abcd",
        ordinal=ordinal,
        **fields,
    )


def step(
    t_s: float, members: dict[int, tuple[int, int]] | None = None, **fields: Any
) -> Step:
    """``members``: tokens scheduled and produced."""
    members = members or {}
    return Step(
        source=ENGINE,
        index=round(t_s * 100),
        start_ns=round(t_s * S) - S // 100,
        end_ns=round(t_s * S),
        duration_ns=S // 100,
        running=len(members),
        members=[*members],
        scheduled=[each[0] for each in members.values()],
        produced=[each[1] for each in members.values()],
        **fields,
    )


def life(
    ordinal: int, prompt: int, *, cached: int = 0, at_s: float = 1
) -> Iterator[AnyReading]:
    """It is prefilled in two steps, and has three tokens."""
    yield event(EventKind.ADDED, ordinal, at_s, prompt_tokens=prompt)
    yield event(EventKind.SCHEDULED, ordinal, at_s + 0.01, cached_tokens=cached)
    yield step(at_s + 0.02, {ordinal: (prompt - cached - 4, 0)})
    for number in range(3):
        scheduled = 1 if number else 4
        yield step(at_s + 0.03 + number / 100, {ordinal: (scheduled, 1)})


def ends(ordinal: int, t_s: float, **fields: Any) -> RequestEvent:
    fields = {"output_tokens": 3, "reason": "length"} | fields
    return event(EventKind.FINISHED, ordinal, t_s, **fields)


def block_map(sequence: int = 0, t_s: float = 2, **fields: Any) -> BlockMap:
    fields = {"whole": not sequence, "num_blocks": 101} | fields
    return BlockMap(source=ENGINE, t_ns=round(t_s * S), sequence=sequence, **fields)


SHARED = block_map(
    holders=[1, 2],
    kept=[0, 0],
    blocks=[[1, 2, 3, 4], [1, 2, 5]],
    cached=[1, 2, 3],
)


def memory(
    *readings: AnyReading,
    now_s: float = 10,
    window: Window = Window.SESSION,
    rows: bool = True,
) -> Memory:
    model = Model()
    for each in readings:
        model.fold(each)
    shown = model.snapshot(
        round(now_s * S), SnapshotQuery(window, requests=rows)
    ).memory
    assert shown is not None
    return shown


def test_nobody_tells_of_an_engine() -> None:
    assert Model().snapshot(S, SnapshotQuery(Window.MINUTE)).memory is None


def test_without_maps_nothing_is_said_of_blocks() -> None:
    shown = memory(info(), step(1))
    assert shown == Memory()


def test_blocks_are_private_or_shared() -> None:
    shown = memory(info(), SHARED)
    assert (shown.private_blocks, shown.shared_blocks) == (3, 2)
    assert shown.tokens_saved == 2 * 16
    assert shown.map_age_s == 8


def test_holders_are_told_by_what_they_hold() -> None:
    first = life(1, 60, cached=32)
    shown = memory(info(), *first, *life(2, 40), SHARED)
    one, two = shown.holders
    assert (one.ordinal, one.blocks, one.private_blocks, one.shared_blocks) == (
        1,
        4,
        2,
        2,
    )
    assert (one.key, one.name) == (f"{ENGINE}/cmpl-r1-0-abcd", "cmpl-r1-0-abcd")
    assert one.tokens == 62  # of three, the last was never computed
    assert one.waste_tokens == 2
    assert one.age_s == pytest.approx(10 - 1.01)
    assert (two.tokens, two.waste_tokens) == (42, 6)
    assert shown.waste_tokens == 8
    assert shown.waste_share == pytest.approx(8 / (5 * 16))


def test_a_holder_goes_by_the_id_that_its_client_knows() -> None:
    arrived = replace(
        event(EventKind.ARRIVED, 1, 0.9, external_id="chatcmpl-mine"),
        vantage=Vantage.FRONTEND,
    )
    shown = memory(info(), arrived, *life(1, 60), SHARED)
    assert [each.name for each in shown.holders] == ["mine", "#2"]
    assert shown.holders[1].tokens is None


def test_prefill_counts_what_was_found_and_what_was_done() -> None:
    shown = memory(info(), *list(life(1, 60, cached=32))[:3], SHARED)
    assert shown.holders[0].tokens == 56


def test_what_is_computed_again_is_not_counted_twice() -> None:
    again = [step(2, preempted=[1]), step(2.1, {1: (30, 0)})]
    shown = memory(info(), *life(1, 60), *again, SHARED)
    assert shown.holders[0].tokens is None
    shown = memory(info(), *life(1, 60), *again, step(2.2, {1: (33, 1)}), SHARED)
    assert shown.holders[0].tokens == 63


def test_groups_of_layers_hide_how_full_last_blocks_are() -> None:
    grouped = replace(
        SHARED, holders=[1, 1], groups=[0, 1], blocks=[[1, 2], [0, 3]], kept=[0, 0]
    )
    shown = memory(info(), *life(1, 20), grouped)
    assert (shown.waste_tokens, shown.holders[0].blocks) == (None, 3)
    assert shown.holders[0].waste_tokens is None


def test_rows_are_made_for_those_who_ask() -> None:
    shown = memory(info(), *life(1, 60), SHARED, rows=False)
    assert shown.holders == ()
    assert shown.waste_tokens == 2


def used(t_s: float, blocks: int) -> Step:
    return step(
        t_s, kv_used_blocks=blocks, kv_cached_blocks=0, kv_free_blocks=100 - blocks
    )


def test_growth_is_over_ten_seconds() -> None:
    shown = memory(info(), used(1, 10), used(12, 30), used(16, 50), now_s=20)
    assert shown.growth_blocks_per_s == pytest.approx(20 / 8)
    assert shown.full_in_s == pytest.approx(50 / 2.5)


def test_what_does_not_grow_is_never_full() -> None:
    shown = memory(info(), used(12, 50), used(16, 30), now_s=20)
    assert shown.growth_blocks_per_s == pytest.approx(-20 / 8)
    assert shown.full_in_s is None


def test_what_swings_as_high_as_before_does_not_grow_full() -> None:
    swing = used(2, 60), used(8, 62), used(12, 30), used(16, 50)
    shown = memory(info(), *swing, now_s=20)
    assert shown.growth_blocks_per_s == pytest.approx(20 / 8)
    assert shown.full_in_s is None
    higher = memory(info(), *swing, used(18, 98), now_s=20)
    assert higher.full_in_s is not None


def test_growth_is_unknown_in_the_first_second_and_after_the_end() -> None:
    assert memory(info(), used(1, 50), now_s=1.5).growth_blocks_per_s is None
    lost = Note(t_ns=5 * S, kind=NoteKind.LOST, text="gone", source=ENGINE)
    assert memory(info(), used(4, 50), used(5, 60), lost).growth_blocks_per_s is None


def test_an_eviction_is_as_old_as_the_last_use() -> None:
    readings = [
        block_map(holders=[1], kept=[0], blocks=[[1, 2]], cached=[1, 2, 9]),
        block_map(1, 3, gone=[1]),
        block_map(2, 5, cached=[7]),
        block_map(3, 7, uncached=[1, 7, 9], holders=[2], kept=[0], blocks=[[1]]),
        block_map(4, 8, cached=[1]),
    ]
    shown = memory(info(), *readings, now_s=12)
    assert shown.evicted == 3
    assert shown.eviction_age_p50_s == 2  # of 7; of 9 it is not known
    assert shown.eviction_age_max_s == 4
    assert shown.evicted_per_s == pytest.approx(3 / 10)
    late = memory(info(), *readings, now_s=18, window=Window.TEN_SECONDS)
    assert (late.evicted, late.eviction_age_max_s) == (0, None)


def test_who_let_go_between_two_maps_was_evicted_at_once() -> None:
    first = block_map(holders=[1], kept=[0], blocks=[[1, 2]], cached=[1])
    then = block_map(1, 3, gone=[1], uncached=[1], holders=[2], kept=[0], blocks=[[1]])
    shown = memory(info(), first, then)
    assert (shown.evicted, shown.eviction_age_max_s) == (1, 0)


def test_a_whole_map_after_changes_forgets_no_ages() -> None:
    readings = [
        block_map(holders=[1], kept=[0], blocks=[[1]], cached=[1]),
        block_map(1, 3, gone=[1]),
        block_map(2, 5, whole=True, cached=[1]),
        block_map(3, 8, uncached=[1]),
    ]
    assert memory(info(), *readings).eviction_age_max_s == 5


def test_what_is_cleared_on_demand_was_not_evicted() -> None:
    cleared = block_map(1, 3, uncached=[1, 2, 3], cleared=True)
    assert memory(info(), SHARED, cleared).evicted == 0


def test_hit_rates_are_of_the_window_and_of_the_session() -> None:
    early = step(1, prefix_queries=100, prefix_hits=0)
    late = step(15, prefix_queries=100, prefix_hits=60)
    shown = memory(info(), early, late, now_s=20, window=Window.TEN_SECONDS)
    assert (shown.hit_rate, shown.hit_rate_lifetime) == (0.6, 0.3)


def test_room_is_what_idle_blocks_hold_of_the_median_request() -> None:
    readings: list[AnyReading] = [info()]
    for ordinal, prompt in enumerate((30, 61, 200), 1):
        readings += [*life(ordinal, prompt, at_s=ordinal), ends(ordinal, ordinal + 0.5)]
    room = memory(*readings, used(5, 20)).room
    assert room is not None
    assert (room.tokens_per_request, room.blocks_per_request) == (64, 4)
    assert (room.idle_blocks, room.requests, room.n) == (80, 20, 3)
    assert room.shared_blocks_per_request == 0


def test_blocks_that_others_hold_need_no_room() -> None:
    finished = [*life(9, 61, cached=32), ends(9, 1.5)]
    room = memory(info(), *finished, SHARED, used(5, 20)).room
    assert room is not None
    assert room.shared_blocks_per_request == 2  # found; four of seven are shared
    assert room.requests == 40


def test_what_is_found_cached_and_idle_needs_room_all_the_same() -> None:
    finished = [*life(9, 61, cached=32), ends(9, 1.5)]
    alone = block_map(holders=[1], kept=[0], blocks=[[1, 2, 3]], cached=[7, 8])
    room = memory(info(), *finished, alone, used(5, 20)).room
    assert room is not None
    assert (room.shared_blocks_per_request, room.requests) == (0, 20)


def test_room_rests_on_those_that_finished_properly_in_the_window() -> None:
    aborted = [*life(1, 61), ends(1, 1.5, reason="abort")]
    assert memory(info(), *aborted, used(5, 20)).room is None
    finished = [*life(1, 61), ends(1, 1.5)]
    late = memory(info(), *finished, used(5, 20), now_s=20, window=Window.TEN_SECONDS)
    assert late.room is None


def test_counts_agree_with_a_pool_that_tells_of_itself() -> None:
    pool, model = Pool(200), Model()
    model.fold(info(num_kv_blocks=199))
    for reading in shared_load(pool, 30):
        model.fold(reading)
    model.fold(pool.map(31 * S))
    shown = model.snapshot(31 * S, SnapshotQuery(Window.SESSION)).memory

    assert shown is not None
    held = sorted(pool.held.items(), key=lambda item: (-len(item[1]), item[0]))
    assert [(each.ordinal, each.blocks) for each in shown.holders] == [
        (ordinal, len(blocks)) for ordinal, blocks in held
    ]
    alone = [sum(pool.refs[b] == 1 for b in blocks) for _, blocks in held]
    assert [each.private_blocks for each in shown.holders] == alone
    assert shown.private_blocks == sum(ref == 1 for ref in pool.refs)
    assert shown.shared_blocks == sum(ref > 1 for ref in pool.refs)
    # A block that came and went between two maps is told in none.
    assert 0.9 * pool.evicted < (shown.evicted or 0) <= pool.evicted


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [(False, True, ["engine-2"]), (True, False, [ENGINE]), (True, True, None)],
)
def test_prompts_below_a_block_are_judged_where_their_own_server_caches(
    first: bool, second: bool, told: list[str] | None
) -> None:
    model = Model()
    for source, caches in ((ENGINE, first), ("engine-2", second)):
        settings: dict[str, Setting] = {"enable_prefix_caching": caches}
        for each in (
            info(),
            EngineSettings(source=source, t_ns=0, settings=settings),
            block_map(t_s=0.5, holders=[], kept=[], blocks=[]),
            *life(1, 9),
            ends(1, 2),
        ):
            model.fold(replace(each, source=source))

    found = model._memory.misses(3 * S, None)

    assert found is not None
    assert found.prompts == len(told or (ENGINE, "engine-2"))
    if told:
        assert [found.total.key.partition("/")[0]] == told


def test_prompts_below_a_block_are_judged_before_a_whole_map() -> None:
    model = Model()
    first = block_map(5, t_s=0.5, holders=[], kept=[], blocks=[])
    for each in (info(), first, *life(1, 9), ends(1, 2)):
        model.fold(each)

    assert not first.whole
    assert not model._memory.pictures()
    found = model._memory.misses(3 * S, None)
    assert found is not None
    assert found.prompts == 1
