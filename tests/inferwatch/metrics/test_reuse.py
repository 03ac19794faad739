"""Reuse distances tell what caches of other sizes would have hit."""

import random
from collections import OrderedDict
from collections.abc import Iterable
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

from collectors.contract.readings import EngineInfo, Note, NoteKind, PromptBlocks
from inferwatch.metrics.cache import reuse
from inferwatch.metrics.cache.reuse import LruOrder, Reuse
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.inferwatch.metrics.drawn import drawn
from tests.inferwatch.metrics.scripted_pool import Pool, shared_load

S = 1_000_000_000
Prompt = tuple[list[int], list[int]]
"""Hashes of its full blocks, and of those of its output."""


def told(prompt: Prompt, one_in: int = 1) -> PromptBlocks:
    hashes = [*prompt[0], *prompt[1]]
    picked = [(i, each) for i, each in enumerate(hashes) if each % one_in == 0]
    return PromptBlocks(
        source="engine-1",
        t_ns=S,
        ordinal=1,
        prompt_blocks=len(prompt[0]),
        total_blocks=len(hashes),
        hashes=[each for _, each in picked],
        places=[place for place, _ in picked] if one_in > 1 else [],
        one_in=one_in,
        block_tokens=16,
    )


def rates(prompts: Iterable[Prompt], pool: int, one_in: int = 1) -> list[float]:
    counted = Reuse()
    for prompt in prompts:
        counted.take(told(prompt, one_in), pool, None)
    return [point.hit_rate for point in counted.curve(pool)]


def by_simulation(prompts: Iterable[Prompt], size: int | None) -> float:
    """What a cache really hits that gives up what was least recently used."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = looked_up = 0
    for blocks, output in prompts:
        looked_up += len(blocks)
        for block in blocks:
            if block not in cache:
                break
            hits += 1
        for block in reversed([*blocks, *output]):
            cache.pop(block, None)
            cache[block] = None
        while size is not None and len(cache) > size:
            cache.popitem(last=False)
    return hits / looked_up if looked_up else 0.0


def conversation(seed: int, count: int, spread: int = 1) -> list[Prompt]:
    """Prompts that share their beginnings, and go on where others ended."""
    chance, prompts = random.Random(seed), list[Prompt]()

    def fresh(most: int) -> list[int]:
        blocks = chance.randint(0, most)
        return [chance.getrandbits(60) * spread for _ in range(blocks)]

    begins = [fresh(12) for _ in range(6)]
    for _ in range(count):
        before = chance.choice(begins)
        if prompts and chance.random() < 0.4:
            past = prompts[-chance.randint(1, min(40, len(prompts)))]
            before = [*past[0], *past[1]]
        kept = before[: chance.randint(0, len(before))][:60]
        prompts.append(([*kept, *fresh(8)], fresh(4)))
    return prompts


POOLS = (1, 3, 9, 20, 50, 100, 200, 400, 700)
QUICK = {(3, 1), (20, 1), (100, 1), (700, 1)}


@pytest.mark.parametrize(
    ("pool", "seed"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.soak)
        for each in product(POOLS, range(1, 11))
    ],
)
def test_the_curve_is_what_caches_of_each_size_hit(pool: int, seed: int) -> None:
    prompts = conversation(1_000 * seed + pool, 600)
    sizes = [pool, 2 * pool, 4 * pool, 8 * pool, None]
    expected = [by_simulation(prompts, size) for size in sizes]

    assert rates(prompts, pool) == pytest.approx(expected, abs=1e-9)
    assert expected[0] < expected[-1]


blocks = st.lists(st.integers(0, 30), max_size=9, unique=True)


@drawn(60, 300, st.lists(st.tuples(blocks, blocks), max_size=30), st.integers(1, 12))
def test_any_prompts_hit_as_in_a_simulation(prompts: list[Prompt], pool: int) -> None:
    chained = [_chained(prompt) for prompt in prompts]
    if not any(prompt for prompt, _ in chained):
        assert rates(chained, pool) == []
        return
    sizes = [pool, 2 * pool, 4 * pool, 8 * pool, None]
    expected = [by_simulation(chained, size) for size in sizes]
    assert rates(chained, pool) == pytest.approx(expected, abs=1e-9)


def _chained(prompt: Prompt) -> Prompt:
    """A block's hash stands for all before it, too."""
    hashes, last = list[int](), 7
    for each in (*prompt[0], *prompt[1]):
        last = hash((last, each)) & ((1 << 63) - 1)
        hashes.append(last)
    return hashes[: len(prompt[0])], hashes[len(prompt[0]) :]


def test_a_block_is_found_only_if_all_before_it_are() -> None:
    first: Prompt = [1, 2, 3], []
    second: Prompt = [9, 2, 3], []
    assert rates([first, second], 100)[0] == 0
    assert rates([first, first], 100)[0] == 0.5


@pytest.fixture(scope="module")
def large() -> tuple[list[Prompt], int, list[float]]:
    """Many prompts, a pool, and what it hits, as do twice, 4 and 8 times it, and all.

    They are made and simulated once, and only read.
    """
    prompts = conversation(5, 12_000)
    pool = 4_000
    sizes = (pool, 2 * pool, 4 * pool, 8 * pool, None)
    return prompts, pool, [by_simulation(prompts, size) for size in sizes]


def test_a_sample_of_the_hashes_estimates_the_same(
    large: tuple[list[Prompt], int, list[float]],
) -> None:
    prompts, pool, exact = large

    assert rates(prompts, pool, one_in=8)[:3] == pytest.approx(exact[:3], abs=0.03)


def test_of_a_pool_too_large_to_follow_a_share_is_followed(
    large: tuple[list[Prompt], int, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "MOST_TRACKED", 4_096)
    monkeypatch.setattr(reuse, "MOST_SEEN", 4_096)
    prompts, pool, exact = large

    assert rates(prompts, pool) == pytest.approx(exact, abs=0.05)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    counted = Reuse()
    for _ in range(2):
        counted.take(told(([1, 2], [])), 100, 32)
    assert counted.curve(100)[0].hit_rate == 1 / 4


def test_tokens_after_the_last_full_block_are_looked_up_in_vain() -> None:
    counted = Reuse()
    for _ in range(2):
        counted.take(told(([1, 2], [])), 100, 40)
    assert counted.curve(100)[0].hit_rate == pytest.approx(2 * 16 / 80)


def test_a_cache_that_was_emptied_hits_nothing() -> None:
    counted = Reuse()
    counted.take(told(([1, 2], [])), 100, None)
    counted.clear("engine-1", 0)
    counted.take(told(([1, 2], [])), 100, None)
    *finite, without_limit = counted.curve(100)
    assert {point.hit_rate for point in finite} == {0}
    assert without_limit.hit_rate == 0.5


@pytest.mark.parametrize(
    "nonsense",
    [
        {"prompt_blocks": 9},
        {"prompt_blocks": -1},
        {"hashes": [1]},
        {"hashes": [1, 1 << 64]},
        {"hashes": [1, -1]},
        {"places": [0]},
        {"places": [0, 2]},
        {"places": [-1, 1]},
        {"one_in": 0},
        {"one_in": 1 << 70},
        {"block_tokens": 0},
        {"total_blocks": 1 << 60},
    ],
    ids=str,
)
def test_what_cannot_be_counts_for_nothing(nonsense: dict[str, object]) -> None:
    counted = Reuse()
    right = told(([1, 2], []))
    counted.take(msgspec.structs.replace(right, **nonsense), 100, None)
    assert counted.curve(100) == ()


@pytest.mark.parametrize("pool", [-1, 0, 1 << 60])
def test_a_pool_that_cannot_be_is_none(pool: int) -> None:
    counted = Reuse()
    counted.take(told(([1, 2], [])), pool, None)
    assert counted.curve(100) == ()


def test_hashes_that_come_twice_in_a_request_are_one() -> None:
    counted = Reuse()
    for _ in range(300):
        counted.take(told(([5, 5, 6], [5])), 2, None)
    assert counted.curve(2)[0].hit_rate > 0.9


class PlainOrder:
    """The same, as anyone would write it."""

    def __init__(self, most: int) -> None:
        self.keys: list[int] = []
        self._most = most

    def distances(self, keys: list[int]) -> list[int]:
        latest = self.keys[::-1]
        return [latest.index(key) if key in latest else -1 for key in keys]

    def use(self, keys: list[int]) -> None:
        for key in keys:
            if key in self.keys:
                self.keys.remove(key)
            self.keys.append(key)
        self.keys = self.keys[-self._most :]


@drawn(
    40,
    200,
    st.integers(1, 1_500),
    st.lists(
        st.tuples(st.integers(0, 3_000), st.integers(0, 1_200), st.integers(1, 9)),
        max_size=12,
    ),
)
def test_the_order_of_use_is_kept_in_bounds(
    most: int, uses: list[tuple[int, int, int]]
) -> None:
    order, plain = LruOrder(most), PlainOrder(most)
    for first, count, stride in uses:
        keys = list(range(first, first + count * stride, stride))
        picked = keys[:: max(len(keys) // 20, 1)]
        assert order.distances(picked).tolist() == plain.distances(picked)
        order.use(keys)
        plain.use(keys)
        assert order.keys.tolist() == plain.keys


def test_what_was_saved_goes_on_as_if_nothing_had_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reuse, "MOST_SEEN", 512)
    prompts = conversation(9, 900)
    counted, plain, parts = Reuse(), Reuse(), Parts()
    for number, prompt in enumerate(prompts):
        counted.take(told(prompt), 300, None)
        plain.take(told(prompt), 300, None)
        if number % 100 == 7:
            parts = Parts()
            saved = counted.saved(parts)
            packed = msgspec.msgpack.encode(saved)
            counted = Reuse()
            counted.restore(
                msgspec.msgpack.decode(packed, type=type(saved)),
                WrittenParts(parts.lasting, parts.passing),
            )
    assert counted.curve(300) == plain.curve(300)
    assert sum(map(len, parts.lasting + parts.passing)) < 4 * (8 * 300 + 512) + 200


def test_an_engine_tells_its_curve_until_another_one_is_there() -> None:
    model = Model()
    info = EngineInfo(
        source="engine-1",
        t_ns=0,
        pid=1,
        model="m",
        vllm_version="1",
        num_kv_blocks=50,
        kv_block_tokens=16,
    )
    lost = Note(t_ns=S, kind=NoteKind.LOST, text="gone", source="engine-1")
    for reading in (info, told(([1], [])), told(([1], [])), lost, told(([1], []))):
        model.fold(reading)

    memory = model.snapshot(2 * S, SnapshotQuery(Window.MINUTE)).memory

    assert memory is not None
    assert [point.blocks for point in memory.hit_curve] == [50, 100, 200, 400, 0]
    assert memory.hit_curve_blocks == 3
    assert memory.hit_curve[0].hit_rate == pytest.approx(1 / 3)


def test_many_ranks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "MOST_RANKS", 2)
    counted = Reuse()
    for rank in range(4):
        each = msgspec.structs.replace(told(([1], [])), rank=rank)
        counted.take(each, 10, None)
    assert counted.blocks == 2


def test_keys_of_hashes_with_a_common_divisor_differ() -> None:
    keys = reuse._keys([each << 20 for each in range(4_096)])
    assert len(set(keys.tolist())) == 4_096
    low = np.bincount(keys & 15, minlength=16)
    assert low.min() > 150


def test_a_pool_that_is_really_larger_hits_what_was_foretold() -> None:
    """With requests that overlap and hold their blocks, as an engine's do."""
    really, foretold = [], list[float]()
    for factor in (1, 2, 4, 8):
        pool, counted = Pool(400 * factor), Reuse()
        load = shared_load(pool, 30, per_s=16, most=8, prompt=(3, 30), prefixes=40)
        for reading in load:
            if isinstance(reading, PromptBlocks):
                counted.take(reading, pool.num_blocks - 1, None)
        really.append(pool.hits / pool.looked_up)
        curve = counted.curve(pool.num_blocks - 1)
        foretold = foretold or [point.hit_rate for point in curve]

    assert foretold[:4] == pytest.approx(really, abs=0.02)
    assert really[-1] > really[0] + 0.15


numbers = st.integers(-2, 9) | st.sampled_from([1 << 31, (1 << 63) - 1, 1 << 63])


@drawn(
    40,
    200,
    st.lists(
        st.builds(
            PromptBlocks,
            source=st.just("engine-1"),
            t_ns=numbers,
            ordinal=numbers,
            prompt_blocks=numbers,
            total_blocks=numbers,
            hashes=st.lists(numbers, max_size=6),
            places=st.lists(numbers, max_size=6),
            one_in=numbers,
            block_tokens=st.none() | numbers,
        ),
        max_size=8,
    ),
    st.none() | numbers,
)
def test_nonsense_never_raises(prompts: list[PromptBlocks], pool: int | None) -> None:
    counted = Reuse()
    for prompt in prompts:
        fits = [
            prompt,
            msgspec.structs.replace(prompt, total_blocks=len(prompt.hashes)),
        ]
        for each in fits:
            counted.take(each, pool, prompt.prompt_blocks)
    assert all(0 <= point.hit_rate <= 1 for point in counted.curve(pool))
    counted.saved(Parts())
