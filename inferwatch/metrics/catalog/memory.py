"""Who holds the KV cache, what is reused, and how many more would fit."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import NOW, Better, Metric, Unit, metrics

LATEST = "latest map"
"""The span of what maps of blocks tell: they come a few times a second."""
RESTS_ON = (
    "The map is copied a few times a second, so both moments are late by up to a "
    "quarter of one."
)

MEMORY = metrics(
    "memory.",
    Vantage.ENGINE,
    Metric(
        key="map_age_s",
        abbr="map",
        title="Age of the map",
        unit=Unit.SECONDS,
        definition="How long ago the engine's block pool was last copied.",
        formula="now less the moment of the map, the oldest of all ranks",
        span=NOW,
    ),
    Metric(
        key="private_blocks",
        abbr="private",
        title="Private blocks",
        unit=Unit.BLOCKS,
        definition="Blocks that one request holds: they are free once it ends.",
        formula="blocks with one reference in the map",
        span=LATEST,
    ),
    Metric(
        key="shared_blocks",
        abbr="shared",
        title="Shared blocks",
        unit=Unit.BLOCKS,
        better=Better.HIGHER,
        definition="Blocks that several requests hold, because they begin alike.",
        formula="blocks with two references or more in the map",
        span=LATEST,
    ),
    Metric(
        key="holders",
        abbr="holders",
        title="Holders",
        unit=Unit.NONE,
        definition="The requests that hold blocks, those with the most first.",
        formula="lists of blocks in the map",
        span=LATEST,
    ),
    Metric(
        key="waste_tokens",
        abbr="waste",
        title="Room in last blocks",
        unit=Unit.TOKENS,
        better=Better.LOWER,
        definition=(
            "Tokens for which there is room in the last blocks of all holders: nobody "
            "else can use it."
        ),
        formula="sum over holders of block size less tokens in the last block",
        span=LATEST,
    ),
    Metric(
        key="waste_share",
        abbr="waste share",
        title="Share wasted",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition="That room, as a share of all the room in used blocks.",
        formula="room in last blocks / (used blocks x block size)",
        span=LATEST,
    ),
    Metric(
        key="tokens_saved",
        abbr="saved",
        title="Tokens saved by sharing",
        unit=Unit.TOKENS,
        better=Better.HIGHER,
        definition=(
            "Tokens that would be held on top, if each request held its own copy of "
            "what it shares."
        ),
        formula="sum over blocks of (references - 1) x block size",
        span=LATEST,
    ),
    Metric(
        key="growth_blocks_per_s",
        abbr="growth",
        title="Growth",
        unit=Unit.BLOCKS,
        better=Better.LOWER,
        definition="How fast used blocks become more, a second; less than 0: fewer.",
        formula="(used now - used ten seconds ago) / the time between, from steps",
        span="last 10 s",
    ),
    Metric(
        key="full_in_s",
        abbr="full in",
        title="Time to full",
        unit=Unit.SECONDS,
        better=Better.HIGHER,
        definition=(
            "When all blocks will be used if they go on to grow as in the last ten "
            "seconds; unknown while they do not."
        ),
        formula="(total - used) / growth",
        span=NOW,
    ),
    Metric(
        key="evicted",
        abbr="evicted",
        title="Evicted blocks",
        unit=Unit.BLOCKS,
        better=Better.LOWER,
        definition=(
            "Cached blocks that gave way to others, as maps tell: one that came and "
            "went between two of them is not among these. The cache's own events, "
            "where there are any, tell of all."
        ),
        formula="cached blocks whose content was given up, not on demand",
    ),
    Metric(
        key="evicted_per_s",
        abbr="evictions",
        title="Evictions",
        unit=Unit.PER_SECOND,
        better=Better.LOWER,
        definition="The same, a second.",
        formula="evicted / the part of the window in which there were maps",
    ),
    Metric(
        key="eviction_age_p50_s",
        abbr="idle before",
        title="Age at eviction p50",
        unit=Unit.SECONDS,
        better=Better.HIGHER,
        definition=(
            "How long an evicted block had not been used, half of them at most so "
            f"long. {RESTS_ON}"
        ),
        formula="the map that lacks it less the map in which it became idle",
    ),
    Metric(
        key="eviction_age_max_s",
        abbr="idle before max",
        title="Age at eviction max",
        unit=Unit.SECONDS,
        better=Better.HIGHER,
        definition=f"The longest that an evicted block had not been used. {RESTS_ON}",
        formula="the map that lacks it less the map in which it became idle",
    ),
    Metric(
        key="hit_rate",
        abbr="hit rate",
        title="Prefix-cache hit rate",
        unit=Unit.SHARE,
        better=Better.HIGHER,
        definition="Prompt tokens found in the prefix cache, of those looked up.",
        formula="prefix hits / prefix queries of steps",
    ),
    Metric(
        key="hit_rate_lifetime",
        abbr="hit rate, session",
        title="Hit rate of the session",
        unit=Unit.SHARE,
        better=Better.HIGHER,
        definition="The same over the whole session, never instead of the window's.",
        formula="prefix hits / prefix queries of steps",
        span="session",
    ),
    Metric(
        key="hit_curve",
        abbr="larger cache",
        title="Hits of larger caches",
        unit=Unit.NONE,
        definition=(
            "What the prefix cache would have hit if it were larger: an estimate by "
            "the reuse distance of blocks, as far off as its first point is from the "
            "counted hit rate of the session."
        ),
        formula="hashes of the blocks of requests that ended",
        span="session",
    ),
    Metric(
        key="hit_curve_blocks",
        abbr="rests on",
        title="Blocks looked up",
        unit=Unit.BLOCKS,
        definition="How many blocks of prompts that estimate rests on.",
        formula="full blocks of the prompts of requests that ended",
        span="session",
    ),
    Metric(
        key="room",
        abbr="room for",
        title="Room for more",
        unit=Unit.NONE,
        definition="How many more requests of the present mix fit, and why.",
        formula="idle blocks / blocks that a request needs anew",
        span=NOW,
    ),
)

HOLDER = metrics(
    "holder.",
    Vantage.ENGINE,
    Metric(
        key="blocks",
        abbr="blocks",
        title="Blocks held",
        unit=Unit.BLOCKS,
        definition="Blocks that a request holds, alone or with others.",
        formula="length of its lists in the map",
    ),
    Metric(
        key="private_blocks",
        abbr="private",
        title="Private blocks",
        unit=Unit.BLOCKS,
        definition="Blocks that nobody else holds: they are free once it ends.",
        formula="its blocks with one reference",
    ),
    Metric(
        key="shared_blocks",
        abbr="shared",
        title="Shared blocks",
        unit=Unit.BLOCKS,
        definition="Blocks that others hold, too.",
        formula="its blocks with two references or more",
    ),
    Metric(
        key="tokens",
        abbr="tokens",
        title="Tokens computed",
        unit=Unit.TOKENS,
        definition=(
            "Tokens of prompt and output that are in the cache for it, up to the "
            "latest step."
        ),
        formula="cached + prefilled, then prompt + output - 1",
        span=NOW,
    ),
    Metric(
        key="waste_tokens",
        abbr="waste",
        title="Room in its last block",
        unit=Unit.TOKENS,
        better=Better.LOWER,
        definition="Tokens for which its last block has room.",
        formula="block size less tokens in the last block",
        span=NOW,
    ),
    Metric(
        key="age_s",
        abbr="age",
        title="Age",
        unit=Unit.SECONDS,
        definition="How long ago it was first scheduled.",
        formula="now - scheduled",
        span=NOW,
    ),
    span=LATEST,
)

HIT = metrics(
    "hit.",
    Vantage.ENGINE,
    Metric(
        key="blocks",
        abbr="cache",
        title="Size of the cache",
        unit=Unit.BLOCKS,
        definition="How many blocks such a cache would have; 0: without limit.",
        formula="factor x blocks of the present one",
    ),
    Metric(
        key="factor",
        abbr="times",
        title="Times the present size",
        unit=Unit.NONE,
        definition="How much larger it would be; unknown where it has no limit.",
        formula="1, 2, 4, 8",
    ),
    Metric(
        key="hit_rate",
        abbr="would hit",
        title="Hit rate at that size",
        unit=Unit.SHARE,
        better=Better.HIGHER,
        definition=(
            "Prompt tokens that such a cache would have held, of those looked up: a "
            "request counts as one use, at its end."
        ),
        formula="blocks of prompts, all before them included, of a shorter distance",
    ),
    span="session",
)

ROOM = metrics(
    "room.",
    Vantage.ENGINE,
    Metric(
        key="requests",
        abbr="room for",
        title="Room for requests",
        unit=Unit.REQUESTS,
        better=Better.HIGHER,
        definition="How many more requests of the median size fit now.",
        formula="idle blocks / (blocks of a request - those it shares)",
        span=NOW,
    ),
    Metric(
        key="idle_blocks",
        abbr="idle",
        title="Idle blocks",
        unit=Unit.BLOCKS,
        better=Better.HIGHER,
        definition="Blocks that nobody holds, those with reusable content included.",
        formula="free + idle-cached",
        span=NOW,
    ),
    Metric(
        key="tokens_per_request",
        abbr="per request",
        title="Tokens of a request",
        unit=Unit.TOKENS,
        definition="The median of prompt and output of those that finished.",
        formula="p50 of prompt + output tokens",
    ),
    Metric(
        key="blocks_per_request",
        abbr="blocks each",
        title="Blocks of a request",
        unit=Unit.BLOCKS,
        definition="What that many tokens need.",
        formula="tokens of a request / block size, rounded up",
    ),
    Metric(
        key="shared_blocks_per_request",
        abbr="shared each",
        title="Shared blocks of a request",
        unit=Unit.BLOCKS,
        definition=(
            "Of these, what such a request finds held by others and need not have anew."
        ),
        formula=(
            "the smaller of what finished requests found cached and the share of what "
            "holders hold with others"
        ),
    ),
    Metric(
        key="n",
        abbr="rests on",
        title="Finished requests",
        unit=Unit.REQUESTS,
        definition="How many finished requests that rests on.",
        formula="requests that finished properly",
    ),
)
