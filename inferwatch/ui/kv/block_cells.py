"""KV blocks as cells of a picture: in which order they stand, how many share a cell.

Numbers alone, no colours: 50,000 blocks are arranged and folded in a few milliseconds.
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
"""Blocks of a request as a map has them, and as an array."""


class MapOrder(StrEnum):
    """In which order the blocks stand."""

    ID = "block id"
    HOLDER = "holder"
    PREFIX = "prefix"


class Look(IntEnum):
    """What a cell looks like: a ``BlockState``, or the same of the neighbour."""

    FREE = BlockState.FREE
    CACHED = BlockState.CACHED
    PRIVATE = BlockState.PRIVATE
    SHARED = BlockState.SHARED
    NULL = BlockState.NULL
    PRIVATE_NEXT = 5
    """Another holder than that of the blocks before."""
    SHARED_NEXT = 6
    """Shared by others than the blocks before."""
    BLANK = 7
    """No block is left for it."""


MOST_FIRST = (
    BlockState.SHARED,
    BlockState.PRIVATE,
    BlockState.CACHED,
    BlockState.FREE,
    BlockState.NULL,
)
"""Where a cell has as many of one state as of another, the first of these is shown."""
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
"""By state, where its blocks stand among those that no request is known to hold."""


@dataclass(frozen=True, eq=False)
class ArrangedBlocks:
    """Blocks in the order in which they are drawn."""

    order: Ints
    """Block ids by place."""
    states: Looks
    """A ``BlockState`` each, by place."""
    next: Flags
    """By place: it is inked unlike the blocks of the holder before."""
    sections: tuple[tuple[int, str], ...] = ()
    """From which place on there is what; none where ids say it."""


def states_of(picture: BlockPicture) -> Looks:
    """By block id."""
    return np.frombuffer(picture.states, dtype=np.uint8)


class HeldBlocks:
    """Who holds what, as two columns: all lists of held blocks one after the other."""

    def __init__(
        self, picture: BlockPicture, before: "HeldBlocks | None" = None
    ) -> None:
        self.picture = picture
        known: dict[int, Listed] = before.by_holder if before else {}
        self.by_holder: dict[int, Listed] = {
            ordinal: _grown(known.get(ordinal), blocks)
            for ordinal, blocks in zip(picture.holders, picture.held, strict=True)
        }
        """The blocks of each as they are told, and as an array."""
        arrays = [array for _, array in self.by_holder.values()]
        blocks = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.intp)
        sizes = np.fromiter(map(len, arrays), dtype=np.intp, count=len(arrays))
        owners = np.repeat(np.arange(len(arrays)), sizes)
        known_ids = (blocks >= 0) & (blocks < len(picture.states))
        whole = bool(known_ids.all())
        self.blocks: Ints = blocks if whole else blocks[known_ids]
        self.owners: Ints = owners if whole else owners[known_ids]
        """The place of the holder in ``picture.holders``."""
        self._counted: tuple[bytes, Sequence[tuple[int, int]]] = (b"", ())

    def once(self) -> tuple[Ints, Ints]:
        """Every held block once, with whoever held it first, in the order of tokens."""
        places = np.arange(len(self.blocks))
        first = np.zeros(len(self.picture.states), dtype=np.intp)
        first[self.blocks[::-1]] = places[::-1]  # of equal ones the last one stays
        kept = np.flatnonzero(first[self.blocks] == places)
        return self.blocks[kept], self.owners[kept]

    def by_sharers(self, shared: Ints) -> tuple[Ints, Ints]:
        """Shared blocks grouped by who shares them, the most shared first."""
        if not len(shared):
            return shared, shared
        picture = self.picture
        marks = np.random.default_rng(7).integers(1, 1 << 62, len(picture.held))
        sums = np.zeros(len(picture.states), dtype=np.int64)
        np.add.at(sums, self.blocks, marks[self.owners])  # who shares it: one number
        _, first, group = np.unique(
            sums[shared], return_index=True, return_inverse=True
        )
        references = np.frombuffer(picture.references, dtype=np.uint8)[shared]
        rank = -references[first].astype(np.intp)
        by = np.lexsort((first[group], rank[group]))
        return shared[by], group[by]

    def of(self, place: int) -> Flags:
        """By block id: this holder has it."""
        flags = np.zeros(len(self.picture.states), dtype=np.bool_)
        flags[self.blocks[self.owners == place]] = True
        return flags

    def counts_in(self, blocks: Ints) -> Sequence[tuple[int, int]]:
        """Who holds how many of these blocks: most first, by place of the holder."""
        asked = blocks.tobytes()
        if self._counted[0] != asked:  # of one cursor it is asked more than once
            self._counted = asked, self._count(blocks)
        return self._counted[1]

    def _count(self, blocks: Ints) -> Sequence[tuple[int, int]]:
        among = np.zeros(len(self.picture.states), dtype=np.bool_)
        among[blocks] = True
        counts = np.bincount(self.owners[np.flatnonzero(among[self.blocks])])
        found = np.argsort(-counts, kind="stable")
        return [(int(each), int(counts[each])) for each in found if counts[each]]


def _grown(before: Listed | None, blocks: Sequence[int]) -> Listed:
    """As an array; requests mostly keep their blocks and get more."""
    told = tuple(blocks)
    if before is None:
        return told, np.array(told, dtype=np.intp)
    known, array = before
    if known is told:
        return before
    if told[: len(known)] != known:
        return told, np.array(told, dtype=np.intp)
    more = np.array(told[len(known) :], dtype=np.intp)
    return told, np.concatenate((array, more))


def arrange(held_blocks: HeldBlocks, by: MapOrder) -> ArrangedBlocks:
    """Put the blocks of a map into an order."""
    states = states_of(held_blocks.picture)
    if by is MapOrder.ID:
        order = np.arange(len(states))
        return ArrangedBlocks(order, states, np.zeros(len(states), dtype=np.bool_))
    held, owners = held_blocks.once()
    if by is MapOrder.PREFIX:
        shared = states[held] == BlockState.SHARED
        grouped, groups = held_blocks.by_sharers(held[shared])
        held = np.concatenate((grouped, held[~shared]))
        owners = np.concatenate((groups, owners[~shared] + len(held) + 1))
    unheld = np.ones(len(states), dtype=np.bool_)
    unheld[held] = False
    rest = np.flatnonzero(unheld)
    rest = rest[np.argsort(UNHELD_ORDER[states[rest]], kind="stable")]
    order = np.concatenate((held, rest))
    turns = np.zeros(len(order), dtype=np.bool_)
    turns[1 : len(held)] = owners[1:] != owners[:-1]
    sections = _sections(states[order], len(held), by)
    return ArrangedBlocks(order, states[order], np.cumsum(turns) % 2 == 1, sections)


def _sections(states: Looks, held: int, by: MapOrder) -> tuple[tuple[int, str], ...]:
    """Where it goes over from one state to another; held ones may stand mixed."""
    found = [(0, "held")] if held and by is MapOrder.HOLDER else []
    start = held if by is MapOrder.HOLDER else 0
    last: int | None = None
    changes = np.flatnonzero(states[start + 1 :] != states[start:-1]) + start + 1
    for place in (start, *changes.tolist()):
        if place < len(states) and states[place] != last:
            last = int(states[place])
            found.append((place, SECTION_NAMES[BlockState(last)]))
    return tuple(found)


@dataclass(frozen=True)
class MapScale:
    """How blocks share the room there is."""

    blocks: int
    """In a cell."""
    columns: int
    """Cells in a row."""
    wide: int
    """Characters of a cell."""

    @property
    def text(self) -> str:
        """As the screen says it."""
        return f"1 cell = {self.blocks:,} block{'s' if self.blocks != 1 else ''}"


WIDEST_CELL = 4
"""Characters; few blocks are drawn larger, up to this."""
ROUND = 8
"""Columns are a multiple of it, where there is room for two: rows begin at ids that
people can add up."""


def scale_for(count: int, width: int, rows: int, *, single: bool = False) -> MapScale:
    """As large as they fit; as few in a cell as fit; one, where single ones are asked.

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
    """A look for each cell: of several blocks that of most of them."""
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


def pointed_cells(blocks: ArrangedBlocks, scale: MapScale, held: Flags) -> Flags:
    """Cells with at least one of these blocks, flagged by id."""
    flags = held[blocks.order]
    starts = np.arange(0, len(flags), scale.blocks)
    return np.logical_or.reduceat(flags, starts) if len(flags) else flags
