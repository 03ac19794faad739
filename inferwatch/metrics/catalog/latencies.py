"""The latencies of requests as the server's own processes measure them."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, LatencyLine, Metric, Unit, metrics

LATENCIES = (
    *metrics(
        "",
        Vantage.FRONTEND,
        Metric(
            key="ttft_s",
            abbr="TTFT",
            title="Time to first token",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "From the arrival of a request at the API server to its first token."
            ),
            formula="first_token - arrived",
            line=LatencyLine(ink="mean"),
        ),
    ),
    *metrics(
        "",
        Vantage.ENGINE,
        Metric(
            key="queue_s",
            abbr="queue",
            title="Queue time",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "How long a request waited in the engine until it was first scheduled."
            ),
            formula="scheduled - added",
            line=LatencyLine(ink="waiting", part=True),
        ),
        Metric(
            key="prefill_s",
            abbr="prefill",
            title="Prefill time",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "From a request's first scheduling to the end of the step that gave "
                "its first token."
            ),
            formula="end of the first token's step - scheduled",
            line=LatencyLine(ink="prefill", part=True),
        ),
        Metric(
            key="tpot_s",
            abbr="TPOT",
            title="Time per output token",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "Mean time per token after the first, of a request that finished; "
                "unknown below two tokens."
            ),
            formula="(last - first token) / (output tokens - 1)",
            line=LatencyLine(ink="decode"),
        ),
        Metric(
            key="itl_s",
            abbr="ITL",
            title="Inter-token latency",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "Each gap between two consecutive steps that gave a request tokens, "
                "pooled over all requests; time spent preempted counts."
            ),
            formula="end of a step - end of the request's previous step with output",
            line=LatencyLine(ink="decode"),
        ),
    ),
    *metrics(
        "",
        Vantage.FRONTEND,
        Metric(
            key="e2el_s",
            abbr="E2EL",
            title="End-to-end latency",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "From the arrival of a request at the API server to its last token, of"
                " requests that finished."
            ),
            formula="finished - arrived",
            line=LatencyLine(ink="output"),
        ),
    ),
    *metrics(
        "",
        Vantage.ENGINE,
        Metric(
            key="decode_s",
            abbr="decode",
            title="Decode time",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="From a request's first token to its last.",
            formula="last - first token",
        ),
    ),
)

LENGTHS = metrics(
    "",
    Vantage.SCRAPE,
    Metric(
        key="prompt_tokens",
        abbr="prompt",
        title="Prompt length",
        unit=Unit.TOKENS,
        definition="Tokens in the prompts of requests, by the server's own buckets.",
        formula="histogram of prompt tokens",
    ),
    Metric(
        key="output_tokens",
        abbr="output",
        title="Answer length",
        unit=Unit.TOKENS,
        definition="Tokens in the answers to requests, by the server's own buckets.",
        formula="histogram of output tokens",
    ),
    Metric(
        key="step_tokens",
        abbr="tokens per step",
        title="Tokens per step",
        unit=Unit.TOKENS,
        better=Better.HIGHER,
        definition=(
            "Tokens that an engine step computed, prompt and output together, by the "
            "server's own buckets."
        ),
        formula="histogram of tokens per step",
    ),
)
"""Lengths that only the buckets of a server tell."""
