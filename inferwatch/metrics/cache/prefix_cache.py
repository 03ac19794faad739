"""Folds prefix cache events: cached blocks by hash, and which block follows which.

A full block is cached and stays until its room is needed. Events show what no counter
does: how long blocks live, how many prompts share a prefix, and how much was recomputed
because it had been evicted.
"""

from collections import Counter, OrderedDict
from dataclasses import field
from itertools import islice
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import KvCacheEvents, Vantage
from inferwatch.metrics.number import NOW, Better, Number, Unit, piece
from inferwatch.metrics.series.samples import Counters, Samples
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.window import Quantiles, Window
from inferwatch.metrics.steps.flow import LEAST_NS


@piece("prefix_cache", Vantage.ENGINE)
class PrefixCache:
    """The prefix cache according to its events; counts are of the window."""

    ranks: Annotated[
        int,
        Number(
            "ranks",
            "Caches",
            "Ranks that tell of their blocks, each with a cache of its own.",
            span="session",
        ),
    ] = 1
    blocks: Annotated[
        int,
        Number(
            "cached",
            "Cached blocks",
            "Full blocks that the prefix cache holds, in use or idle, as its events "
            "tell. With ~ where events are missing: there may be more, or fewer.",
            unit=Unit.BLOCKS,
            span=NOW,
        ),
    ] = 0
    block_tokens: Annotated[
        int | None,
        Number(
            "tok/block",
            "Block size",
            "Tokens that one cached block holds.",
            unit=Unit.TOKENS,
            span="session",
        ),
    ] = None
    stored: Annotated[
        int,
        Number(
            "stored",
            "Stored blocks",
            "Blocks that the prefix cache took in.",
            unit=Unit.BLOCKS,
        ),
    ] = 0
    evicted: Annotated[
        int,
        Number(
            "evicted",
            "Evicted blocks",
            "Blocks that the prefix cache gave up for their room.",
            unit=Unit.BLOCKS,
            better=Better.LOWER,
        ),
    ] = 0
    stored_again: Annotated[
        int,
        Number(
            "again",
            "Stored again",
            "Stored blocks that had been evicted before: with more room each would "
            "have been a hit.",
            unit=Unit.BLOCKS,
            better=Better.LOWER,
        ),
    ] = 0
    stored_per_s: Annotated[
        float | None,
        Number(
            "stored/s",
            "Stored blocks per second",
            "Blocks that the prefix cache took in, per second.",
            unit=Unit.PER_SECOND,
        ),
    ] = None
    evicted_per_s: Annotated[
        float | None,
        Number(
            "evicted/s",
            "Evicted blocks per second",
            "Blocks that the prefix cache gave up for their room, per second.",
            unit=Unit.PER_SECOND,
            better=Better.LOWER,
        ),
    ] = None
    lifetime_s: Annotated[
        Quantiles,
        Number(
            "life",
            "Lifetime",
            "How long evicted blocks had been cached.",
            unit=Unit.SECONDS,
            better=Better.HIGHER,
        ),
    ] = field(default_factory=Quantiles)
    beginnings: Annotated[
        int,
        Number(
            "beginnings",
            "Beginnings",
            "Cached blocks that prompts begin with: as many trees of prefixes.",
            unit=Unit.BLOCKS,
            span=NOW,
        ),
    ] = 0
    branches: Annotated[
        int,
        Number(
            "branches",
            "Branches",
            "Cached blocks after which prompts go on in different ways: what stands "
            "before them is shared.",
            unit=Unit.BLOCKS,
            span=NOW,
        ),
    ] = 0
    deepest: Annotated[
        int,
        Number(
            "deepest",
            "Deepest prefix",
            "The most cached blocks that follow one another.",
            unit=Unit.BLOCKS,
            span=NOW,
        ),
    ] = 0
    missed: Annotated[
        int,
        Number(
            "missed",
            "Missed batches",
            "Batches of cache events that never arrived, those before we came "
            "included. A replay_endpoint in --kv-events-config brings them back.",
            better=Better.LOWER,
            span="session",
        ),
    ] = 0
    partial: Annotated[
        bool,
        Number(
            "partial",
            "Partial",
            "Batches of events are missing, or more blocks came than are followed: "
            "what is cached now may be more or less.",
            span=NOW,
        ),
    ] = False
    tiers: Annotated[
        dict[str, int],
        Number(
            "tiers",
            "Blocks in other tiers",
            "Blocks that lie in other tiers than the GPU's cache, such as the host's "
            "memory or a disk, as the events of a connector name them. They are in no "
            "other number.",
            unit=Unit.BLOCKS,
            span=NOW,
        ),
    ] = field(default_factory=dict)
    tiers_partial: Annotated[
        bool,
        Number(
            "tiers partial",
            "Other tiers partial",
            "Batches of events are missing, or more blocks or tiers came than are "
            "followed: other tiers may hold more or fewer blocks.",
            span=NOW,
        ),
    ] = False


MOST_RANKS = 512
MOST_BLOCKS = 1 << 18
"""Largest number of blocks followed, over all ranks; more are only counted. Other tiers
have as much room again."""
MOST_TIERS = 8
"""Largest number of other tiers followed per rank, and shown."""
MOST_EVICTED = 1 << 17
"""Number of evicted blocks remembered, to recognize them when stored again."""


class CachedBlock(msgspec.Struct, array_like=True, gc=False):
    """A block in the prefix cache."""

    t_ns: int
    """When it was cached."""
    parent: int | None
    depth: int
    """Position in its prompt, in blocks from 1, as far as its parents are known."""


class SavedCache(msgspec.Struct, array_like=True):
    """A RankCache as checkpoints keep it."""

    source: str
    rank: int
    began_ns: int
    sequence: int
    missed: int
    partial: bool
    block_tokens: int | None
    hashes: bytes
    parents: bytes
    has_parent: bytes
    times: bytes
    depths: bytes
    tiers_partial: bool = False


class SavedTier(msgspec.Struct, array_like=True):
    """The blocks of one tier other than the GPU's cache, as checkpoints keep them."""

    source: str
    rank: int
    tier: str
    blocks: list[int]


class SavedCaches(msgspec.Struct, array_like=True):
    """PrefixCaches as checkpoints keep them."""

    ranks: list[int]
    evicted: int
    """Number of the part with the evicted blocks."""
    tiers: list[int] = []


class RankCache:
    """The cached blocks of one rank, as a forest of prefixes."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.missed = 0
        self.partial = False
        """Whether events were missed, so the blocks may be incomplete or stale."""
        self.tiers: dict[str, set[int]] = {}
        """Blocks in other tiers."""
        self.tiers_partial = False
        self.block_tokens: int | None = None
        self.sequence = -1
        self.blocks: dict[int, CachedBlock] = {}
        self.branches = 0
        """Blocks that several other blocks follow."""
        self.depths: Counter[int] = Counter()
        """Number of blocks by depth."""
        self._followers: dict[int, int] = {}

    def remove(self, block: int) -> CachedBlock | None:
        """Remove a block and return it; None where it is unknown."""
        gone = self.blocks.pop(block, None)
        if gone is not None:
            self._count(gone, -1)
        return gone

    def store(self, block: int, parent: int | None, t_ns: int) -> None:
        before = None if parent is None else self.blocks.get(parent)
        depth = before.depth + 1 if before is not None else 1
        self.put(block, CachedBlock(t_ns, parent, depth))

    def put(self, block: int, cached: CachedBlock) -> None:
        self.blocks[block] = cached
        self._count(cached, 1)

    def clear(self) -> None:
        self.blocks.clear()
        self._followers.clear()
        self.depths.clear()
        self.branches = 0
        self.partial = False

    def _count(self, cached: CachedBlock, by: int) -> None:
        self.depths[cached.depth] += by
        if not self.depths[cached.depth]:
            del self.depths[cached.depth]
        if cached.parent is None:
            return
        followers = self._followers.get(cached.parent, 0) + by
        self._followers[cached.parent] = followers
        if not followers:
            del self._followers[cached.parent]
        self.branches += by * (followers == 1 + (by > 0))


class PrefixCaches:
    """The prefix caches of all ranks that publish events, with counters over time."""

    def __init__(self) -> None:
        self.counters = Counters("stored", "evicted", "again")
        self.lifetimes = Samples()
        self._ranks: dict[tuple[str, int], RankCache] = {}
        self._evicted: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        """Source, rank and hash of the latest evicted blocks."""
        self._blocks = self._tier_blocks = 0

    def take(self, events: KvCacheEvents) -> None:
        """Apply the events of one step: cleared, then evicted, then stored."""
        key = events.source, events.rank
        cache = self._ranks.get(key)
        if cache is None:
            if len(self._ranks) >= MOST_RANKS:
                return
            cache = self._ranks[key] = RankCache(events.t_ns)
        if events.medium is not None:
            self._take_tier(cache, events, events.medium)
            return
        if events.sequence < cache.sequence:
            self._forget_tiers(cache)
        if events.cleared:
            self._blocks -= len(cache.blocks)
            cache.clear()
        if events.missed:
            cache.missed += events.missed
            cache.partial = cache.tiers_partial = True
        cache.sequence = events.sequence
        cache.block_tokens = events.block_tokens or cache.block_tokens
        evicted = self._evict(cache, events)
        stored, again = self._store(cache, events)
        if evicted or stored:
            self.counters.add(events.t_ns, stored, evicted, again)

    def _forget_tiers(self, cache: RankCache) -> None:
        """Forget the tiers of a rank that was restarted, which tells of them anew."""
        self._tier_blocks -= sum(map(len, cache.tiers.values()))
        cache.tiers.clear()
        cache.tiers_partial = False

    def _take_tier(self, cache: RankCache, events: KvCacheEvents, tier: str) -> None:
        """Apply events of another tier, whose blocks are counted alone."""
        if tier not in cache.tiers and len(cache.tiers) >= MOST_TIERS:
            cache.tiers_partial = True
            return
        blocks = cache.tiers.setdefault(tier, set())
        before = len(blocks)
        blocks.difference_update(events.removed)
        room = max(MOST_BLOCKS - self._tier_blocks + before - len(blocks), 0)
        new = set(events.stored) - blocks
        cache.tiers_partial |= len(new) > room
        blocks.update(islice(new, room))
        self._tier_blocks += len(blocks) - before

    def _evict(self, cache: RankCache, events: KvCacheEvents) -> int:
        for block in events.removed:
            gone = cache.remove(block)
            if gone is not None:
                self._blocks -= 1
                self.lifetimes.add(events.t_ns, max(events.t_ns - gone.t_ns, 0))
            self._evicted[events.source, events.rank, block] = None
        while len(self._evicted) > MOST_EVICTED:
            self._evicted.popitem(last=False)
        return len(events.removed)

    def _store(self, cache: RankCache, events: KvCacheEvents) -> tuple[int, int]:
        """Store blocks; return how many were new, and how many were evicted earlier."""
        fresh = again = 0
        for block, parent in zip(events.stored, events.parents, strict=False):
            if block in cache.blocks:
                continue  # already cached
            key = (events.source, events.rank, block)
            again += key in self._evicted
            self._evicted.pop(key, None)
            fresh += 1
            if self._blocks >= MOST_BLOCKS:
                cache.partial = True
                continue
            cache.store(block, parent, events.t_ns)
            self._blocks += 1
        return fresh, again

    def shown(self, now_ns: int, window: Window) -> PrefixCache | None:
        """Return the caches' state and the window's counts; None without events."""
        caches = self._ranks.values()
        if not caches:
            return None
        counted = self.counters.over(now_ns, window).sums
        began_ns = min(cache.began_ns for cache in caches)
        span_ns = now_ns - began_ns
        if window.value is not None:
            span_ns = min(span_ns, window.value)
        per_s = NS_PER_S / span_ns if span_ns >= LEAST_NS else None
        tokens = {cache.block_tokens for cache in caches} - {None}
        tiers: Counter[str] = Counter()
        for cache in caches:
            tiers.update({tier: len(blocks) for tier, blocks in cache.tiers.items()})
        return PrefixCache(
            ranks=len(caches),
            blocks=sum(len(cache.blocks) for cache in caches),
            block_tokens=tokens.pop() if len(tokens) == 1 else None,
            stored=counted["stored"],
            evicted=counted["evicted"],
            stored_again=counted["again"],
            stored_per_s=None if per_s is None else counted["stored"] * per_s,
            evicted_per_s=None if per_s is None else counted["evicted"] * per_s,
            lifetime_s=self.lifetimes.quantiles(now_ns, window),
            beginnings=sum(cache.depths[1] for cache in caches),
            branches=sum(cache.branches for cache in caches),
            deepest=max(max(cache.depths, default=0) for cache in caches),
            missed=sum(cache.missed for cache in caches),
            partial=any(cache.partial for cache in caches),
            tiers=dict(sorted(tiers.most_common(MOST_TIERS))),
            tiers_partial=len(tiers) > MOST_TIERS
            or any(cache.tiers_partial for cache in caches),
        )

    def saved(self, parts: Parts) -> SavedCaches:
        """Return the state for a checkpoint, without counters and samples."""
        ranks = [
            parts.add(_saved(source, rank, cache), lasts=False)
            for (source, rank), cache in self._ranks.items()
        ]
        evicted = parts.add(list(self._evicted), lasts=False)
        tiers = [
            parts.add(SavedTier(*key, tier, sorted(blocks)), lasts=False)
            for key, cache in self._ranks.items()
            for tier, blocks in cache.tiers.items()
        ]
        return SavedCaches(ranks=ranks, evicted=evicted, tiers=tiers)

    def restore(self, saved: SavedCaches, parts: WrittenParts) -> None:
        for number in saved.ranks:
            state = parts.get(number, SavedCache)
            restored = self._ranks[state.source, state.rank] = _restored(state)
            self._blocks += len(restored.blocks)
        for number in saved.tiers:
            tier = parts.get(number, SavedTier)
            cache = self._ranks.get((tier.source, tier.rank))
            if cache is None:
                raise msgspec.ValidationError("this tier is of no rank that was saved")
            cache.tiers[tier.tier] = set(tier.blocks)
            self._tier_blocks += len(tier.blocks)
        evicted = parts.get(saved.evicted, list[tuple[str, int, int]])
        self._evicted = OrderedDict.fromkeys(evicted)


def _saved(source: str, rank: int, cache: RankCache) -> SavedCache:
    blocks = cache.blocks.values()
    return SavedCache(
        source=source,
        rank=rank,
        began_ns=cache.began_ns,
        sequence=cache.sequence,
        missed=cache.missed,
        partial=cache.partial,
        block_tokens=cache.block_tokens,
        hashes=np.array([*cache.blocks], np.uint64).tobytes(),
        parents=np.array([each.parent or 0 for each in blocks], np.uint64).tobytes(),
        has_parent=bytes(each.parent is not None for each in blocks),
        times=np.array([each.t_ns for each in blocks], np.int64).tobytes(),
        depths=np.array([each.depth for each in blocks], np.int64).tobytes(),
        tiers_partial=cache.tiers_partial,
    )


def _restored(saved: SavedCache) -> RankCache:
    cache = RankCache(saved.began_ns)
    cache.sequence, cache.missed = saved.sequence, saved.missed
    cache.partial, cache.block_tokens = saved.partial, saved.block_tokens
    cache.tiers_partial = saved.tiers_partial
    columns = (
        _ints(saved.hashes, np.uint64),
        _ints(saved.parents, np.uint64),
        list(saved.has_parent),
        _ints(saved.times, np.int64),
        _ints(saved.depths, np.int64),
    )
    if len({len(column) for column in columns}) > 1:
        raise msgspec.ValidationError("these are not the blocks that were saved")
    for block, parent, has_parent, t_ns, depth in zip(*columns, strict=True):
        cache.put(block, CachedBlock(t_ns, parent if has_parent else None, depth))
    return cache


def _ints(data: bytes, kind: npt.DTypeLike) -> list[int]:
    try:
        values: list[int] = np.frombuffer(data, kind).tolist()
    except ValueError as error:
        raise msgspec.ValidationError("these are not whole numbers") from error
    return values
