"""A request's way through the engine, left to right."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import (
    NOW,
    Better,
    FlowColumn,
    FlowFact,
    Metric,
    Unit,
    metrics,
)

FLOW = metrics(
    "flow.",
    Vantage.ENGINE,
    Metric(
        key="arrivals_per_s",
        abbr="req/s",
        title="Arrivals",
        unit=Unit.PER_SECOND,
        definition=(
            "Requests that arrived per second, as seen by the frontend or the engine."
        ),
        formula="arrived or added / covered part of the window",
        flow=FlowFact(column=FlowColumn.TRAFFIC, inside=True),
    ),
    Metric(
        key="finished_per_s",
        abbr="done/s",
        title="Finished",
        unit=Unit.PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "Requests that finished per second; aborted and failed ones do not count."
        ),
        formula="finished with stop, length or repetition / covered part of the window",
        flow=FlowFact(column=FlowColumn.TRAFFIC),
    ),
    Metric(
        key="prompt_tokens_p50",
        abbr="prompt",
        title="Prompt length",
        unit=Unit.TOKENS,
        definition="Median prompt length of the requests that arrived.",
        formula="prompt tokens of arrivals",
        flow=FlowFact(column=FlowColumn.TRAFFIC, inside=True),
    ),
    Metric(
        key="finished",
        abbr="finished",
        title="Finished requests",
        unit=Unit.REQUESTS,
        better=Better.HIGHER,
        definition="Requests that finished; aborted and failed ones do not count.",
        formula="finished with stop, length or repetition",
        flow=FlowFact(column=FlowColumn.TRAFFIC),
    ),
    Metric(
        key="finished_as_sent",
        abbr="as sent",
        title="Finished requests, as sent",
        unit=Unit.REQUESTS,
        better=Better.HIGHER,
        definition=(
            "Requests that finished, as people sent them: one that asks for several "
            "answers (n=4) is several sequences to the engine, each with a row and a "
            "latency of its own, and one request here."
        ),
        formula="finished sequences that are alone or the first of their request",
    ),
    Metric(
        key="waiting",
        abbr="waiting",
        title="Waiting requests",
        unit=Unit.REQUESTS,
        better=Better.LOWER,
        definition="Requests in the engine's queue, preempted ones included.",
        span=NOW,
        formula="added, not yet scheduled; or as the latest step says, if that is more",
        flow=FlowFact(column=FlowColumn.QUEUE, text="{:,}", alarm="warn"),
    ),
    Metric(
        key="oldest_wait_s",
        abbr="oldest",
        title="Oldest wait",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition="How long the request that has waited longest has waited so far.",
        span=NOW,
        formula="now - added (or preempted)",
        flow=FlowFact(column=FlowColumn.QUEUE, inside=True),
    ),
    Metric(
        key="kv_usage",
        abbr="KV used",
        title="KV usage",
        unit=Unit.SHARE,
        definition="Share of the KV blocks that live requests hold.",
        span=NOW,
        formula="used / total blocks at the latest reading",
        flow=FlowFact(column=FlowColumn.QUEUE),
    ),
    Metric(
        key="preemptions",
        abbr="preempted",
        title="Preemptions",
        unit=Unit.REQUESTS,
        better=Better.LOWER,
        definition=(
            "How often a running request was put back into the queue to free its KV "
            "blocks."
        ),
        formula="preempted in steps",
        flow=FlowFact(column=FlowColumn.QUEUE, alarm="warn"),
    ),
    Metric(
        key="prefill_tokens_per_s",
        abbr="tok/s",
        title="Prefill rate",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "Prompt tokens computed per second; tokens computed again after a "
            "preemption count too."
        ),
        formula="prefill tokens / covered part of the window",
        flow=FlowFact(column=FlowColumn.PREFILL),
    ),
    Metric(
        key="budget_usage",
        abbr="budget",
        title="Token budget usage",
        unit=Unit.SHARE,
        definition="Share of the token budget that the steps used.",
        formula="scheduled tokens / max_num_batched_tokens, over steps",
        flow=FlowFact(column=FlowColumn.PREFILL, inside=True),
    ),
    Metric(
        key="prefix_hit_rate",
        abbr="hits",
        title="Prefix-cache hit rate",
        unit=Unit.SHARE,
        better=Better.HIGHER,
        definition=(
            "Share of the prompt tokens looked up in the prefix cache that were found "
            "there."
        ),
        formula="prefix hits / prefix queries, over steps",
        flow=FlowFact(column=FlowColumn.PREFILL),
    ),
    Metric(
        key="running",
        abbr="running",
        title="Running requests",
        unit=Unit.REQUESTS,
        definition="Requests that have been scheduled and have not ended.",
        span=NOW,
        formula="as the latest step says, less those ended since",
        flow=FlowFact(column=FlowColumn.DECODE, text="{:,}", limit="max_num_seqs"),
    ),
    Metric(
        key="batch_mean",
        abbr="batch",
        title="Batch size",
        unit=Unit.REQUESTS,
        better=Better.HIGHER,
        definition="Requests per step, averaged over the steps of the window.",
        formula="(prefill + decode requests) / steps",
        flow=FlowFact(column=FlowColumn.DECODE, text="{:.1f}"),
    ),
    Metric(
        key="step_s",
        abbr="step",
        title="Step time",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition=(
            "How long a pass of scheduler and model took; idle time is left out."
        ),
        formula="end - max(start, previous end)",
        flow=FlowFact(column=FlowColumn.DECODE, percentiles=("p50", "p99")),
    ),
    Metric(
        key="output_tokens_per_s",
        abbr="tok/s",
        title="Output rate",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition="Tokens produced per second.",
        formula="produced tokens / covered part of the window",
        flow=FlowFact(column=FlowColumn.OUT),
    ),
    Metric(
        key="output_tokens_per_s_now",
        abbr="tok/s",
        title="Output rate now",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "Tokens produced per second over the last two seconds, as in the status "
            "line."
        ),
        formula="produced tokens of the last two seconds / 2 s",
        span="last 2 s",
    ),
    Metric(
        key="tokens_per_s_per_user",
        abbr="per user",
        title="Stream speed",
        unit=Unit.TOKENS_PER_SECOND,
        better=Better.HIGHER,
        definition=(
            "Tokens per second that one stream receives: the inverse of the mean ITL."
        ),
        formula="1 / mean ITL",
        flow=FlowFact(column=FlowColumn.OUT),
    ),
    Metric(
        key="failed",
        abbr="failed",
        title="Failed requests",
        unit=Unit.REQUESTS,
        better=Better.LOWER,
        definition=(
            "Requests that failed: in the engine, because the engine was lost, or at "
            "the client."
        ),
        formula=(
            "finished with error; live when the engine was lost; records with failure"
        ),
        flow=FlowFact(column=FlowColumn.OUT, alarm="bad"),
    ),
    Metric(
        key="aborted",
        abbr="aborted",
        title="Aborted requests",
        unit=Unit.REQUESTS,
        better=Better.LOWER,
        definition="Requests that were cancelled by whoever sent them.",
        formula="finished with abort",
        flow=FlowFact(column=FlowColumn.OUT, inside=True),
    ),
    Metric(
        key="output_tokens_per_request",
        abbr="answer",
        title="Answer length",
        unit=Unit.TOKENS,
        definition="Output tokens for each request that finished, over the window.",
        formula="output tokens / finished requests",
    ),
    Metric(
        key="failed_share",
        abbr="failed",
        title="Share that failed",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition="Failed requests of those that finished or failed.",
        formula="failed / (finished + failed)",
    ),
    Metric(
        key="ended",
        abbr="ended",
        title="Ended, by reason",
        unit=Unit.REQUESTS,
        definition="Requests that ended, by the reason that the server counts them.",
        formula="difference of the server's counters",
    ),
)
