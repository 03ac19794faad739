"""Latencies and lengths of requests, as measured by the server's own processes."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.number import Better, LatencyLine, Number, Unit

TTFT = Number(
    "TTFT",
    "Time to first token",
    "From the arrival of a request at the API server to its first token.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.FRONTEND,
    place=LatencyLine("mean"),
    key="ttft_s",
)
QUEUE = Number(
    "queue",
    "Queue time",
    "How long a request waited in the engine until it was first scheduled.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.ENGINE,
    place=LatencyLine("waiting", part=True),
    key="queue_s",
)
PREFILL = Number(
    "prefill",
    "Prefill time",
    "From a request's first scheduling to the end of the step that gave its first "
    "token.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.ENGINE,
    place=LatencyLine("prefill", part=True),
    key="prefill_s",
)
TPOT = Number(
    "TPOT",
    "Time per output token",
    "Mean time per token after the first, of a request that finished; unknown below "
    "two tokens.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.ENGINE,
    place=LatencyLine("decode"),
    key="tpot_s",
)
ITL = Number(
    "ITL",
    "Inter-token latency",
    "Each gap between two consecutive steps that gave a request tokens, pooled over "
    "all requests; time spent preempted counts.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.ENGINE,
    place=LatencyLine("decode"),
    key="itl_s",
)
E2EL = Number(
    "E2EL",
    "End-to-end latency",
    "From the arrival of a request at the API server to its last token, of requests "
    "that finished.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.FRONTEND,
    place=LatencyLine("output"),
    key="e2el_s",
)
DECODE = Number(
    "decode",
    "Decode time",
    "From a request's first token to its last.",
    unit=Unit.SECONDS,
    better=Better.LOWER,
    vantage=Vantage.ENGINE,
    key="decode_s",
)
LATENCIES = {each.key: each for each in (TTFT, QUEUE, PREFILL, TPOT, ITL, E2EL, DECODE)}
"""Latencies by the keys of readings, JSON and files; in the latency table's order."""
VANTAGES = {
    each.key: each.vantage
    for each in LATENCIES.values()
    if each.place is not None and each.vantage is not None
}
"""Who measures each row of the latency table, in its order."""
LENGTHS = {
    each.key: each
    for each in (
        Number(
            "prompt",
            "Prompt length",
            "Tokens in the prompts of requests, by the server's own buckets.",
            unit=Unit.TOKENS,
            vantage=Vantage.SCRAPE,
            key="prompt_tokens",
        ),
        Number(
            "output",
            "Answer length",
            "Tokens in the answers to requests, by the server's own buckets.",
            unit=Unit.TOKENS,
            vantage=Vantage.SCRAPE,
            key="output_tokens",
        ),
        Number(
            "tokens per step",
            "Tokens per step",
            "Tokens that an engine step computed, prompt and output together, by the "
            "server's own buckets.",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
            vantage=Vantage.SCRAPE,
            key="step_tokens",
        ),
    )
}
