"""What is known of single KV blocks, as a picture and as numbers."""

from dataclasses import dataclass
from enum import IntEnum


class BlockState(IntEnum):
    """What a block is; values stand in ``BlockPicture.states``."""

    FREE = 0
    CACHED = 1
    """Nobody holds it, and its content can be reused."""
    PRIVATE = 2
    SHARED = 3
    """Several hold it."""
    NULL = 4
    """None of the engine's own pool: nobody can hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPicture:
    """Every block of one rank at a moment, as the probe copied it from the pool."""

    source: str
    rank: int
    t_ns: int
    """Of the copy."""
    states: bytes
    """A ``BlockState`` each, by block id."""
    references: bytes
    """How many hold it, 255 at most, by block id."""
    holders: tuple[int, ...]
    """Ordinals of the requests that hold any, in the order of their coming."""
    held: tuple[tuple[int, ...], ...]
    """Of each of these, its blocks in the order of its tokens."""
    cost_us: float | None = None
    """What the copy cost on the engine's thread."""

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Free, idle-cached, private, shared."""
        count = self.states.count
        free, cached, private, shared, _ = (count(state) for state in BlockState)
        return free, cached, private, shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One request and what it holds."""

    key: str
    name: str
    """The id that clients know, else the engine's."""
    ordinal: int
    blocks: int
    private_blocks: int
    """Freed when it ends."""
    shared_blocks: int
    tokens: int | None = None
    """Computed so far: what the blocks are for."""
    waste_tokens: int | None = None
    """Room in its last block."""
    age_s: float | None = None
    """Since it was first scheduled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitPoint:
    """What a cache of another size would have hit; an estimate by reuse distance."""

    blocks: int
    """Its size; 0: without limit."""
    factor: float | None
    """Of the present size; None: without limit."""
    hit_rate: float
    """Cached prompt tokens / looked up, 0-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many more requests of the present mix would fit, and by what arithmetic."""

    requests: int
    idle_blocks: int
    """Free and idle-cached."""
    tokens_per_request: int
    """p50 of prompt and output together, of those that finished in the window."""
    blocks_per_request: int
    shared_blocks_per_request: float = 0.0
    """Of these, what a request of the mix finds held by others: it needs no new ones.
    What is cached and idle saves no room: it is used up as others are."""
    n: int = 0
    """How many finished requests this rests on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Who holds the KV cache; as of the latest map unless it says window."""

    map_age_s: float | None = None
    private_blocks: int | None = None
    shared_blocks: int | None = None
    holders: tuple[Holder, ...] = ()
    """Most blocks first; empty unless rows of requests are asked for."""
    waste_tokens: int | None = None
    """Room in last blocks, of all holders."""
    waste_share: float | None = None
    """Of the tokens that used blocks have room for, 0-1."""
    tokens_saved: int | None = None
    """Held once instead of once for each who shares: (references - 1) x block size."""
    growth_blocks_per_s: float | None = None
    """Of used blocks, over the last ten seconds."""
    full_in_s: float | None = None
    """At that growth; None while it does not grow."""
    evicted: int | None = None
    """Cached blocks that gave way to others, over the window."""
    evicted_per_s: float | None = None
    eviction_age_p50_s: float | None = None
    """From the last use of such a block to its end, over the window."""
    eviction_age_max_s: float | None = None
    hit_rate: float | None = None
    """Over the window."""
    hit_rate_lifetime: float | None = None
    hit_curve: tuple[HitPoint, ...] = ()
    """1x first, then larger, last without limit; over the lifetime."""
    hit_curve_blocks: int = 0
    """How many looked-up blocks it rests on."""
    room: Room | None = None
