"""KV blocks as cells of a map: their order and how many share a cell.

Numbers only, no colours: 50,000 blocks take a few milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt

from inferwatch.metrics.cache.memory import BlockPicture, BlockState

Ints = npt.NDArray[np.intp]
Looks = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Listed = tuple[tuple[int, ...], Ints]
"""Blocks of a request as a tuple and as an array."""


class MapOrder(StrEnum):
    """Order of the blocks."""

    ID = "block id"
    HOLDER = "holder"
    PREFIX = "prefix"


class Look(IntEnum):
    """The look of a cell: a ``BlockState``, or the same state of the next holder."""

    FREE = BlockState.FREE
    CACHED = BlockState.CACHED
    PRIVATE = BlockState.PRIVATE
    SHARED = BlockState.SHARED
    NULL = BlockState.NULL
    PRIVATE_NEXT = 5
    """Private to another holder than the blocks before."""
    SHARED_NEXT = 6
    """Shared by other holders than the blocks before."""
    BLANK = 7
    """No block."""


MOST_FIRST = (
    BlockState.SHARED,
    BlockState.PRIVATE,
    BlockState.CACHED,
    BlockState.FREE,
    BlockState.NULL,
)
"""State of a cell whose states are equally frequent: the first of these."""
STATES = list(MOST_FIRST)
NEXT_OF = np.arange(len(Look), dtype=np.uint8)
NEXT_OF[Look.PRIVATE], NEXT_OF[Look.SHARED] = Look.PRIVATE_NEXT, Look.SHARED_NEXT
SECTION_NAMES = {
    BlockState.PRIVATE: "private",
    BlockState.SHARED: "shared",
    BlockState.CACHED: "idle",
    BlockState.FREE: "free",
    BlockState.NULL: "null",
}
UNHELD_ORDER = np.argsort(np.array(STATES)).astype(np.uint8)
"""By state, the order of blocks without a known holder."""


@dataclass(frozen=True, eq=False)
class ArrangedBlocks:
    """Blocks in drawing order."""

    order: Ints
    """Block ids."""
    states: Looks
    """``BlockState`` values."""
    next: Flags
    """Drawn unlike the blocks of the holder before."""
    sections: tuple[tuple[int, str], ...] = ()
    """Starts and names of sections; none in order of ids."""


def states_of(picture: BlockPicture) -> Looks:
    return np.frombuffer(picture.states, dtype=np.uint8)


class BlockHolders:
    """The holders of blocks, as two parallel arrays: blocks, and the holder of each."""

    def __init__(
        self, picture: BlockPicture, before: "BlockHolders | None" = None
    ) -> None:
        self.picture = picture
        earlier: dict[int, Listed] = before.by_holder if before else {}
        self.by_holder: dict[int, Listed] = {
            ordinal: _grown(earlier.get(ordinal), blocks)
            for ordinal, blocks in zip(picture.holders, picture.held, strict=True)
        }
        """Blocks by holder, as tuple and array."""
        arrays = [array for _, array in self.by_holder.values()]
        blocks = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.intp)
        sizes = np.fromiter(map(len, arrays), dtype=np.intp, count=len(arrays))
        owners = np.repeat(np.arange(len(arrays)), sizes)
        known_ids = (blocks >= 0) & (blocks < len(picture.states))
        whole = bool(known_ids.all())
        self.blocks: Ints = blocks if whole else blocks[known_ids]
        self.owners: Ints = owners if whole else owners[known_ids]
        """Index of the holder in ``picture.holders``."""
        self._counted: tuple[bytes, Sequence[tuple[int, int]]] = (b"", ())

    def once(self) -> tuple[Ints, Ints]:
        """Return each held block once, with its first holder, in order of tokens."""
        places = np.arange(len(self.blocks))
        first = np.zeros(len(self.picture.states), dtype=np.intp)
        first[self.blocks[::-1]] = places[::-1]  # the first holder wins
        kept = np.flatnonzero(first[self.blocks] == places)
        return self.blocks[kept], self.owners[kept]

    def by_sharers(self, shared: Ints) -> tuple[Ints, Ints]:
        """Return shared blocks and their groups of holders, the most shared first."""
        if not len(shared):
            return shared, shared
        picture = self.picture
        marks = np.random.default_rng(7).integers(1, 1 << 62, len(picture.held))
        sums = np.zeros(len(picture.states), dtype=np.int64)
        np.add.at(sums, self.blocks, marks[self.owners])  # one sum per set
        _, first, group = np.unique(
            sums[shared], return_index=True, return_inverse=True
        )
        references = np.frombuffer(picture.references, dtype=np.uint8)[shared]
        rank = -references[first].astype(np.intp)
        by = np.lexsort((first[group], rank[group]))
        return shared[by], group[by]

    def of(self, place: int) -> Flags:
        """Return a flag for each block id: whether the holder has the block."""
        flags = np.zeros(len(self.picture.states), dtype=np.bool_)
        flags[self.blocks[self.owners == place]] = True
        return flags

    def counts_in(self, blocks: Ints) -> Sequence[tuple[int, int]]:
        """Return each holder with how many of these blocks it has, most first."""
        key = blocks.tobytes()
        if self._counted[0] != key:  # asked repeatedly for one cursor
            self._counted = key, self._count(blocks)
        return self._counted[1]

    def _count(self, blocks: Ints) -> Sequence[tuple[int, int]]:
        among = np.zeros(len(self.picture.states), dtype=np.bool_)
        among[blocks] = True
        counts = np.bincount(self.owners[np.flatnonzero(among[self.blocks])])
        order = np.argsort(-counts, kind="stable")
        return [(int(each), int(counts[each])) for each in order if counts[each]]


def _grown(before: Listed | None, blocks: Sequence[int]) -> Listed:
    """Return block ids and their array, which is extended if ids were only added."""
    ids = tuple(blocks)
    if before is None:
        return ids, np.array(ids, dtype=np.intp)
    earlier, array = before
    if earlier is ids:
        return before
    if ids[: len(earlier)] != earlier:
        return ids, np.array(ids, dtype=np.intp)
    more = np.array(ids[len(earlier) :], dtype=np.intp)
    return ids, np.concatenate((array, more))


def arrange(held_blocks: BlockHolders, by: MapOrder) -> ArrangedBlocks:
    states = states_of(held_blocks.picture)
    if by is MapOrder.ID:
        order = np.arange(len(states))
        return ArrangedBlocks(order, states, np.zeros(len(states), dtype=np.bool_))
    ids, owners = held_blocks.once()
    if by is MapOrder.PREFIX:
        shared = states[ids] == BlockState.SHARED
        grouped, groups = held_blocks.by_sharers(ids[shared])
        ids = np.concatenate((grouped, ids[~shared]))
        owners = np.concatenate((groups, owners[~shared] + len(ids) + 1))
    unheld = np.ones(len(states), dtype=np.bool_)
    unheld[ids] = False
    rest = np.flatnonzero(unheld)
    rest = rest[np.argsort(UNHELD_ORDER[states[rest]], kind="stable")]
    order = np.concatenate((ids, rest))
    turns = np.zeros(len(order), dtype=np.bool_)
    turns[1 : len(ids)] = owners[1:] != owners[:-1]
    sections = _sections(states[order], len(ids), by)
    return ArrangedBlocks(order, states[order], np.cumsum(turns) % 2 == 1, sections)


def _sections(
    states: Looks, count_held: int, by: MapOrder
) -> tuple[tuple[int, str], ...]:
    """Return each section's start and name; by holder, all held blocks make one."""
    sections = [(0, "held")] if count_held and by is MapOrder.HOLDER else []
    start = count_held if by is MapOrder.HOLDER else 0
    last: int | None = None
    changes = np.flatnonzero(states[start + 1 :] != states[start:-1]) + start + 1
    for place in (start, *changes.tolist()):
        if place < len(states) and states[place] != last:
            last = int(states[place])
            sections.append((place, SECTION_NAMES[BlockState(last)]))
    return tuple(sections)


@dataclass(frozen=True)
class MapScale:
    """How blocks are laid out in cells."""

    blocks: int
    """Blocks per cell."""
    columns: int
    """Cells per row."""
    wide: int
    """Characters per cell."""

    @property
    def text(self) -> str:
        return f"1 cell = {self.blocks:,} block{'s' if self.blocks != 1 else ''}"


WIDEST_CELL = 4
ROUND = 8
"""Columns are a multiple of this if two fit, so that rows start at round ids."""


def scale_for(count: int, width: int, rows: int, *, single: bool = False) -> MapScale:
    """Return the scale with the largest cells that fit, else the fewest blocks a cell.

    >>> scale_for(256, 112, 12)
    MapScale(blocks=1, columns=24, wide=4)
    >>> scale_for(50_000, 110, 12)
    MapScale(blocks=41, columns=104, wide=1)
    """
    for wide in range(WIDEST_CELL, 1, -1):
        columns = _round_columns(width // wide)
        if columns * rows >= count:
            return MapScale(1, columns, wide)
    columns = _round_columns(width)
    if single:
        return MapScale(1, columns, 1)
    return MapScale(max(-(-count // (columns * max(rows, 1))), 1), columns, 1)


def _round_columns(columns: int) -> int:
    return columns // ROUND * ROUND if columns >= 2 * ROUND else max(columns, 1)


def fold(blocks: ArrangedBlocks, scale: MapScale) -> Looks:
    """Return the look of each cell: the most frequent state of its blocks."""
    if scale.blocks == 1:
        return np.where(blocks.next, NEXT_OF[blocks.states], blocks.states)
    size = scale.blocks
    cells = -(-len(blocks.states) // size)
    padded = np.full(cells * size, Look.BLANK, dtype=np.uint8)
    padded[: len(blocks.states)] = blocks.states
    table = padded.reshape(cells, size)
    counts = np.stack([(table == state).sum(axis=1) for state in STATES])
    looks = np.array(STATES, dtype=np.uint8)[np.argmax(counts, axis=0)]
    middle = np.minimum(np.arange(cells) * size + size // 2, len(blocks.next) - 1)
    return np.where(blocks.next[middle], NEXT_OF[looks], looks)


def pointed_cells(blocks: ArrangedBlocks, scale: MapScale, flagged: Flags) -> Flags:
    """Return a flag for each cell: whether it has any of the flagged blocks."""
    flags = flagged[blocks.order]
    starts = np.arange(0, len(flags), scale.blocks)
    return np.logical_or.reduceat(flags, starts) if len(flags) else flags
