"""Scripted KV pools: who holds which block, and the numbers that follow from it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from inferwatch.metrics.cache.memory import (
    BlockPicture,
    BlockState,
    HitPoint,
    Holder,
    Memory,
    Room,
)
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import KvState
from tests.inferwatch.ui.conftest import BLOCKS, NOW_NS, ScriptedFeed, name

BLOCK_TOKENS = 16
SOURCE = "demo"


def pool(
    count: int,
    held: Sequence[Sequence[int]] = (),
    cached: Sequence[int] = (),
    *,
    rank: int = 0,
    t_ns: int = NOW_NS - 80_000_000,
    source: str = SOURCE,
) -> BlockPicture:
    """A picture of so many blocks; block 0 is the null block, as vLLM's is."""
    references = [0] * count
    for blocks in held:
        for block in set(blocks):
            references[block] += 1
    states = [
        BlockState.SHARED
        if held_by > 1
        else BlockState.PRIVATE
        if held_by
        else BlockState.FREE
        for held_by in references
    ]
    for block in cached:
        states[block] = BlockState.CACHED
    states[0] = BlockState.NULL
    return BlockPicture(
        source=source,
        rank=rank,
        t_ns=t_ns,
        states=bytes(states),
        references=bytes(min(each, 255) for each in references),
        holders=tuple(400 - i for i in range(len(held))),
        held=tuple(map(tuple, held)),
        cost_us=41.0,
    )


def busy(
    count: int,
    requests: int = 23,
    used: float = 0.6,
    rank: int = 0,
    t_ns: int = NOW_NS - 80_000_000,
) -> BlockPicture:
    """Prompts with a few shared beginnings in a pool that has been in use for long.

    New blocks come from where old ones went: runs of blocks, seldom whole requests.
    """
    chance = Random(11 + rank)
    free = [
        block
        for start in _shuffled(range(1, count, 7), chance)
        for block in range(start, min(start + 7, count))
    ]

    def take(many: int) -> list[int]:
        return [free.pop() for _ in range(min(many, len(free)))]

    heads = [take(max(count // size, 1)) for size in (40, 60, 90)]
    own = max(int(count * used / max(requests, 1)), 1)
    held = []
    for i in range(requests):
        head = heads[i % 5] if i % 5 < 3 else []
        held.append([*head, *take(int(own * (0.3 + 1.1 * chance.random())))])
    used_blocks = {block for blocks in held for block in blocks}
    idle = [block for block in free if block % 5 < 3 and block not in used_blocks]
    return pool(count, held, idle, rank=rank, t_ns=t_ns)


def _shuffled(blocks: Sequence[int], chance: Random) -> list[int]:
    each = list(blocks)
    chance.shuffle(each)
    return each


def memory_of(
    maps: Sequence[BlockPicture],
    names: Callable[[int], str] = lambda i: f"chatcmpl-{name(i)}",
    **more: object,
) -> Memory:
    """The numbers that follow from these maps, and some that no map tells."""
    holders = [
        Holder(
            key=f"{each.source}/cmpl-{ordinal}",
            name=names(ordinal),
            ordinal=ordinal,
            blocks=len(blocks),
            private_blocks=sum(
                each.states[block] == BlockState.PRIVATE for block in blocks
            ),
            shared_blocks=sum(
                each.states[block] == BlockState.SHARED for block in blocks
            ),
            tokens=len(blocks) * BLOCK_TOKENS - ordinal % BLOCK_TOKENS,
            waste_tokens=ordinal % BLOCK_TOKENS,
            age_s=0.21 * (401 - ordinal),
        )
        for each in maps
        for ordinal, blocks in zip(each.holders, each.held, strict=True)
    ]
    holders.sort(key=lambda each: -each.blocks)
    free, cached, private, shared = (
        sum(each.counts[place] for each in maps) for place in range(4)
    )
    waste = sum(each.waste_tokens or 0 for each in holders)
    saved = sum(
        (each.references[block] - 1) * BLOCK_TOKENS
        for each in maps
        for block in range(len(each.states))
        if each.references[block] > 1
    )
    made = Memory(
        map_age_s=0.08,
        private_blocks=private,
        shared_blocks=shared,
        holders=tuple(holders),
        waste_tokens=waste,
        waste_share=waste / max((private + shared) * BLOCK_TOKENS, 1),
        tokens_saved=saved,
        growth_blocks_per_s=12.0,
        full_in_s=free / 12.0,
        evicted=312,
        evicted_per_s=5.2,
        eviction_age_p50_s=8.4,
        eviction_age_max_s=41.0,
        hit_rate=0.42,
        hit_rate_lifetime=0.48,
        hit_curve=(
            HitPoint(blocks=free, factor=1.0, hit_rate=0.48),
            HitPoint(blocks=2 * free, factor=2.0, hit_rate=0.61),
            HitPoint(blocks=4 * free, factor=4.0, hit_rate=0.66),
            HitPoint(blocks=0, factor=None, hit_rate=0.71),
        ),
        hit_curve_blocks=61_204,
        room=Room(
            requests=(free + cached) // 38,
            idle_blocks=free + cached,
            tokens_per_request=601,
            blocks_per_request=38,
            n=539,
        ),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def mapped(
    maps: Sequence[BlockPicture], memory: Memory | None = None
) -> Callable[[Snapshot], Snapshot]:
    """Changes what is shown to what these maps say."""
    told = memory or memory_of(maps)
    free, cached, private, shared = (
        sum(each.counts[place] for each in maps) for place in range(4)
    )
    total = free + cached + private + shared

    def change(made: Snapshot) -> Snapshot:
        kv = KvState(
            total_blocks=total,
            used_blocks=private + shared,
            cached_blocks=cached,
            free_blocks=free,
            peak_used_blocks=max(private + shared, int(total * 0.87)),
            block_tokens=BLOCK_TOKENS,
            preemptions=4,
            recomputed_tokens=1_284,
            prefix_queries=127_200,
            prefix_hits=53_424,
        )
        return replace(
            made,
            kv=kv,
            block_maps=tuple(maps),
            memory=told,
            timeline=_scaled(made.timeline, total / BLOCKS),
        )

    return change


def _scaled(line: Timeline, by: float) -> Timeline:
    """Its blocks, of a pool of another size."""

    def column(blocks: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return tuple(None if each is None else int(each * by) for each in blocks)

    return replace(
        line,
        kv_used_blocks=column(line.kv_used_blocks),
        kv_cached_blocks=column(line.kv_cached_blocks),
        kv_free_blocks=column(line.kv_free_blocks),
    )


def feed_of(*maps: BlockPicture, memory: Memory | None = None) -> ScriptedFeed:
    """A session whose probe tells these maps."""
    return ScriptedFeed(change=mapped(maps, memory))
