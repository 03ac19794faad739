"""Steps of the window, and the KV cache."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import NOW, Better, Metric, Unit, metrics

STEPS = metrics(
    "steps.",
    Vantage.ENGINE,
    Metric(
        key="count",
        abbr="steps",
        title="Steps",
        unit=Unit.STEPS,
        definition="Passes of scheduler and model that ended in the window.",
        formula="steps by their end",
    ),
    Metric(
        key="batch_mean",
        abbr="batch",
        title="Mean batch",
        unit=Unit.REQUESTS,
        better=Better.HIGHER,
        definition="Requests per step, on average.",
        formula="(prefill + decode requests) / steps",
    ),
    Metric(
        key="batch_max",
        abbr="batch max",
        title="Largest batch",
        unit=Unit.REQUESTS,
        definition="The most requests in one step.",
        formula="max of prefill + decode requests",
    ),
    Metric(
        key="duration_s",
        abbr="step",
        title="Step time",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition="How long a step took; idle time is left out.",
        formula="end - max(start, previous end)",
    ),
    Metric(
        key="share_by_bound",
        abbr="bound by",
        title="What binds",
        unit=Unit.SHARE,
        definition=(
            "Share of the steps' time by what kept the head of the queue from being "
            "scheduled: nothing waits (under-loaded: the engine has room; in --json "
            "and files: nothing), seqs (max_num_seqs), tokens (token budget), kv "
            "(blocks), deferred (all that wait need something first: a grammar, a KV "
            "transfer, a LoRA slot, an encoder), other. One slow step weighs as much "
            "as many fast ones."
        ),
        formula="time of steps with the cause / time of all steps",
    ),
    Metric(
        key="steps_by_bound",
        abbr="steps bound by",
        title="Steps by what binds",
        unit=Unit.STEPS,
        definition=(
            "How many steps each of these causes bound, as given in --json and in "
            "files."
        ),
        formula="steps with the cause",
    ),
    Metric(
        key="output_tokens",
        abbr="out",
        title="Output tokens",
        unit=Unit.TOKENS,
        better=Better.HIGHER,
        definition="Tokens that the steps of the window produced.",
        formula="sum of produced",
    ),
    Metric(
        key="prefill_tokens",
        abbr="prefill",
        title="Prefill tokens",
        unit=Unit.TOKENS,
        definition=(
            "Prompt tokens that the steps of the window computed; those computed again"
            " after a preemption count too."
        ),
        formula="sum of prefill tokens",
    ),
    Metric(
        key="recomputed_tokens",
        abbr="recomputed",
        title="Recomputed tokens",
        unit=Unit.TOKENS,
        better=Better.LOWER,
        definition=(
            "Tokens computed a second time because a preemption threw them away."
        ),
        formula="sum of recomputed tokens",
    ),
    Metric(
        key="gap_share",
        abbr="gaps",
        title="Time between steps",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition=(
            "Share of the time in which there was work but no step under way: "
            "EngineCore heard of requests, sent tokens or waited for a core. Much of "
            "it means that the host holds the engine up. What it does within a step is "
            "not in it, and where steps overlap (async scheduling) there is none."
        ),
        formula="time between steps / (that + time of steps)",
    ),
    Metric(
        key="share_by_graph",
        abbr="graph",
        title="CUDA graphs",
        unit=Unit.SHARE,
        definition=(
            "Share of the steps' time by how they were launched: as one recorded CUDA "
            "graph (FULL), as one for each piece between attentions (PIECEWISE), or "
            "kernel by kernel (NONE). Told on GPUs by an engine that reports it "
            "(--cudagraph-metrics)."
        ),
        formula="time of steps with the mode / time of steps that tell theirs",
    ),
    Metric(
        key="padded_share",
        abbr="padding",
        title="Padding",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition=(
            "Share of the tokens computed that nobody asked for: a CUDA graph has "
            "fixed sizes, and a batch is filled up to the next one."
        ),
        formula="padded tokens / (scheduled + padded tokens)",
    ),
)

KV = metrics(
    "kv.",
    Vantage.ENGINE,
    Metric(
        key="total_blocks",
        abbr="blocks",
        title="KV blocks",
        unit=Unit.BLOCKS,
        definition="Blocks that requests can use; vLLM's null block is not counted.",
        formula="engine info; else used + cached + free",
    ),
    Metric(
        key="used_blocks",
        abbr="used",
        title="Used blocks",
        unit=Unit.BLOCKS,
        definition="Blocks that live requests hold.",
        span=NOW,
        formula="latest step or totals",
    ),
    Metric(
        key="cached_blocks",
        abbr="idle-cached",
        title="Idle-cached blocks",
        unit=Unit.BLOCKS,
        definition=(
            "Blocks that no request holds, but that still keep a reusable prefix; vLLM"
            " counts them as free."
        ),
        span=NOW,
        formula="latest step",
    ),
    Metric(
        key="free_blocks",
        abbr="free",
        title="Free blocks",
        unit=Unit.BLOCKS,
        definition="Blocks that hold nothing.",
        span=NOW,
        formula="latest step",
    ),
    Metric(
        key="peak_used_blocks",
        abbr="peak used",
        title="Peak",
        unit=Unit.BLOCKS,
        definition="The most blocks that were in use at once.",
        span="session",
        formula="max of used blocks over steps and totals",
    ),
    Metric(
        key="peak_usage",
        abbr="peak used",
        title="Peak, as a share",
        unit=Unit.SHARE,
        definition="The fullest the KV cache was, where only shares are told.",
        formula="max of KV usage",
        span="session",
    ),
    Metric(
        key="block_tokens",
        abbr="tok/block",
        title="Block size",
        unit=Unit.TOKENS,
        definition="Tokens that one KV block holds.",
        formula="engine info",
    ),
    Metric(
        key="preemptions",
        abbr="preemptions",
        title="Preemptions",
        unit=Unit.REQUESTS,
        better=Better.LOWER,
        definition=(
            "How often a request was put back into the queue to free its blocks."
        ),
        formula="preempted in steps",
    ),
    Metric(
        key="recomputed_tokens",
        abbr="recomputed",
        title="Recomputed tokens",
        unit=Unit.TOKENS,
        better=Better.LOWER,
        definition="Tokens computed again in the window after a preemption.",
        formula="sum of recomputed tokens",
    ),
    Metric(
        key="prefix_queries",
        abbr="queried",
        title="Prefix queries",
        unit=Unit.TOKENS,
        definition=(
            "Prompt tokens that were looked up in the prefix cache in the window."
        ),
        formula="sum of prefix queries",
    ),
    Metric(
        key="prefix_hits",
        abbr="hits",
        title="Prefix hits",
        unit=Unit.TOKENS,
        better=Better.HIGHER,
        definition="Prompt tokens that were found in the prefix cache in the window.",
        formula="sum of prefix hits",
    ),
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
