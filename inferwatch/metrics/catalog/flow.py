"""A request's way through the engine, left to right."""

from collectors.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Metric, Unit, metrics

FLOW = metrics(
    "flow.",
    Vantage.ENGINE,
    Metric(
        key="arrivals_per_s",
        abbr="req/s",
        title="Arrivals",
        unit=Unit.PER_SECOND,
        definition="Requests per second that came in, seen by front end or engine.",
        formula="arrived or added / covered part of the window",
    ),
    Metric(
        key="finished_per_s",
        abbr="done/s",
        title="Finished",
        unit=Unit.PER_SECOND,
        better=Better.HIGHER,
        definition="Requests per second that ended properly.",
        formula="finished with stop, length or repetition / covered part of the window",
    ),
    Metric(
        key="prompt_tokens_p50",
        abbr="prompt",
        title="Prompt length",
        unit=Unit.TOKENS,
        definition="Median prompt length of the requests that came in.",
        formula="prompt tokens of arrivals",
    ),
    Metric(
        key="waiting",
        abbr="waiting",
        title="Waiting requests",
        unit=Unit.REQUESTS,
        better=Better.LOWER,
        definition="Requests in the engine's queue now, preempted ones included.",
        formula="added, not yet scheduled; or as the latest step says, if that is more",
    ),
    Metric(
        key="oldest_wait_s",
        abbr="oldest",
        title="Oldest wait",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition="How long the request waiting longest has waited so far.",
        formula="now - added (or preempted)",
    ),
    Metric(
        key="kv_usage",
        abbr="KV used",
        title="KV usage",
        unit=Unit.SHARE,
        definition="Share of the KV blocks that live requests hold.",
        formula="used / total blocks at the latest reading",
    ),
    Metric(
        key="running",
        abbr="running",
        title="Running requests",
        unit=Unit.REQUESTS,
        definition="Requests scheduled and not ended now.",
        formula="as the latest step says, less those ended since",
    ),
    Metric(
        key="batch_mean",
        abbr="batch",
        title="Batch size",
        unit=Unit.REQUESTS,
        better=Better.HIGHER,
        definition="Requests per step, mean over the steps of the window.",
        formula="(prefill + decode requests) / steps",
    ),
    Metric(
        key="prefill_tokens_per_s",
        abbr="tok/s",
        title="Prefill rate",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "Prompt tokens computed per second, recomputation after preemption "
            "included."
        ),
        formula="prefill tokens / covered part of the window",
    ),
    Metric(
        key="output_tokens_per_s",
        abbr="tok/s",
        title="Output rate",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition="Tokens that came out of steps per second.",
        formula="produced tokens / covered part of the window",
    ),
    Metric(
        key="tokens_per_s_per_user",
        abbr="per user",
        title="Stream speed",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition="What one stream reads: the inverse of the mean ITL.",
        formula="1 / mean ITL",
    ),
    Metric(
        key="budget_usage",
        abbr="budget",
        title="Token budget usage",
        unit=Unit.SHARE,
        definition="Share of the token budget that steps used.",
        formula="scheduled tokens / max_num_batched_tokens, over steps",
    ),
    Metric(
        key="prefix_hit_rate",
        abbr="hits",
        title="Prefix-cache hit rate",
        unit=Unit.SHARE,
        better=Better.HIGHER,
        definition=(
            "Share of the looked-up prompt tokens that were found in the prefix cache."
        ),
        formula="prefix hits / prefix queries, over steps",
    ),
    Metric(
        key="step_s",
        abbr="step",
        title="Step time",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition="Duration of a step of scheduler and model; idle is left out.",
        formula="end - max(start, previous end)",
    ),
    Metric(
        key="finished",
        abbr="finished",
        title="Finished requests",
        unit=Unit.REQUESTS,
        better=Better.HIGHER,
        definition="Requests of the window that ended properly.",
        formula="finished with stop, length or repetition",
    ),
    Metric(
        key="failed",
        abbr="failed",
        title="Failed requests",
        unit=Unit.REQUESTS,
        better=Better.LOWER,
        definition=(
            "Requests of the window that failed, in the engine, with it, or for a "
            "client."
        ),
        formula=(
            "finished with error; live when the engine was lost; records with failure"
        ),
    ),
    Metric(
        key="aborted",
        abbr="aborted",
        title="Aborted requests",
        unit=Unit.REQUESTS,
        better=Better.LOWER,
        definition="Requests of the window given up by whoever asked.",
        formula="finished with abort",
    ),
    Metric(
        key="preemptions",
        abbr="preempted",
        title="Preemptions",
        unit=Unit.REQUESTS,
        better=Better.LOWER,
        definition=(
            "Times a running request was put back into the queue to free its KV blocks."
        ),
        formula="preempted in steps",
    ),
)
