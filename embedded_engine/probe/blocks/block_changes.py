"""Makes block maps of moments: what of a pool is other than in the map before.

All of it runs on a thread of our own and in small slices, between which the engine's
thread gets the interpreter if it wants it: to wait for it would cost a step.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from time import monotonic_ns

from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.attribute_reader import AttributeReader, Vllm
from embedded_engine.probe.tap.block_tap import MOST_CHANGES, Change, Group, Moment

SLICE_NS = 100_000
PAUSE_S = 0.0005
AT_ONCE = 512
"""Blocks read in one go, at the speed of C: a fraction of a slice."""


class Breath:
    """Called between small pieces of work: gives the interpreter away now and then."""

    def __init__(self) -> None:
        self._until_ns = 0

    def __call__(self) -> None:
        """Rest when a slice is over; who only yielded would be back first."""
        if monotonic_ns() > self._until_ns:
            time.sleep(PAUSE_S)
            self._until_ns = monotonic_ns() + SLICE_NS


@dataclass(slots=True, kw_only=True)
class MapDraft:
    """A block map with the ids of requests where their ordinals will be."""

    t_ns: int
    num_blocks: int
    cost_ns: int | None = None
    whole: bool = False
    holders: list[str] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    uncached: list[int] = field(default_factory=list)
    cleared: bool = False

    @property
    def says_something(self) -> bool:
        """Anything is other than before."""
        changes = self.holders, self.gone, self.cached, self.uncached
        return self.whole or self.cleared or any(changes)

    def tell(self, holder: str, group: int, kept: int, blocks: list[int]) -> None:
        """A request's blocks, after the first few."""
        self.holders.append(holder)
        self.groups.append(group)
        self.kept.append(kept)
        self.blocks.append(blocks)


@dataclass(slots=True)
class Holding:
    """The blocks of a request in one group, as they were told."""

    blocks: list[Vllm]
    """vLLM's own list: when it is another one, all is new."""
    size: int
    ids: list[int]
    """Only where the list may change in place."""


class GroupChanges:
    """Who holds which blocks of one group, from moment to moment."""

    def __init__(self, group: Group, breathe: Breath) -> None:
        self.number = group.number
        self.held: dict[str, Holding] = {}
        self.left: list[str] = []
        """Who held some in the moment before and does no more."""
        self._appends = group.appends
        self._breathe = breathe
        self._id = attrgetter(names.BLOCK_ID)

    def since(
        self, draft: MapDraft, lists: dict[str, list[Vllm]], measures: Sequence[Vllm]
    ) -> None:
        """Tell what is other than in the moment before."""
        before, self.held = self.held, {}
        differ = self._longer if self._appends else self._edited
        for (holder, blocks), measure in zip(lists.items(), measures, strict=True):
            self._breathe()
            if measure:
                told = before.pop(holder, None)
                if told is not None and told.blocks is not blocks:
                    told = None
                kept, new, self.held[holder] = differ(told, blocks, measure)
                if new or told is None or kept < told.size:
                    draft.tell(holder, self.number, kept, new)
        self.left = list(before)

    def tell_all(self, draft: MapDraft) -> None:
        """Tell what was told of those who hold anything."""
        for holder, holding in self.held.items():
            ids = holding.ids or self._ids(holding.blocks, 0, holding.size)
            draft.tell(holder, self.number, 0, ids)

    def _longer(
        self, told: Holding | None, blocks: list[Vllm], size: int
    ) -> tuple[int, list[int], Holding]:
        kept = told.size if told is not None and told.size <= size else 0
        new = self._ids(blocks, kept, size) if size > kept else []
        return kept, new, Holding(blocks, size, [])

    def _edited(
        self, told: Holding | None, blocks: list[Vllm], copied: list[Vllm]
    ) -> tuple[int, list[int], Holding]:
        ids = self._ids(copied, 0, len(copied))
        before = [] if told is None else told.ids
        same = (a == b for a, b in zip(before, ids, strict=False))
        kept = next((at for at, equal in enumerate(same) if not equal), None)
        if kept is None:
            kept = min(len(before), len(ids))
        return kept, ids[kept:], Holding(blocks, len(ids), ids)

    def _ids(self, blocks: list[Vllm], first: int, last: int) -> list[int]:
        ids: list[int] = []
        for at in range(first, last, AT_ONCE):
            ids += map(self._id, blocks[at : min(at + AT_ONCE, last)])
            self._breathe()
        return ids


class BlockChanges:
    """What was told of one scheduler's pool so far, and what of a moment is new."""

    def __init__(
        self, pool: Vllm, groups: Sequence[Group], missing: Callable[[str], None]
    ) -> None:
        self._pool = pool
        self._breathe = Breath()
        self._groups = [GroupChanges(group, self._breathe) for group in groups]
        self._all = AttributeReader("BlockPool", names.ALL_BLOCKS, missing)
        self._content = AttributeReader("KVCacheBlock", names.BLOCK_CONTENT, missing)
        self._id = attrgetter(names.BLOCK_ID)
        self._cached: set[int] = set()

    def scan(self) -> set[int]:
        """Blocks that hold content now, one slice after the other.

        What changes meanwhile is among the changes of the next moment.
        """
        found: set[int] = set()
        blocks = self._all.read(self._pool)
        self._content.read(blocks[0])  # from now on it reads at the speed of C
        for first in range(0, len(blocks), AT_ONCE):
            contents = map(self._content.read, blocks[first : first + AT_ONCE])
            found.update(n for n, it in enumerate(contents, first) if it is not None)
            self._breathe()
        return found

    def since(self, moment: Moment) -> MapDraft | None:
        """What is other than in the moment before; None when that is not known."""
        draft = self._draft(moment)
        for group, (lists, measures) in zip(self._groups, moment.held, strict=True):
            group.since(draft, lists, measures)
        self._tell_gone(draft)
        if len(moment.changes) == MOST_CHANGES:
            return None
        content, given_up, draft.cleared = self._replayed(moment.changes)
        draft.uncached = sorted(given_up)
        self._cached -= given_up
        draft.cached = sorted(
            block for block, has in content.items() if has and block not in self._cached
        )
        self._cached.update(draft.cached)
        return draft

    def whole(self, moment: Moment, scanned: set[int]) -> MapDraft:
        """All there is, right after ``since`` of the same moment.

        ``scanned`` was read since the moment before that: what the changes say of a
        block is as new or newer.
        """
        draft = self._draft(moment)
        draft.whole = True
        for group in self._groups:
            group.tell_all(draft)
        content, _, cleared = self._replayed(moment.changes)
        before: set[int] = set() if cleared else scanned
        self._cached = set()
        for first in range(0, draft.num_blocks, AT_ONCE):
            part = range(first, min(first + AT_ONCE, draft.num_blocks))
            has = [block for block in part if content.get(block, block in before)]
            draft.cached += has
            self._cached.update(has)
            self._breathe()
        return draft

    def _draft(self, moment: Moment) -> MapDraft:
        blocks = len(self._all.read(self._pool))
        return MapDraft(t_ns=moment.t_ns, num_blocks=blocks, cost_ns=moment.cost_ns)

    def _tell_gone(self, draft: MapDraft) -> None:
        """Who holds nothing in any group is gone; in one alone he has no list."""
        gone: set[str] = set()
        for group in self._groups:
            for holder in group.left:
                if any(holder in each.held for each in self._groups):
                    draft.tell(holder, group.number, 0, [])
                else:
                    gone.add(holder)
        draft.gone = sorted(gone)

    def _replayed(
        self, changes: Iterable[Change]
    ) -> tuple[dict[int, bool], set[int], bool]:
        """Which blocks have content in the end, which lost some, whether all did."""
        content: dict[int, bool] = {}
        given_up: set[int] = set()
        cleared = False
        for blocks, filled, mask in changes:
            self._breathe()
            if blocks is None:
                cleared = True
                given_up |= self._cached
                given_up.update(block for block, has in content.items() if has)
                content = dict.fromkeys(content, False)
                continue
            some = blocks if mask is None else compress(blocks, mask)
            for block in map(self._id, some):
                if not filled and content.get(block, block in self._cached):
                    given_up.add(block)
                content[block] = filled and block != names.NULL_BLOCK
        return content, given_up, cleared
