"""Sends block maps and the content of requests while somebody listens.

A thread of its own asks the tap for a moment, makes of it what is new, and hands that
to the channel. Nothing is kept for who attaches late: they get a whole map.
"""

import secrets
import threading
import time
from collections.abc import Callable
from hashlib import blake2b
from time import monotonic_ns

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import AnyReading, BlockMap, PromptBlocks
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.attribute_reader import AttributeReader, Vllm
from embedded_engine.probe.blocks.block_changes import BlockChanges, Breath, MapDraft
from embedded_engine.probe.tap.block_tap import NEVER, BlockTap, Moment
from embedded_engine.probe.tap.step_assembler import RequestOrdinals
from embedded_engine.publishing.channel import Channel

EVERY_NS = NS_PER_S // 4
WHOLE_NS = 30 * NS_PER_S
"""A whole map comes so often: what was lost is made good then."""
NEWCOMERS_NS = 2 * NS_PER_S
"""Those who come one after the other share one."""
QUIET_NS = 5 * NS_PER_S
"""After so long an empty map says that the one before still holds."""
LATE_NS = NS_PER_S // 2
"""A moment that was due so long ago has no step: the engine may be at rest."""
LOOK_S, UNWATCHED_S = 0.05, 0.5
SAMPLE_BLOCKS = 2_048
"""So many blocks of a cache hashes are told of, or all there are."""
LOW_BITS = (1 << 63) - 1
HASHED_AT_ONCE = 64
"""Blocks of which numbers are made in one go: a part of a slice."""


def one_in(num_blocks: int) -> int:
    """Of how many hashes one is told: a power of two."""
    if num_blocks <= 2 * SAMPLE_BLOCKS:
        return 1
    return 1 << ((num_blocks // SAMPLE_BLOCKS).bit_length() - 1)


class MapAssembler:
    """Makes readings of what the thread found; on the channel's, which has ordinals."""

    def __init__(self, rank: int, ordinals: RequestOrdinals) -> None:
        self._rank = rank
        self._ordinals = ordinals
        self._holders: dict[str, int] = {}
        """Some are over for longer than their ordinals are remembered."""
        self._sequence = 0

    def map(self, draft: MapDraft) -> list[AnyReading]:
        """A block map."""
        holders = [self._holder(each) for each in draft.holders]
        gone = [self._holders.pop(each) for each in draft.gone if each in self._holders]
        if draft.whole:
            self._holders = dict(zip(draft.holders, holders, strict=True))
        told = BlockMap(
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
        return [told]

    def content(
        self,
        t_ns: int,
        request_id: str,
        blocks: tuple[int, int, int],
        told: tuple[list[int], list[int], int],
    ) -> list[AnyReading]:
        """What a request consisted of.

        ``blocks``: of its prompt, of all of it, and tokens of each. ``told``: hashes,
        their places, and of how many each is one.
        """
        hashes, places, each_is_one_in = told
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
        )
        return [reading]

    def _holder(self, request_id: str) -> int:
        known = self._holders.get(request_id)
        if known is None:
            known = self._holders[request_id] = self._ordinals.of(request_id)
        return known


class ContentTeller:
    """Turns the hashes of a request's blocks into numbers.

    Some versions of vLLM hash equal prompts alike in every process: who has a record
    could try whether a prompt is in it. So each hash is hashed again with a key that
    nobody keeps; equal blocks of one process still have equal numbers.
    """

    def __init__(
        self, num_blocks: int, block_tokens: int, missing: Callable[[str], None]
    ) -> None:
        self._key = secrets.token_bytes(16)
        self._one_in = one_in(num_blocks)
        self._block_tokens = block_tokens
        self._breathe = Breath()
        self._request = AttributeReader("Request", names.CONTENT, missing)

    def of(self, request: Vllm) -> tuple[str, tuple[int, int, int], Vllm] | None:
        """Its id, how many blocks it had, and hashes.

        None where it has no full block, or never came so far that one was looked up.
        """
        request_id, prompt_tokens, blocks, *begun = self._request.read(request)
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
        told = hashes, [] if self._one_in == 1 else places, self._one_in
        of_prompt = min(prompt_tokens // self._block_tokens, len(blocks))
        return request_id, (of_prompt, len(blocks), self._block_tokens), told

    def _number(self, block: bytes) -> int:
        told = blake2b(block, digest_size=8, key=self._key)
        return int.from_bytes(told.digest(), "big") & LOW_BITS


class BlockMaps:
    """The thread that turns what the tap kept into readings."""

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
        """Of the moment that was asked for; NEVER when none is."""
        self._next_ns = self._whole_ns = self._told_ns = 0
        self._based = False
        """A whole map was told, and all that changed since."""
        self._served = 0
        """Newcomers who got their whole map, or are about to."""
        self._thread = threading.Thread(
            target=self._run, name="inferwatch-map", daemon=True
        )

    def start(self) -> None:
        """Begin to look for listeners."""
        self._thread.start()

    def _teller(self) -> ContentTeller | None:
        """None where nothing is kept for reuse."""
        read = AttributeReader("BlockPool", names.CACHING, self._missing).read
        caching, tokens, blocks = read(self._tap.pool)
        if not caching or not tokens:
            return None
        return ContentTeller(len(blocks), tokens, self._missing)

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
        """Have the engine's thread keep a moment after the step it is at."""
        if self._wants_whole(now_ns):
            self._served, self._whole_ns = self._channel.newcomers, now_ns
            self._scanned = changes.scan()
        self._due_ns = self._tap.due_ns = monotonic_ns()

    def _wants_whole(self, now_ns: int) -> bool:
        patience = WHOLE_NS
        if self._channel.newcomers != self._served:
            patience = NEWCOMERS_NS
        return now_ns >= self._whole_ns + patience or not self._whole_ns

    def _tell(self, changes: BlockChanges, moment: Moment) -> None:
        """Pass on what is new, and then all there is where that is wanted."""
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
        """Pass on what those requests consisted of that are over."""
        ended = self._tap.ended
        while ended and self._content is not None:
            t_ns, request = ended.popleft()
            if (found := self._content.of(request)) is not None:
                self._channel.put_later(self._assembler.content, t_ns, *found)
