"""What of a pool is new from moment to moment, on pools of our own making."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from collectors.contract.readings import AnyReading, BlockMap
from embedded_engine.probe.blocks import block_maps as block_changes
from embedded_engine.probe.blocks.block_maps import (
    BlockChanges,
    MapAssembler,
    MapDraft,
    PromptHasher,
    one_in,
)
from embedded_engine.probe.tap.block_tap import (
    FORGOTTEN,
    MOST_CHANGES,
    NEVER,
    BlockTap,
    Change,
    PoolSnapshot,
)
from embedded_engine.probe.tap.step_assembler import RequestOrdinals


@dataclass
class Block:
    block_id: int
    _block_hash: bytes | None = None


class Pool:
    """As vLLM's, of twenty blocks."""

    def __init__(self) -> None:
        self.blocks = [Block(number) for number in range(20)]

    def some(self, *numbers: int) -> list[Block]:
        return [self.blocks[number] for number in numbers]


class Manager:
    """As vLLM's of one KV-cache group; its name says what it does to lists."""

    def __init__(self, pool: Pool) -> None:
        self.block_pool = pool
        self.req_to_blocks: dict[str, list[Block]] = {}


class FullAttentionManager(Manager):
    pass


class SlidingWindowManager(Manager):
    pass


class Engine:
    """A pool, two groups, and the tap on them."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.full = FullAttentionManager(self.pool)
        self.sliding = SlidingWindowManager(self.pool)
        other = FullAttentionManager(Pool())
        self.said: list[str] = []
        self.tap = BlockTap(self.said.append, self.said.append)
        assert self.tap.born(_scheduler(self.pool, self.full, self.sliding, other))
        self.tap.start(ends=True)
        self.changes = BlockChanges(self.pool, self.tap.groups, self.said.append)

    def take(self, numbers: Iterable[int]) -> list[Block]:
        blocks = self.pool.some(*numbers)
        after = self.tap.hooks["taken"].after
        assert after is not None
        after(self.pool, (len(blocks),), blocks, 0, 0)
        return blocks

    def fill(
        self,
        blocks: list[Block],
        first: int,
        last: int,
        mask: Sequence[bool] | None = None,
    ) -> None:
        after = self.tap.hooks["filled"].after
        assert after is not None
        after(self.pool, (None, blocks, first, last, 16, 0, mask), None, 0, 0)

    def map(self, t_ns: int = 1) -> MapDraft:
        self.tap.take(t_ns)
        assert not self.said
        draft = self.changes.since(self.tap.moments.popleft())
        assert draft is not None
        return draft


def _scheduler(pool: Pool, *managers: Manager) -> Any:
    class Coordinator:
        single_type_managers = managers

    class KVCacheManager:
        block_pool = pool
        coordinator = Coordinator

    class Scheduler:
        kv_cache_manager = KVCacheManager

    return Scheduler


@pytest.fixture
def engine() -> Engine:
    return Engine()


def lists(draft: MapDraft) -> list[tuple[str, int, int, list[int]]]:
    told = zip(draft.holders, draft.groups, draft.kept, draft.blocks, strict=True)
    return list(told)


def test_only_what_came_to_a_list_is_told(engine: Engine) -> None:
    held = engine.full.req_to_blocks["a"] = engine.take([1, 2])
    first = engine.map()
    held += engine.take([3])
    second = engine.map()
    third = engine.map()

    assert lists(first) == [("a", 0, 0, [1, 2])]
    assert lists(second) == [("a", 0, 2, [3])]
    assert not third.says_something


def test_what_came_after_the_moment_is_not_in_it(engine: Engine) -> None:
    held = engine.full.req_to_blocks["a"] = engine.take([1, 2])
    engine.tap.take(1)
    held += engine.take([3])
    draft = engine.changes.since(engine.tap.moments.popleft())

    assert draft is not None
    assert lists(draft) == [("a", 0, 0, [1, 2])]
    assert lists(engine.map()) == [("a", 0, 2, [3])]


def test_another_list_begins_anew(engine: Engine) -> None:
    """Between two maps it was preempted and came back."""
    engine.full.req_to_blocks["a"] = engine.take([1, 2])
    engine.map()
    engine.full.req_to_blocks["a"] = engine.take([4, 2, 5])

    assert lists(engine.map()) == [("a", 0, 0, [4, 2, 5])]


def test_blocks_given_up_in_place_are_told(engine: Engine) -> None:
    held = engine.sliding.req_to_blocks["a"] = engine.take([1, 2, 3])
    engine.map()
    held[0] = engine.pool.blocks[0]
    first = engine.map()
    held += engine.take([4])
    second = engine.map()

    assert lists(first) == [("a", 1, 0, [0, 2, 3])]
    assert lists(second) == [("a", 1, 3, [4])]
    assert not engine.map().says_something


def test_who_holds_nothing_in_any_group_is_gone(engine: Engine) -> None:
    for manager in (engine.full, engine.sliding):
        manager.req_to_blocks["a"] = engine.take([1])
        manager.req_to_blocks["b"] = engine.take([2])
    engine.map()
    del engine.full.req_to_blocks["a"], engine.sliding.req_to_blocks["a"]
    engine.full.req_to_blocks["b"] = []
    draft = engine.map()

    assert draft.gone == ["a"]
    assert lists(draft) == [("b", 0, 0, [])]


def test_content_comes_with_a_full_block_and_goes_when_it_is_taken(
    engine: Engine,
) -> None:
    held = engine.full.req_to_blocks["a"] = engine.take([1, 2, 3])
    engine.fill(held, 0, 2)
    first = engine.map()
    engine.take([1, 9])
    second = engine.map()
    engine.fill(engine.take([2]), 0, 1)
    third = engine.map()

    assert (first.cached, first.uncached) == ([1, 2], [])
    assert (second.cached, second.uncached) == ([], [1])
    assert (third.cached, third.uncached) == ([2], [2])


def test_content_that_came_and_went_between_two_maps_was_given_up(
    engine: Engine,
) -> None:
    engine.fill(engine.take([5]), 0, 1)
    engine.take([5])
    draft = engine.map()

    assert (draft.cached, draft.uncached) == ([], [5])


def test_blocks_left_out_and_the_null_block_hold_no_content(engine: Engine) -> None:
    engine.fill(engine.pool.some(0, 4, 5, 6), 0, 4, [True, True, False, True])

    assert engine.map().cached == [4, 6]


def test_forgetting_gives_all_up_at_once(engine: Engine) -> None:
    engine.fill(engine.take([1, 2]), 0, 2)
    engine.map()
    engine.fill(engine.take([3]), 0, 1)
    forgotten = engine.tap.hooks["forgotten"].after
    assert forgotten is not None
    forgotten(engine.pool, (), False, 0, 0)
    forgotten(Pool(), (), True, 0, 0)
    assert not engine.map().cleared
    forgotten(engine.pool, (), True, 0, 0)
    engine.fill(engine.take([4]), 0, 1)
    draft = engine.map()

    assert draft.cleared
    assert (draft.cached, draft.uncached) == ([4], [1, 2, 3])


def test_a_whole_map_overlays_what_changed_since_the_scan(engine: Engine) -> None:
    for number in (1, 2, 3):
        engine.pool.blocks[number]._block_hash = b"content"
    held = engine.full.req_to_blocks["a"] = engine.take([3])
    scanned = engine.changes.scan()
    held += engine.take([7])
    engine.fill(held, 1, 2)
    engine.tap.take(5)
    moment = engine.tap.moments.popleft()
    engine.changes.since(moment)
    draft = engine.changes.whole(moment, scanned)

    assert draft.whole
    assert lists(draft) == [("a", 0, 0, [3, 7])]
    assert draft.cached == [1, 2, 7]
    engine.take([1])
    assert engine.map().uncached == [1]


def test_when_too_much_changed_nothing_is_claimed(engine: Engine) -> None:
    changes: deque[Change] = deque([FORGOTTEN] * MOST_CHANGES, maxlen=MOST_CHANGES)
    held: list[tuple[dict[str, list[Any]], Sequence[Any]]] = [({}, []), ({}, [])]

    assert engine.changes.since(PoolSnapshot(1, held, changes, 0)) is None


def test_another_pool_is_none_of_ours(engine: Engine) -> None:
    assert [group.number for group in engine.tap.groups] == [0, 1]
    assert [group.appends for group in engine.tap.groups] == [True, False]


def test_what_breaks_ends_the_map_and_says_so_once(engine: Engine) -> None:
    filled = engine.tap.hooks["filled"].after
    assert filled is not None
    filled(engine.pool, ("too", "few"), None, 0, 0)

    (said,) = engine.said
    assert said.startswith("the block map switched itself off: ValueError(")
    assert engine.tap.failed
    assert all(hook.after is None for hook in engine.tap.hooks.values())
    assert engine.tap.due_ns == NEVER


def test_where_names_moved_there_is_no_map() -> None:
    class Scheduler:
        kv_cache_manager = object()

    said: list[str] = []
    tap = BlockTap(said.append, said.append)

    assert not tap.born(Scheduler())
    assert said == [
        "Scheduler.kv_cache_manager.block_pool",
        "Scheduler.kv_cache_manager.coordinator.single_type_managers",
    ]


def test_a_slice_of_work_is_followed_by_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    now = iter(range(0, 10**9, 30_000))
    monkeypatch.setattr(block_changes, "monotonic_ns", lambda: next(now))
    monkeypatch.setattr("time.sleep", rests.append)
    breathe = block_changes.InterpreterYield()
    for _ in range(40):
        breathe()

    assert 8 < len(rests) < 14


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (64, 1),
        (4_096, 1),
        (4_097, 2),
        (8_191, 2),
        (8_192, 4),
        (16_384, 8),
        (50_000, 16),
    ],
)
def test_a_sampled_cache_keeps_two_thousand_blocks(blocks: int, expected: int) -> None:
    assert one_in(blocks) == expected
    assert expected == 1 or blocks // expected >= 2_048


class Ended:
    """A request as vLLM keeps it, with two blocks of equal content."""

    request_id = "r"
    num_prompt_tokens = 70
    num_computed_tokens, num_preemptions = 160, 0
    block_hashes = tuple(n.to_bytes(32, "big") for n in (5, 6, 5, *range(100, 164)))
    prompt_token_ids: Sequence[int] = (*range(32), *range(32), *range(6))
    cache_salt: str | None = None


def test_blocks_of_equal_content_have_equal_numbers() -> None:
    told = PromptHasher(100, 32, print).of(Ended())

    assert told is not None
    assert told[:2] == ("r", (2, 67, 32))
    numbers, places, each_is_one_in = told[2]
    assert numbers[0] == numbers[2] != numbers[1]
    assert (len(numbers), places, each_is_one_in) == (67, [], 1)


def test_of_large_pools_some_are_told_with_their_places() -> None:
    told = PromptHasher(16_384, 32, print).of(Ended())

    assert told is not None
    numbers, places, each_is_one_in = told[2]
    assert each_is_one_in == 8
    assert 0 < len(numbers) == len(places) < 67
    assert all(number % 8 == 0 for number in numbers)


def test_numbers_do_not_tell_what_vllm_calls_a_block() -> None:
    first, second = (PromptHasher(100, 32, print).of(Ended()) for _ in range(2))

    assert first is not None
    assert second is not None
    assert not {*first[2][0]} & {*second[2][0]}
    assert 5 not in first[2][0]


def test_a_request_that_never_began_tells_nothing() -> None:
    class Request:
        request_id = "r"
        num_prompt_tokens = 70
        num_computed_tokens = num_preemptions = 0
        block_hashes = (b"12345678",)
        prompt_token_ids = None  # it was given as embeddings
        cache_salt = None

    teller = PromptHasher(100, 32, print)

    assert teller.of(Request()) is None
    Request.num_preemptions = 1
    assert teller.of(Request()) is not None


def test_the_first_blocks_are_also_told_by_themselves() -> None:
    class Salted(Ended):
        cache_salt = "tenant a"

    teller = PromptHasher(16_384, 32, print)
    bare, salted = teller.of(Ended()), teller.of(Salted())

    assert bare is not None
    assert salted is not None
    plain, salt, prompt_tokens = bare[3]
    assert len(plain) == 2  # of each full block, however many others are left out
    assert plain[0] == plain[1]  # whatever stands before it
    assert (salt, prompt_tokens) == (None, 70)
    assert salted[3][0] == plain  # without the salt, which is told apart
    assert salted[3][1] not in {None, *plain, *bare[2][0]}


def test_no_more_than_the_first_32_blocks_are_told_by_themselves() -> None:
    class Long(Ended):
        num_prompt_tokens = 67 * 32
        prompt_token_ids = range(67 * 32)

    told = PromptHasher(100, 32, print).of(Long())

    assert told is not None
    assert len(set(told[3][0])) == 32


class TestMapAssembler:
    @pytest.fixture
    def ordinals(self) -> RequestOrdinals:
        return RequestOrdinals(1)

    def test_ordinals_are_those_of_steps_even_of_who_is_long_over(
        self, ordinals: RequestOrdinals
    ) -> None:
        assembler = MapAssembler(1, ordinals)
        expected = ordinals.new("a")
        first = told(assembler.map(draft(holders=["a"])))
        ordinals._known.clear()
        last = told(assembler.map(draft(gone=["a", "never told"])))

        assert first.holders == last.gone == [expected]
        assert (first.rank, first.sequence, last.sequence) == (1, 0, 1)
        assert first.groups == []

    def test_after_a_whole_map_only_those_in_it_hold_any(
        self, ordinals: RequestOrdinals
    ) -> None:
        assembler = MapAssembler(0, ordinals)
        assembler.map(draft(holders=["a"]))
        assembler.map(draft(holders=["b"], whole=True))

        assert told(assembler.map(draft(gone=["a"]))).gone == []


def draft(
    *, holders: Sequence[str] = (), gone: Sequence[str] = (), whole: bool = False
) -> MapDraft:
    made = MapDraft(t_ns=1, num_blocks=9, whole=whole, gone=list(gone))
    for holder in holders:
        made.tell(holder, 0, 0, [1])
    return made


def told(readings: list[AnyReading]) -> BlockMap:
    (found,) = readings
    assert isinstance(found, BlockMap)
    return found


@pytest.mark.timing
def test_a_moment_of_sixteen_thousand_blocks_costs_the_engine_little() -> None:
    engine = Engine()
    blocks = [Block(number) for number in range(16_384)]
    for holder in range(256):
        held = blocks[64 * holder : 64 * holder + 64]
        engine.full.req_to_blocks[f"request-{holder}"] = held
    costs_ns = []
    for number in range(200):
        engine.tap.take(number)
        costs_ns.append(engine.tap.moments.popleft().cost_ns)

    assert sorted(costs_ns)[100] < 100_000
