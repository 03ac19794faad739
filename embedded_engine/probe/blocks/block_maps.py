"""Sends block maps and prompt hashes while somebody subscribes.

A thread asks the tap for a moment, computes what changed, and puts that into the
channel. Nothing is kept for late subscribers: they receive a whole map.
"""

import secrets
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import compress
from operator import attrgetter
from time import monotonic_ns

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import AnyReading, BlockMap, PromptBlocks
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.tap.block_tap import (
    MOST_CHANGES,
    NEVER,
    BlockTap,
    Change,
    KvCacheGroup,
    PoolSnapshot,
)
from embedded_engine.probe.tap.step_assembler import RequestOrdinals
from embedded_engine.probe.vllm_names import AttributeReader, Vllm
from embedded_engine.publishing.channel import Channel

# Computes block maps: how a KV block pool differs from the previous map.
#
# Everything runs on a thread of our own in short slices, between which the engine's
# thread can take the interpreter lock: waiting for it would cost a step.

SLICE_NS = 100_000
PAUSE_S = 0.0005
AT_ONCE = 512
"""Blocks read by one C-level loop: a fraction of a slice."""


class InterpreterYield:
    """Called between small pieces of work to release the interpreter regularly."""

    def __init__(self) -> None:
        self._until_ns = 0

    def __call__(self) -> None:
        """Sleep briefly once a slice of time is used up, to let other threads run."""
        if monotonic_ns() > self._until_ns:
            time.sleep(PAUSE_S)
            self._until_ns = monotonic_ns() + SLICE_NS


@dataclass(slots=True, kw_only=True)
class MapDraft:
    """A block map with request ids in place of ordinals."""

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
        changes = self.holders, self.gone, self.cached, self.uncached
        return self.whole or self.cleared or any(changes)

    def tell(self, holder: str, group: int, kept: int, blocks: list[int]) -> None:
        """Add a request's new blocks, which follow ``kept`` unchanged ones."""
        self.holders.append(holder)
        self.groups.append(group)
        self.kept.append(kept)
        self.blocks.append(blocks)


@dataclass(slots=True)
class ReportedBlocks:
    """The blocks of a request in one group, as last reported."""

    blocks: list[Vllm]
    """vLLM's own list: if it was replaced, all blocks are new."""
    size: int
    ids: list[int]
    """Only for lists that may change in place."""


class GroupChanges:
    """Changes in the blocks of one KV cache group, from moment to moment."""

    def __init__(self, group: KvCacheGroup, breathe: InterpreterYield) -> None:
        self.number = group.number
        self.held: dict[str, ReportedBlocks] = {}
        self.left: list[str] = []
        """Requests that held blocks in the previous moment and hold none now."""
        self._appends = group.appends
        self._breathe = breathe
        self._id = attrgetter(names.BLOCK_ID)

    def since(
        self, draft: MapDraft, lists: dict[str, list[Vllm]], measures: Sequence[Vllm]
    ) -> None:
        """Add to a draft what changed in this group since the previous snapshot."""
        before, self.held = self.held, {}
        differ = self._longer if self._appends else self._edited
        for (holder, blocks), measure in zip(lists.items(), measures, strict=True):
            self._breathe()
            if measure:
                last = before.pop(holder, None)
                if last is not None and last.blocks is not blocks:
                    last = None
                kept, new, self.held[holder] = differ(last, blocks, measure)
                if new or last is None or kept < last.size:
                    draft.tell(holder, self.number, kept, new)
        self.left = list(before)

    def tell_all(self, draft: MapDraft) -> None:
        """Add to a draft all blocks held at the last snapshot."""
        for holder, holding in self.held.items():
            ids = holding.ids or self._ids(holding.blocks, 0, holding.size)
            draft.tell(holder, self.number, 0, ids)

    def _longer(
        self, last: ReportedBlocks | None, blocks: list[Vllm], size: int
    ) -> tuple[int, list[int], ReportedBlocks]:
        kept = last.size if last is not None and last.size <= size else 0
        new = self._ids(blocks, kept, size) if size > kept else []
        return kept, new, ReportedBlocks(blocks, size, [])

    def _edited(
        self, last: ReportedBlocks | None, blocks: list[Vllm], copied: list[Vllm]
    ) -> tuple[int, list[int], ReportedBlocks]:
        ids = self._ids(copied, 0, len(copied))
        before = [] if last is None else last.ids
        same = (a == b for a, b in zip(before, ids, strict=False))
        kept = next((at for at, equal in enumerate(same) if not equal), None)
        if kept is None:
            kept = min(len(before), len(ids))
        return kept, ids[kept:], ReportedBlocks(blocks, len(ids), ids)

    def _ids(self, blocks: list[Vllm], first: int, last: int) -> list[int]:
        ids: list[int] = []
        for at in range(first, last, AT_ONCE):
            ids += map(self._id, blocks[at : min(at + AT_ONCE, last)])
            self._breathe()
        return ids


class BlockChanges:
    """The last reported state of one scheduler's pool, and changes against it."""

    def __init__(
        self, pool: Vllm, groups: Sequence[KvCacheGroup], missing: Callable[[str], None]
    ) -> None:
        self._pool = pool
        self._breathe = InterpreterYield()
        self._groups = [GroupChanges(group, self._breathe) for group in groups]
        self._all = AttributeReader("BlockPool", names.ALL_BLOCKS, missing)
        self._content = AttributeReader("KVCacheBlock", names.BLOCK_CONTENT, missing)
        self._id = attrgetter(names.BLOCK_ID)
        self._cached: set[int] = set()

    def scan(self) -> set[int]:
        """Ids of blocks with cached content, read in slices of time.

        Changes during the scan are among those of the next snapshot.
        """
        ids: set[int] = set()
        blocks = self._all.read(self._pool)
        self._content.read(blocks[0])  # makes the reader use attrgetter from here on
        for first in range(0, len(blocks), AT_ONCE):
            contents = map(self._content.read, blocks[first : first + AT_ONCE])
            ids.update(n for n, it in enumerate(contents, first) if it is not None)
            self._breathe()
        return ids

    def since(self, moment: PoolSnapshot) -> MapDraft | None:
        """The changes since the previous snapshot; None if too many were made."""
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

    def whole(self, moment: PoolSnapshot, scanned: set[int]) -> MapDraft:
        """A complete map, to be made right after ``since`` for the same snapshot.

        ``scanned`` is what ``scan`` returned; the changes in the snapshot were made
        since, and are applied to it.
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

    def _draft(self, moment: PoolSnapshot) -> MapDraft:
        blocks = len(self._all.read(self._pool))
        return MapDraft(t_ns=moment.t_ns, num_blocks=blocks, cost_ns=moment.cost_ns)

    def _tell_gone(self, draft: MapDraft) -> None:
        """Report requests that left a group: gone if they left all, else empty."""
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
        """Replay changes of cached content, oldest first.

        Returns whether each changed block has content now, the blocks that lost
        content, and whether the whole prefix cache was reset.
        """
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


EVERY_NS = NS_PER_S // 4
WHOLE_NS = 30 * NS_PER_S
"""Interval of whole maps, after which any loss is repaired."""
NEWCOMERS_NS = 2 * NS_PER_S
"""Subscribers that arrive within this time share a whole map."""
QUIET_NS = 5 * NS_PER_S
"""After this time an empty map confirms the previous one."""
LATE_NS = NS_PER_S // 2
"""A moment overdue by this much means the engine is idle."""
LOOK_S, UNWATCHED_S = 0.05, 0.5
SAMPLE_BLOCKS = 2_048
"""Blocks of a cache whose hashes are reported, at least."""
LOW_BITS = (1 << 63) - 1
HASHED_AT_ONCE = 64
"""Blocks hashed without a pause: part of a slice."""
MOST_PLAIN = 32
"""First blocks of a prompt that are also hashed by themselves."""
PLAIN, SALT = b"plain", b"salt"
"""What is hashed, so that hashes of one kind tell nothing of another."""


def one_in(num_blocks: int) -> int:
    """One of how many hashes is reported; a power of two."""
    if num_blocks <= 2 * SAMPLE_BLOCKS:
        return 1
    return 1 << ((num_blocks // SAMPLE_BLOCKS).bit_length() - 1)


class MapAssembler:
    """Turns drafts into readings on the channel's thread, which knows the ordinals."""

    def __init__(self, rank: int, ordinals: RequestOrdinals) -> None:
        self._rank = rank
        self._ordinals = ordinals
        self._holders: dict[str, int] = {}
        """Ordinals of holders, kept longer than RequestOrdinals does."""
        self._sequence = 0

    def map(self, draft: MapDraft) -> list[AnyReading]:
        """The BlockMap reading of a draft."""
        holders = [self._holder(each) for each in draft.holders]
        gone = [self._holders.pop(each) for each in draft.gone if each in self._holders]
        if draft.whole:
            self._holders = dict(zip(draft.holders, holders, strict=True))
        block_map = BlockMap(
            t_ns=draft.t_ns,
            rank=self._rank,
            sequence=self._sequence,
            whole=draft.whole,
            num_blocks=draft.num_blocks,
            holders=holders,
            groups=draft.groups if any(draft.groups) else [],
            kept=draft.kept,
            blocks=draft.blocks,
            gone=gone,
            cached=draft.cached,
            uncached=draft.uncached,
            cleared=draft.cleared,
            cost_ns=draft.cost_ns,
        )
        self._sequence += 1
        return [block_map]

    def content(
        self,
        t_ns: int,
        request_id: str,
        blocks: tuple[int, int, int],
        sample: tuple[list[int], list[int], int],
        alone: tuple[list[int], int | None, int],
    ) -> list[AnyReading]:
        """The PromptBlocks reading of a request.

        ``blocks``: full blocks of the prompt, of the request, and tokens per block.
        ``sample``: hashes, their positions, and the sampling ratio.
        ``alone``: hashes of the first blocks by themselves, of the salt, and the length
        of the prompt.
        """
        hashes, places, each_is_one_in = sample
        plain, salt, prompt_tokens = alone
        reading = PromptBlocks(
            t_ns=t_ns,
            rank=self._rank,
            ordinal=self._ordinals.of(request_id),
            prompt_blocks=blocks[0],
            total_blocks=blocks[1],
            hashes=hashes,
            places=places,
            one_in=each_is_one_in,
            block_tokens=blocks[2],
            plain=plain,
            salt=salt,
            prompt_tokens=prompt_tokens,
        )
        return [reading]

    def _holder(self, request_id: str) -> int:
        ordinal = self._holders.get(request_id)
        if ordinal is None:
            ordinal = self._holders[request_id] = self._ordinals.of(request_id)
        return ordinal


class PromptHasher:
    """Hashes the content of a request's blocks with a secret key.

    Some versions of vLLM hash equal prompts alike in every process, so anyone with a
    recording could test whether a prompt is in it. Hence each hash is hashed again with
    a key that is never stored; equal blocks still have equal hashes within one process.
    """

    def __init__(
        self, num_blocks: int, block_tokens: int, missing: Callable[[str], None]
    ) -> None:
        self._key = secrets.token_bytes(16)
        self._one_in = one_in(num_blocks)
        self._block_tokens = block_tokens
        self._breathe = InterpreterYield()
        self._request = AttributeReader("Request", names.CONTENT, missing)

    def of(self, request: Vllm) -> tuple[str, tuple[int, int, int], Vllm, Vllm] | None:
        """A request's id, block counts, hashes, and its first blocks by themselves.

        None if it has no full block, or was never looked up in the prefix cache.
        """
        request_id, prompt_tokens, blocks, ids, salt, *begun = self._request.read(
            request
        )
        if not blocks or not any(begun):
            return None
        hashes: list[int] = []
        places: list[int] = []
        for first in range(0, len(blocks), HASHED_AT_ONCE):
            for place, block in enumerate(
                blocks[first : first + HASHED_AT_ONCE], first
            ):
                number = self._number(block)
                if number % self._one_in == 0:
                    hashes.append(number)
                    places.append(place)
            self._breathe()
        sample = hashes, [] if self._one_in == 1 else places, self._one_in
        of_prompt = min(prompt_tokens // self._block_tokens, len(blocks))
        counts = of_prompt, len(blocks), self._block_tokens
        salted = None
        if salt:  # as small as the wire allows for what is no list of hashes
            salted = self._number(salt.encode("utf-8", "replace"), SALT) >> 2
        alone = self._plain(ids or (), of_prompt), salted, prompt_tokens
        return request_id, counts, sample, alone

    def _plain(self, ids: Sequence[int], blocks: int) -> list[int]:
        """Hash the token ids of each of the first blocks by itself."""
        size = self._block_tokens
        plain = []
        for first in range(0, min(blocks, MOST_PLAIN) * size, size):
            tokens = array("q", ids[first : first + size])
            if len(tokens) == size:
                plain.append(self._number(tokens.tobytes(), PLAIN))
            self._breathe()
        return plain

    def _number(self, block: bytes, person: bytes = b"") -> int:
        digest = blake2b(block, digest_size=8, key=self._key, person=person)
        return int.from_bytes(digest.digest(), "big") & LOW_BITS


class BlockMapSender:
    """The thread that turns the tap's moments into readings."""

    def __init__(
        self,
        tap: BlockTap,
        assembler: MapAssembler,
        channel: Channel,
        is_resting: Callable[[], bool],
        missing: Callable[[str], None],
    ) -> None:
        self.cpu_ns = 0
        """CPU time of the thread."""
        self._tap = tap
        self._pool = tap.pool
        self._assembler = assembler
        self._channel = channel
        self._is_resting = is_resting
        self._missing = missing
        self._changes: BlockChanges | None = None
        self._scanned: set[int] | None = None
        self._content = self._teller()
        self._due_ns = NEVER
        """When the requested moment is due; NEVER if none is."""
        self._next_ns = self._whole_ns = self._told_ns = 0
        self._based = False
        """A whole map and all changes since have been sent."""
        self._served = 0
        """Subscribers that have received, or are about to receive, a whole map."""
        self._thread = threading.Thread(
            target=self._run, name="inferwatch-map", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def _teller(self) -> PromptHasher | None:
        """Return a hasher of prompts; None without prefix caching."""
        read = AttributeReader("BlockPool", names.CACHING, self._missing).read
        caching, tokens, blocks = read(self._tap.pool)
        if not caching or not tokens:
            return None
        return PromptHasher(len(blocks), tokens, self._missing)

    def _run(self) -> None:
        tap = self._tap
        try:
            while not tap.failed and tap.pool is self._pool:
                time.sleep(LOOK_S if self._channel.watched else UNWATCHED_S)
                self.cpu_ns = time.thread_time_ns()
                if self._channel.watched:
                    self._turn(monotonic_ns())
                elif self._changes is not None:
                    self._changes, self._due_ns = None, NEVER
                    tap.stop()
        except Exception as error:
            tap.fail(error)

    def _turn(self, now_ns: int) -> None:
        tap = self._tap
        if self._changes is None:
            self._changes = BlockChanges(tap.pool, tap.groups, self._missing)
            self._based, self._whole_ns = False, 0
            tap.start(ends=self._content is not None)
        self._tell_content()
        if tap.moments:
            self._tell(self._changes, tap.moments.popleft())
        elif self._due_ns == NEVER:
            if now_ns >= self._next_ns:
                self._ask(self._changes, now_ns)
        elif now_ns > self._due_ns + LATE_NS and self._is_resting():
            tap.take(now_ns)

    def _ask(self, changes: BlockChanges, now_ns: int) -> None:
        """Request a snapshot of the block pool after the current step."""
        if self._wants_whole(now_ns):
            self._served, self._whole_ns = self._channel.newcomers, now_ns
            self._scanned = changes.scan()
        self._due_ns = self._tap.due_ns = monotonic_ns()

    def _wants_whole(self, now_ns: int) -> bool:
        patience = WHOLE_NS
        if self._channel.newcomers != self._served:
            patience = NEWCOMERS_NS
        return now_ns >= self._whole_ns + patience or not self._whole_ns

    def _tell(self, changes: BlockChanges, moment: PoolSnapshot) -> None:
        """Send the changes in a snapshot, and a whole map if one is due."""
        scanned, self._scanned = self._scanned, None
        self._due_ns, self._next_ns = NEVER, moment.t_ns + EVERY_NS
        draft = changes.since(moment)
        if draft is None:
            self._based, self._whole_ns = False, 0
            return
        quiet_ns = moment.t_ns - self._told_ns
        if self._based and (draft.says_something or quiet_ns >= QUIET_NS):
            self._put(draft)
        if scanned is not None:
            self._put(changes.whole(moment, scanned))
            self._based = True

    def _put(self, draft: MapDraft) -> None:
        self._told_ns = draft.t_ns
        self._channel.put_later(self._assembler.map, draft)

    def _tell_content(self) -> None:
        """Send the prompt hashes of finished requests."""
        ended = self._tap.ended
        while ended and self._content is not None:
            t_ns, request = ended.popleft()
            if (content := self._content.of(request)) is not None:
                self._channel.put_later(self._assembler.content, t_ns, *content)
