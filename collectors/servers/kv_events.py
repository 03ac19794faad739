"""Reads KV cache events: blocks stored in and removed from a prefix cache.

vLLM publishes them over ZeroMQ with ``--kv-events-config``, and lists the endpoints at
``/kv_event_sources``; SGLang in the same encoding, listed in ``/server_info``. Batches
are numbered from 0 without gaps, so losses are known; a server with a
``replay_endpoint`` resends them, including those before we joined. Token ids in the
events are skipped. Blocks in other tiers than the GPU's cache are told apart.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S, SessionClock, wall_offset_ns
from collectors.contract.readings import AnyReading, KvCacheEvents
from collectors.servers.families import KV_EVENTS
from collectors.servers.published import NONSENSE, PublishedStream

MOST_TOKENS = 1 << 20
"""Tokens of a block."""
MOST_EVENTS = 50_000
"""Events of one batch: a step removes no more blocks than it computes, and decoding
millions would block the thread."""
LONGEST_NS = 7 * 24 * 3600 * NS_PER_S
MASK = (1 << 64) - 1
ARRAYS = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
"""First bytes of an array in MessagePack."""
LATEST_S = 1e11
GPU = "GPU"
MOST_TIERS = 8
"""Tiers of a batch told apart; events of further ones are left out."""
LONGEST_NAME = 32

Hash = int | bytes
Hashes = Annotated[list[Hash], msgspec.Meta(max_length=MOST_EVENTS)]


# vLLM sends events as maps since 0.24 and as arrays before. Fields not named here, such
# as token ids, are skipped.


class Stored(msgspec.Struct, tag="BlockStored", gc=False):
    """A chain of blocks was stored in the cache."""

    block_hashes: Hashes
    parent_block_hash: Hash | None = None
    block_size: int | None = None
    medium: str | None = None
    group_idx: int | None = None


class Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Blocks were removed from the cache."""

    block_hashes: Hashes
    medium: str | None = None
    group_idx: int | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """All blocks were removed from the cache."""


class OldStored(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    """The array form of Stored."""

    block_hashes: Hashes
    parent_block_hash: Hash | None
    token_ids: msgspec.Raw
    block_size: int | None = None
    lora_id: msgspec.Raw = msgspec.Raw(b"\xc0")
    medium: str | None = None
    group_idx: None = None


class OldRemoved(msgspec.Struct, tag="BlockRemoved", array_like=True, gc=False):
    """The array form of Removed."""

    block_hashes: Hashes
    medium: str | None = None
    group_idx: None = None


class OldCleared(msgspec.Struct, tag="AllBlocksCleared", array_like=True, gc=False):
    """The array form of Cleared."""


class Batch(msgspec.Struct, array_like=True, gc=False):
    """Events of one engine step."""

    ts: float
    """Unix time on the server's clock."""
    events: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MOST_EVENTS)]
    data_parallel_rank: int | None = None


Event = Stored | Removed | Cleared | OldStored | OldRemoved | OldCleared
_batch = msgspec.msgpack.Decoder(Batch)
_map = msgspec.msgpack.Decoder(Stored | Removed | Cleared)
_array = msgspec.msgpack.Decoder(OldStored | OldRemoved | OldCleared)


def key_of(block_hash: Hash, group: int | None = None) -> int:
    """Key of a block: 64 bits of its hash, combined with its KV cache group."""
    if isinstance(block_hash, bytes):
        block_hash = int.from_bytes(block_hash[-8:], "big")
    return (block_hash ^ (group or 0) * 0x9E3779B97F4A7C15) & MASK


def events_of(batch: Batch) -> Iterator[Event]:
    """Known events of a batch; fields and kinds not known are skipped."""
    for raw in batch.events:
        is_array = memoryview(raw)[0] in ARRAYS
        try:
            event: Event = (_array if is_array else _map).decode(raw)
        except NONSENSE:
            continue
        yield event


def tier_of(event: Event) -> str | None:
    """The tier whose blocks an event is of; None: the GPU's cache."""
    medium = getattr(event, "medium", None)
    return None if medium in {None, "", GPU} else medium[:LONGEST_NAME]


class KvReadingBuilder:
    """Collects events into readings, each applied as cleared, removed, then stored."""

    def __init__(self, empty: KvCacheEvents) -> None:
        self._empty = empty
        """A reading without events, with all other fields set."""
        self._readings: list[KvCacheEvents] = []
        self._block_tokens: int | None = None
        self._begin()

    def take(self, event: Event) -> None:
        """Add an event, starting a new reading if it reverses an earlier one."""
        if isinstance(event, Cleared | OldCleared):
            self._flush()
            self._cleared = True
            return
        keys = [key_of(each, event.group_idx) for each in event.block_hashes]
        if isinstance(event, Removed | OldRemoved):
            if not self._stored.keys().isdisjoint(keys):
                self._flush()
            self._removed += keys
            return
        parent = event.parent_block_hash
        before = None if parent is None else key_of(parent, event.group_idx)
        for key in keys:
            self._stored.setdefault(key, before)
            before = key
        if event.block_size is not None and 0 < event.block_size < MOST_TOKENS:
            self._block_tokens = event.block_size

    def readings(self) -> list[KvCacheEvents]:
        """The readings, at least one: the batch number matters even without events."""
        self._flush(last=True)
        return self._readings

    def _begin(self) -> None:
        self._cleared = False
        self._removed: list[int] = []
        self._stored: dict[int, int | None] = {}

    def _flush(self, *, last: bool = False) -> None:
        something = self._cleared or self._removed or self._stored
        if not something and not (last and not self._readings):
            return
        self._readings.append(
            replace(
                self._empty,
                stored=list(self._stored),
                parents=list(self._stored.values()),
                removed=self._removed,
                cleared=self._cleared,
                block_tokens=self._block_tokens,
            )
        )
        self._empty = replace(self._empty, missed=0)
        self._begin()


class RankEvents:
    """Orders the batches of one rank, drops repeated ones and counts missing ones."""

    def __init__(
        self, clock: SessionClock, source: str, rank: int, *, same_host: bool
    ) -> None:
        self.expected = 0
        """Number of the next batch."""
        self.interrupted = False
        """The connection was lost; the next number shows whether the server
        restarted."""
        self._clock = clock
        self._source = source
        self._rank = rank
        self._same_host = same_host
        self._last_live = -1
        self._cleared = False

    def begins_anew(self, number: int) -> None:
        """Detect a restart of the server by a live batch number that does not rise."""
        restarted = number <= self._last_live
        if self.interrupted and number != self.expected:
            restarted = True
        self.interrupted = False
        self._last_live = number
        if restarted:
            self.expected = 0
            self._cleared = True

    def take(self, number: int, payload: bytes, *, live: bool) -> list[AnyReading]:
        """Readings of a batch; empty if it is a repetition or invalid."""
        if number < self.expected:
            return []
        try:
            batch = _batch.decode(payload)
        except NONSENSE:
            return []  # the next batch will show that this one is missing
        empty = KvCacheEvents(
            source=self._source,
            t_ns=self._t_ns(batch.ts, live=live),
            rank=self._rank,
            sequence=number,
            missed=number - self.expected,
        )
        change = KvReadingBuilder(empty)
        if self._cleared:
            change.take(Cleared())
        tiers: dict[str | None, KvReadingBuilder] = {None: change}
        for event in events_of(batch):
            tier = tier_of(event)
            if tier not in tiers and len(tiers) <= MOST_TIERS:
                apart = replace(empty, missed=0, medium=tier)
                tiers[tier] = KvReadingBuilder(apart)
            if tier in tiers:
                tiers[tier].take(event)
        self.expected, self._cleared = number + 1, False
        return [each for builder in tiers.values() for each in builder.readings()]

    def nothing_yet(self) -> list[AnyReading]:
        """A reading that says the server has published nothing since its start."""
        nothing = KvCacheEvents(
            source=self._source,
            t_ns=self._clock.now_ns(),
            rank=self._rank,
            sequence=-1,
            cleared=True,
        )
        return [nothing]

    def _t_ns(self, wall_s: float, *, live: bool) -> int:
        """Session time of a batch; another host's clock is trusted for replays only."""
        now_ns = self._clock.now_ns()
        sensible = 0 < wall_s < LATEST_S  # False for NaN
        if not sensible or (live and not self._same_host):
            return now_ns
        t_ns = round(wall_s * NS_PER_S) - wall_offset_ns() - self._clock.start_ns
        return t_ns if now_ns - LONGEST_NS < t_ns <= now_ns else now_ns


class KvEventStream(PublishedStream):
    """A collector of one server's KV cache events."""

    WHAT = "KV events"
    FOUND_BY = KV_EVENTS

    def _reader(self, rank: int, *, same_host: bool) -> RankEvents:
        source = self.server.source
        return RankEvents(self._clock, source, rank, same_host=same_host)
