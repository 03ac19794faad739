"""Folds block maps: which request holds which block of each rank, and what was evicted.

A map of changes applies only to the map before it. Where one is missing or contradicts
itself, no picture is shown until a whole map comes.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt

from collectors.contract.readings import BlockMap
from inferwatch.metrics.cache.memory import BlockPicture, BlockState
from inferwatch.metrics.series.saving import Parts, WrittenParts

MOST_RANKS = 512
MOST_BLOCKS = 1 << 20
"""Largest total of blocks in all pools; above it there is no picture."""
MOST_STANDING = 1 << 22
"""Largest total length of the holders' block lists of a rank.

A block that several requests share counts once for each.
"""
NULL_BLOCK = 0
UNKNOWN_NS = -1
LAST_NS = 1 << 62
EACH_MOST = 255
"""Highest reference count of a block in a picture."""

Refs = npt.NDArray[np.uint32]
Share = tuple[int, int, int]
"""A holder's ordinal, its blocks, and how many of these others also hold."""
Ages = Counter[int | None]
"""Number of blocks by time since last use, in nanoseconds; None where unknown."""
OnEvicted = Callable[[int, Ages], None]
"""Called with the time of a map and the ages of the blocks evicted before it."""


class ContradictionError(ValueError):
    """A block map contradicts the one before it, or itself."""


class SavedBlocks(msgspec.Struct, array_like=True):
    """A RankBlocks as checkpoints keep it."""

    source: str
    rank: int
    sequence: int
    t_ns: int
    cost_ns: int | None
    num_blocks: int
    doubted: bool
    lists: list[tuple[int, int, list[int]]]
    """Each holder with a KV cache group and its blocks in that group."""
    cached: bytes
    """One bit per block."""
    idle_ns: bytes
    """When each cached, idle block was last used."""


class RankBlocks:
    """The block pool of one rank as of its latest map."""

    def __init__(self) -> None:
        self.t_ns = 0
        self.num_blocks = 0
        """Blocks in the pool; 0 while there is no picture."""
        self.doubted = False
        """Whether messages were lost, so that a map may be missing."""
        self._sequence = -1
        self._cost_ns: int | None = None
        self._lists: dict[int, dict[int, list[int]]] = {}
        self._standing = 0
        self._refs = array("I")
        self._cached = bytearray()
        self._idle_ns = array("q")
        """Time of last use of each cached, idle block."""
        self._held: dict[int, tuple[int, ...]] = {}
        """Blocks of each holder for pictures, cached until they change."""
        self._picture: BlockPicture | None = None
        self._shares: tuple[Share, ...] | None = None

    @property
    def known(self) -> bool:
        """Whether the contents of the pool's blocks are known and up to date."""
        return self.num_blocks > 0 and not self.doubted

    @property
    def groups(self) -> int:
        """Largest number of KV cache groups in which one request holds blocks."""
        return max(map(len, self._lists.values()), default=1)

    @property
    def standing(self) -> int:
        """Total length of the holders' block lists, which repeat shared blocks."""
        return self._standing

    def forget(self) -> None:
        """Forget what the blocks hold, until the engine sends a whole block map."""
        self._clean(0)
        self._sequence, self._cost_ns, self.doubted = -1, None, False

    def take(self, block_map: BlockMap, on_evicted: OnEvicted) -> None:
        """Apply the next block map; forget the pool if an earlier one was missed."""
        follows = block_map.sequence == self._sequence + 1 and self.num_blocks > 0
        if not block_map.whole and not follows:
            self.forget()
            return
        try:
            self._check(block_map)
            if block_map.whole:
                self._reset(block_map, follows=follows)
            evicted = self._uncache(block_map)
            self._apply(block_map)
        except ContradictionError:
            self.forget()
            return
        if evicted:
            on_evicted(block_map.t_ns, evicted)
        self._sequence, self._cost_ns = block_map.sequence, block_map.cost_ns
        self.t_ns, self.doubted = block_map.t_ns, False
        self._picture = self._shares = None

    def whole_map(self, source: str, rank: int, t_ns: int) -> BlockMap | None:
        """Return the pool as one whole map, to which later maps apply.

        None where the contents of the pool are not known.
        """
        if not self.known:
            return None
        lists = [
            (holder, group, blocks)
            for holder, groups in self._lists.items()
            for group, blocks in groups.items()
        ]
        return BlockMap(
            source=source,
            t_ns=t_ns,
            rank=rank,
            sequence=self._sequence,
            whole=True,
            num_blocks=self.num_blocks,
            holders=[holder for holder, _, _ in lists],
            groups=[group for _, group, _ in lists],
            kept=[0] * len(lists),
            blocks=[list(blocks) for _, _, blocks in lists],
            cached=[at for at, is_cached in enumerate(self._cached) if is_cached],
        )

    def picture(self, source: str, rank: int) -> BlockPicture:
        """Return the block map as screens draw it; rebuilt only after a change."""
        if self._picture is None:
            refs = self._references
            states = np.where(refs > 1, BlockState.SHARED, BlockState.PRIVATE)
            cached = np.frombuffer(self._cached, np.bool_)
            idle = np.where(cached, BlockState.CACHED, BlockState.FREE)
            states = np.where(refs > 0, states, idle).astype(np.uint8)
            states[NULL_BLOCK] = BlockState.NULL
            for holder in self._lists.keys() - self._held.keys():
                self._held[holder] = tuple(self._blocks_of(holder))
            self._picture = BlockPicture(
                source=source,
                rank=rank,
                t_ns=self.t_ns,
                states=states.tobytes(),
                references=np.minimum(refs, EACH_MOST).astype(np.uint8).tobytes(),
                holders=tuple(self._lists),
                held=tuple(self._held[holder] for holder in self._lists),
                cost_us=None if self._cost_ns is None else self._cost_ns / 1_000,
            )
        return self._picture

    @property
    def holders(self) -> Iterable[int]:
        return self._lists.keys()

    def shares(self) -> tuple[Share, ...]:
        """Return holders, each with its number of blocks and of shared blocks.

        Rebuilt only after a change.
        """
        if self._shares is None:
            refs = self._references
            shares = []
            for holder in self._lists:
                blocks = np.array([*self._blocks_of(holder)], np.int64)
                shared = int((refs[blocks] > 1).sum())
                shares.append((holder, len(blocks), shared))
            self._shares = tuple(shares)
        return self._shares

    def saved(self, source: str, rank: int) -> SavedBlocks:
        idle_ns = np.array(self._idle_ns, np.int64)
        return SavedBlocks(
            source=source,
            rank=rank,
            sequence=self._sequence,
            t_ns=self.t_ns,
            cost_ns=self._cost_ns,
            num_blocks=self.num_blocks,
            doubted=self.doubted,
            lists=[
                (holder, group, blocks)
                for holder, groups in self._lists.items()
                for group, blocks in groups.items()
            ],
            cached=np.packbits(np.frombuffer(self._cached, np.bool_)).tobytes(),
            idle_ns=idle_ns[self._idle_cached].tobytes(),
        )

    def restore(self, saved: SavedBlocks) -> None:
        if not 0 <= saved.num_blocks <= MOST_BLOCKS:
            raise msgspec.ValidationError("this is not a pool of blocks")
        self._clean(saved.num_blocks)
        self._sequence, self.t_ns = saved.sequence, saved.t_ns
        self._cost_ns, self.doubted = saved.cost_ns, saved.doubted
        bits = np.unpackbits(np.frombuffer(saved.cached, np.uint8))
        if len(bits) < saved.num_blocks or len(saved.idle_ns) % 8:
            raise msgspec.ValidationError("these are not the blocks that were saved")
        self._cached = bytearray(bits[: saved.num_blocks].tobytes())
        try:
            for holder, group, blocks in saved.lists:
                self._hold(holder, group, 0, blocks)
        except ContradictionError as error:
            raise msgspec.ValidationError(str(error)) from error
        idle_ns, idle = np.array(self._idle_ns), self._idle_cached
        times = np.frombuffer(saved.idle_ns, np.int64)
        if len(times) != idle.sum():
            raise msgspec.ValidationError("these are not the times that were saved")
        idle_ns[idle] = times
        self._idle_ns = array("q", idle_ns.tobytes())

    @property
    def _references(self) -> Refs:
        return np.array(self._refs, np.uint32)

    @property
    def _idle_cached(self) -> npt.NDArray[np.bool_]:
        cached = np.frombuffer(self._cached, np.bool_)
        idle: npt.NDArray[np.bool_] = self._references == 0
        return np.logical_and(cached, idle)

    def _blocks_of(self, holder: int) -> Iterator[int]:
        """Return a holder's blocks of all groups, without the null block."""
        return filter(None, chain.from_iterable(self._lists[holder].values()))

    def _check(self, block_map: BlockMap) -> None:
        """Raise ContradictionError for a map that contradicts itself."""
        lengths = {len(block_map.holders), len(block_map.kept), len(block_map.blocks)}
        if block_map.groups:
            lengths.add(len(block_map.groups))
        _agree(len(lengths) == 1)
        _agree(
            0 < block_map.num_blocks <= MOST_BLOCKS and 0 <= block_map.t_ns < LAST_NS
        )
        _agree(block_map.whole or block_map.num_blocks == self.num_blocks)
        for blocks in (block_map.cached, block_map.uncached):
            _agree(_within(blocks, block_map.num_blocks))

    def _clean(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._picture = self._shares = None
        self._lists, self._held, self._standing = {}, {}, 0
        self._refs = array("I", bytes(4 * num_blocks))
        self._cached = bytearray(num_blocks)
        self._idle_ns = array("q", [UNKNOWN_NS]) * num_blocks

    def _reset(self, block_map: BlockMap, *, follows: bool) -> None:
        """Reset the pool before a whole map is applied.

        Blocks keep their idle times if no map was missed.
        """
        idle_ns, idle, before = self._idle_ns, self._idle_cached, self.num_blocks
        self._clean(block_map.num_blocks)
        if follows and before == block_map.num_blocks:  # idle blocks stay idle
            kept = np.where(idle, np.array(idle_ns), block_map.t_ns)
            self._idle_ns = array("q", kept.astype(np.int64).tobytes())

    def _apply(self, block_map: BlockMap) -> None:
        for holder in block_map.gone:
            _agree(holder in self._lists)
            for group in list(self._lists[holder]):
                self._hold(holder, group, 0, (), block_map.t_ns)
        groups_of = block_map.groups or [0] * len(block_map.holders)
        lists = zip(
            block_map.holders, groups_of, block_map.kept, block_map.blocks, strict=True
        )
        for holder, group, kept, blocks in lists:
            self._hold(holder, group, kept, blocks, block_map.t_ns)
        for block in block_map.cached:
            came = not self._cached[block]
            self._cached[block] = True
            if came and not self._refs[block] and not block_map.whole:
                self._idle_ns[block] = block_map.t_ns  # used since the map before

    def _uncache(self, block_map: BlockMap) -> Ages:
        """Apply the map's evictions, and return the ages of the evicted blocks.

        Blocks cleared by an explicit reset do not count as evicted.
        """
        if block_map.cleared:
            self._cached = bytearray(self.num_blocks)
        evicted: Ages = Counter()
        for block in block_map.uncached:
            if self._cached[block]:
                self._cached[block] = False
                evicted[self._age_ns(block, block_map.t_ns)] += 1
        return evicted

    def _age_ns(self, block: int, t_ns: int) -> int | None:
        """Return the time since a block was last used; None where unknown."""
        if self._refs[block]:
            return 0
        since_ns = self._idle_ns[block]
        return None if since_ns == UNKNOWN_NS else max(t_ns - since_ns, 0)

    def _hold(
        self,
        holder: int,
        group: int,
        kept: int,
        blocks: Sequence[int],
        t_ns: int = UNKNOWN_NS,
    ) -> None:
        groups = self._lists.setdefault(holder, {})
        own = groups.setdefault(group, [])
        _agree(0 <= kept <= len(own) and _within(blocks, self.num_blocks))
        gone, own[kept:] = own[kept:], blocks
        refs = self._refs
        for block in blocks:  # before releasing, so that kept ones stay
            if block:
                refs[block] += 1
                self._standing += 1
        self._let_go(gone, t_ns)
        self._held.pop(holder, None)
        if not own:
            del groups[group]
        if not groups:
            del self._lists[holder]
        _agree(self._standing <= MOST_STANDING)

    def _let_go(self, blocks: Iterable[int], t_ns: int) -> None:
        refs, idle_ns = self._refs, self._idle_ns
        for block in blocks:
            if block:
                refs[block] -= 1
                self._standing -= 1
                if not refs[block]:
                    idle_ns[block] = t_ns


class BlockMaps:
    """The block pools of all ranks whose probes copy them."""

    def __init__(self, on_evicted: OnEvicted) -> None:
        self._on_evicted = on_evicted
        self._ranks: dict[tuple[str, int], RankBlocks] = {}

    def take(self, block_map: BlockMap) -> None:
        key = block_map.source, block_map.rank
        rank = self._ranks.get(key)
        if rank is None:
            if len(self._ranks) >= MOST_RANKS:
                return
            rank = self._ranks[key] = RankBlocks()
        others = sum(each.num_blocks for each in self._ranks.values())
        if others - rank.num_blocks + block_map.num_blocks > MOST_BLOCKS:
            rank.forget()
        else:
            rank.take(block_map, self._on_evicted)

    def doubt(self, source: str) -> None:
        """Record that messages were lost, so the source's pools may be outdated."""
        for (each, _), rank in self._ranks.items():
            if source in {"", each}:
                rank.doubted = True

    def tell_of(self, source: str) -> bool:
        """Return whether any map of a source came, be its pool known by it or not."""
        return any(key[0] == source for key in self._ranks)

    def lost(self, source: str) -> None:
        for key in [key for key in self._ranks if source in {"", key[0]}]:
            del self._ranks[key]

    @property
    def known(self) -> list[tuple[str, int, RankBlocks]]:
        """The pools that are up to date, with their source and rank, sorted."""
        return [(*key, r) for key, r in sorted(self._ranks.items()) if r.known]

    def pictures(self) -> tuple[BlockPicture, ...]:
        return tuple(blocks.picture(*at) for *at, blocks in self.known)  # type: ignore[arg-type]

    def saved(self, parts: Parts) -> list[int]:
        """Save each pool as a part, and return the numbers of the parts."""
        return [
            parts.add(blocks.saved(*key), lasts=False)
            for key, blocks in self._ranks.items()
        ]

    def restore(self, saved: Sequence[int], parts: WrittenParts) -> None:
        for number in saved:
            state = parts.get(number, SavedBlocks)
            self._ranks[state.source, state.rank] = blocks = RankBlocks()
            blocks.restore(state)


def _agree(fits: bool) -> None:  # noqa: FBT001 - a condition
    if not fits:
        raise ContradictionError("a block map that does not fit")


def _within(blocks: Sequence[int], num_blocks: int) -> bool:
    return not blocks or (min(blocks) >= 0 and max(blocks) < num_blocks)
