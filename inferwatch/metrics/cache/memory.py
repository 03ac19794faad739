"""The picture of KV blocks and its numbers, as screens show them."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from collectors.contract.readings import Vantage
from inferwatch.metrics.number import NOW, Better, Number, Unit, piece

LATEST_MAP = "latest map"
"""Span of numbers that come from block maps, a few times a second."""
RESTS_ON = (
    "The map is copied a few times a second, so both moments are late by up to a "
    "quarter of one."
)


class BlockState(IntEnum):
    """The state of a block; its values are stored in ``BlockPicture.states``."""

    FREE = 0
    CACHED = 1
    """Not held by any request; its content can be reused."""
    PRIVATE = 2
    SHARED = 3
    """Held by several requests."""
    NULL = 4
    """vLLM's null block, which no request can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPicture:
    """Every block of one rank, as the probe copied the pool."""

    source: str
    rank: int
    t_ns: int
    """When the probe copied the pool."""
    states: bytes
    """One ``BlockState`` per block, by block id."""
    references: bytes
    """Reference count of each block, at most 255, by block id."""
    holders: tuple[int, ...]
    """Ordinals of the requests that hold blocks, in order of arrival."""
    held: tuple[tuple[int, ...], ...]
    """Blocks of each of these holders, in token order."""
    cost_us: float | None = None
    """Time that the copy took on the engine's thread, in microseconds."""

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Number of free, cached, private and shared blocks."""
        count = self.states.count
        free, cached, private, shared, _ = (count(state) for state in BlockState)
        return free, cached, private, shared


@piece("holder", Vantage.ENGINE, span=LATEST_MAP)
class Holder:
    """One request and the blocks it holds."""

    key: str
    name: str
    """The client's request id if known, else the engine's."""
    ordinal: int
    blocks: Annotated[
        int,
        Number(
            "blocks",
            "Blocks held",
            "Blocks that a request holds, alone or with others.",
            unit=Unit.BLOCKS,
        ),
    ]
    private_blocks: Annotated[
        int,
        Number(
            "private",
            "Private blocks",
            "Blocks that nobody else holds: they are free once it ends.",
            unit=Unit.BLOCKS,
        ),
    ]
    shared_blocks: Annotated[
        int,
        Number(
            "shared", "Shared blocks", "Blocks that others hold, too.", unit=Unit.BLOCKS
        ),
    ]
    tokens: Annotated[
        int | None,
        Number(
            "tokens",
            "Tokens computed",
            "Tokens of prompt and output that are in the cache for it, up to the "
            "latest step.",
            unit=Unit.TOKENS,
            span=NOW,
        ),
    ] = None
    waste_tokens: Annotated[
        int | None,
        Number(
            "waste",
            "Room in its last block",
            "Tokens for which its last block has room.",
            unit=Unit.TOKENS,
            better=Better.LOWER,
            span=NOW,
        ),
    ] = None
    age_s: Annotated[
        float | None,
        Number(
            "age",
            "Age",
            "How long ago it was first scheduled.",
            unit=Unit.SECONDS,
            span=NOW,
        ),
    ] = None


@piece("hit", Vantage.ENGINE, span="session")
class HitPoint:
    """The estimated hit rate of a prefix cache of another size, by reuse distance."""

    blocks: Annotated[
        int,
        Number(
            "cache",
            "Size of the cache",
            "How many blocks such a cache would have; 0: without limit.",
            unit=Unit.BLOCKS,
        ),
    ]
    factor: Annotated[
        float | None,
        Number(
            "times",
            "Times the present size",
            "How much larger it would be; unknown where it has no limit.",
        ),
    ]
    hit_rate: Annotated[
        float,
        Number(
            "would hit",
            "Hit rate at that size",
            "Prompt tokens that such a cache would have held, of those looked up: a "
            "request counts as one use, at its end.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
        ),
    ]


@piece("room", Vantage.ENGINE)
class Room:
    """How many more requests like the present ones would fit into the KV cache."""

    requests: Annotated[
        int,
        Number(
            "room for",
            "Room for requests",
            "How many more requests of the median size fit now.",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
            span=NOW,
        ),
    ]
    idle_blocks: Annotated[
        int,
        Number(
            "idle",
            "Idle blocks",
            "Blocks that nobody holds, those with reusable content included.",
            unit=Unit.BLOCKS,
            better=Better.HIGHER,
            span=NOW,
        ),
    ]
    tokens_per_request: Annotated[
        int,
        Number(
            "per request",
            "Tokens of a request",
            "The median of prompt and output of those that finished.",
            unit=Unit.TOKENS,
        ),
    ]
    blocks_per_request: Annotated[
        int,
        Number(
            "blocks each",
            "Blocks of a request",
            "What that many tokens need.",
            unit=Unit.BLOCKS,
        ),
    ]
    shared_blocks_per_request: Annotated[
        float,
        Number(
            "shared each",
            "Shared blocks of a request",
            "Of these, what such a request finds held by others and need not have "
            "anew.",
            unit=Unit.BLOCKS,
        ),
    ] = 0.0
    """Cached but idle blocks save no room: they are reused for new content."""
    n: Annotated[
        int,
        Number(
            "rests on",
            "Finished requests",
            "How many finished requests that rests on.",
            unit=Unit.REQUESTS,
        ),
    ] = 0


@piece("memory", Vantage.ENGINE)
class Memory:
    """Requests that hold the KV cache, by the latest block map or over the window."""

    map_age_s: Annotated[
        float | None,
        Number(
            "map",
            "Age of the map",
            "How long ago the engine's block pool was last copied.",
            unit=Unit.SECONDS,
            span=NOW,
        ),
    ] = None
    private_blocks: Annotated[
        int | None,
        Number(
            "private",
            "Private blocks",
            "Blocks that one request holds: they are free once it ends.",
            unit=Unit.BLOCKS,
            span=LATEST_MAP,
        ),
    ] = None
    shared_blocks: Annotated[
        int | None,
        Number(
            "shared",
            "Shared blocks",
            "Blocks that several requests hold, because they begin alike.",
            unit=Unit.BLOCKS,
            better=Better.HIGHER,
            span=LATEST_MAP,
        ),
    ] = None
    holders: Annotated[
        tuple[Holder, ...],
        Number(
            "holders",
            "Holders",
            "The requests that hold blocks, those with the most first.",
            span=LATEST_MAP,
        ),
    ] = ()
    """Empty unless rows of requests are requested."""
    waste_tokens: Annotated[
        int | None,
        Number(
            "waste",
            "Room in last blocks",
            "Tokens for which there is room in the last blocks of all holders: nobody "
            "else can use it.",
            unit=Unit.TOKENS,
            better=Better.LOWER,
            span=LATEST_MAP,
        ),
    ] = None
    waste_share: Annotated[
        float | None,
        Number(
            "waste share",
            "Share wasted",
            "That room, as a share of all the room in used blocks.",
            unit=Unit.SHARE,
            better=Better.LOWER,
            span=LATEST_MAP,
        ),
    ] = None
    tokens_saved: Annotated[
        int | None,
        Number(
            "saved",
            "Tokens saved by sharing",
            "Tokens that would be held on top, if each request held its own copy of "
            "what it shares.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
            span=LATEST_MAP,
        ),
    ] = None
    """Sum over blocks of (references - 1) x block size."""
    growth_blocks_per_s: Annotated[
        float | None,
        Number(
            "growth",
            "Growth",
            "How fast used blocks become more, a second; less than 0: fewer.",
            unit=Unit.BLOCKS,
            better=Better.LOWER,
            span="last 10 s",
        ),
    ] = None
    full_in_s: Annotated[
        float | None,
        Number(
            "full in",
            "Time to full",
            "When all blocks will be used if they go on to grow as in the last ten "
            "seconds; unknown while they do not, or mostly swing within what the last "
            "minute has seen.",
            unit=Unit.SECONDS,
            better=Better.HIGHER,
            span=NOW,
        ),
    ] = None
    evicted: Annotated[
        int | None,
        Number(
            "evicted",
            "Evicted blocks",
            "Cached blocks that gave way to others, as maps tell: one that came and "
            "went between two of them is not among these. The cache's own events, "
            "where there are any, tell of all.",
            unit=Unit.BLOCKS,
            better=Better.LOWER,
        ),
    ] = None
    evicted_per_s: Annotated[
        float | None,
        Number(
            "evictions",
            "Evictions",
            "The same, a second.",
            unit=Unit.PER_SECOND,
            better=Better.LOWER,
        ),
    ] = None
    eviction_age_p50_s: Annotated[
        float | None,
        Number(
            "idle before",
            "Age at eviction p50",
            "How long an evicted block had not been used, half of them at most so "
            f"long. {RESTS_ON}",
            unit=Unit.SECONDS,
            better=Better.HIGHER,
        ),
    ] = None
    eviction_age_max_s: Annotated[
        float | None,
        Number(
            "idle before max",
            "Age at eviction max",
            f"The longest that an evicted block had not been used. {RESTS_ON}",
            unit=Unit.SECONDS,
            better=Better.HIGHER,
        ),
    ] = None
    hit_rate: Annotated[
        float | None,
        Number(
            "hit rate",
            "Prefix-cache hit rate",
            "Prompt tokens found in the prefix cache, of those looked up.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
        ),
    ] = None
    hit_rate_lifetime: Annotated[
        float | None,
        Number(
            "hit rate, session",
            "Hit rate of the session",
            "The same over the whole session, never instead of the window's.",
            unit=Unit.SHARE,
            better=Better.HIGHER,
            span="session",
        ),
    ] = None
    hit_curve: Annotated[
        tuple[HitPoint, ...],
        Number(
            "larger cache",
            "Hits of larger caches",
            "What the prefix cache would have hit if it were larger: an estimate by "
            "the reuse distance of blocks, as far off as its first point is from the "
            "counted hit rate of the session.",
            span="session",
        ),
    ] = ()
    """The present size first, then larger ones; the last is unlimited."""
    hit_curve_blocks: Annotated[
        int,
        Number(
            "rests on",
            "Blocks looked up",
            "How many blocks of prompts that estimate rests on.",
            unit=Unit.BLOCKS,
            span="session",
        ),
    ] = 0
    room: Annotated[
        Room | None,
        Number(
            "room for",
            "Room for more",
            "How many more requests of the present mix fit, and why.",
            span=NOW,
        ),
    ] = None
