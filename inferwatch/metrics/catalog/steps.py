"""Steps of the window, and the KV cache."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import NOW, Better, Metric, Unit, metrics

STEPS = metrics(
    "steps.",
    Vantage.ENGINE,
)

KV = metrics(
    "kv.",
    Vantage.ENGINE,
)

PREFIX_CACHE = metrics(
    "prefix_cache.",
    Vantage.ENGINE,
    Metric(
        key="blocks",
        abbr="cached",
        title="Cached blocks",
        unit=Unit.BLOCKS,
        definition=(
            "Full blocks that the prefix cache holds, in use or idle, as its events "
            "tell. With ~ where events are missing: there may be more, or fewer."
        ),
        span=NOW,
        formula="stored less removed",
    ),
    Metric(
        key="beginnings",
        abbr="beginnings",
        title="Beginnings",
        unit=Unit.BLOCKS,
        definition="Cached blocks that prompts begin with: as many trees of prefixes.",
        span=NOW,
        formula="blocks stored without a parent that is known",
    ),
    Metric(
        key="branches",
        abbr="branches",
        title="Branches",
        unit=Unit.BLOCKS,
        definition=(
            "Cached blocks after which prompts go on in different ways: what stands "
            "before them is shared."
        ),
        span=NOW,
        formula="blocks that several others follow",
    ),
    Metric(
        key="deepest",
        abbr="deepest",
        title="Deepest prefix",
        unit=Unit.BLOCKS,
        definition="The most cached blocks that follow one another.",
        span=NOW,
        formula="longest way from a beginning",
    ),
    Metric(
        key="stored",
        abbr="stored",
        title="Stored blocks",
        unit=Unit.BLOCKS,
        definition="Blocks that the prefix cache took in.",
        formula="stored in events",
    ),
    Metric(
        key="evicted",
        abbr="evicted",
        title="Evicted blocks",
        unit=Unit.BLOCKS,
        better=Better.LOWER,
        definition="Blocks that the prefix cache gave up for their room.",
        formula="removed in events",
    ),
    Metric(
        key="stored_again",
        abbr="again",
        title="Stored again",
        unit=Unit.BLOCKS,
        better=Better.LOWER,
        definition=(
            "Stored blocks that had been evicted before: with more room each would "
            "have been a hit."
        ),
        formula="stored in events, and removed in earlier ones",
    ),
    Metric(
        key="lifetime_s",
        abbr="life",
        title="Lifetime",
        unit=Unit.SECONDS,
        better=Better.HIGHER,
        definition="How long evicted blocks had been cached.",
        formula="removed - stored",
    ),
    Metric(
        key="missed",
        abbr="missed",
        title="Missed batches",
        unit=Unit.NONE,
        better=Better.LOWER,
        definition=(
            "Batches of cache events that never arrived, those before we came "
            "included. A replay_endpoint in --kv-events-config brings them back."
        ),
        span="session",
        formula="gaps in the numbers of batches",
    ),
    Metric(
        key="ranks",
        abbr="ranks",
        title="Caches",
        unit=Unit.NONE,
        definition="Ranks that tell of their blocks, each with a cache of its own.",
        span="session",
        formula="ranks of whom events came",
    ),
    Metric(
        key="block_tokens",
        abbr="tok/block",
        title="Block size",
        unit=Unit.TOKENS,
        definition="Tokens that one cached block holds.",
        span="session",
        formula="events",
    ),
    Metric(
        key="partial",
        abbr="partial",
        title="Partial",
        unit=Unit.NONE,
        definition=(
            "Batches of events are missing, or more blocks came than are followed: "
            "what is cached now may be more or less."
        ),
        span=NOW,
        formula="missed batches since all was last cleared",
    ),
    Metric(
        key="stored_per_s",
        abbr="stored/s",
        title="Stored blocks per second",
        unit=Unit.PER_SECOND,
        definition="Blocks that the prefix cache took in, per second.",
        formula="stored / time in which events were heard",
    ),
    Metric(
        key="evicted_per_s",
        abbr="evicted/s",
        title="Evicted blocks per second",
        unit=Unit.PER_SECOND,
        better=Better.LOWER,
        definition="Blocks that the prefix cache gave up for their room, per second.",
        formula="evicted / time in which events were heard",
    ),
)
