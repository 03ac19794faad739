"""Steps of the window, and the KV cache."""

from collectors.readings import Vantage
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
            "scheduled: nothing, seqs (max_num_seqs), tokens (token budget), kv "
            "(blocks), other. One slow step weighs as much as many fast ones."
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
