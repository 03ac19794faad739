"""The rows of the latency table, and what a client measures of the same."""

from collectors.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Metric, Unit, metrics

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
        ),
        Metric(
            key="e2el_s",
            abbr="E2EL",
            title="End-to-end latency",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "From the arrival of a request at the API server to its last token, of"
                " requests that finished properly."
            ),
            formula="finished - arrived",
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
        ),
        Metric(
            key="tpot_s",
            abbr="TPOT",
            title="Time per output token",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "A finished request's mean time per token after the first; unknown "
                "below two tokens."
            ),
            formula="(last - first token) / (output tokens - 1)",
        ),
        Metric(
            key="itl_s",
            abbr="ITL",
            title="Inter-token latency",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "Each gap between two consecutive steps that gave a request tokens, "
                "preemptions included, pooled over requests."
            ),
            formula="end of a step - end of the request's previous step with output",
        ),
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

CLIENT = (
    *metrics(
        "client.",
        Vantage.CLIENT,
        Metric(
            key="ttft_s",
            abbr="TTFT",
            title="Time to first token",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "From the moment a request was meant to be sent to its first chunk, so"
                " that a late sender cannot flatter the server."
            ),
            formula="first chunk - intended send",
        ),
        Metric(
            key="e2el_s",
            abbr="E2EL",
            title="End-to-end latency",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "From the moment a request was meant to be sent to its last chunk, of "
                "requests that succeeded."
            ),
            formula="last chunk - intended send",
        ),
        Metric(
            key="tpot_s",
            abbr="TPOT",
            title="Time per output token",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="A succeeded request's mean time per token after the first.",
            formula="(last - first chunk) / (output tokens - 1)",
        ),
        Metric(
            key="itl_s",
            abbr="ICL",
            title="Inter-chunk latency",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "Each gap between two chunks of a stream; a chunk may hold several "
                "tokens."
            ),
            formula="chunk - previous chunk",
        ),
        Metric(
            key="sent",
            abbr="sent",
            title="Requests sent",
            unit=Unit.REQUESTS,
            definition="Requests of the load that were sent, warm-up left out.",
            formula="request records with a send time",
        ),
        Metric(
            key="succeeded",
            abbr="ok",
            title="Requests succeeded",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
            definition=(
                "Requests of the load that were answered in full, warm-up left out."
            ),
            formula="request records without failure",
        ),
        Metric(
            key="failed",
            abbr="failed",
            title="Requests failed",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            definition=(
                "Requests of the load that failed for the client, warm-up left out."
            ),
            formula="request records with a failure",
        ),
        Metric(
            key="aborted",
            abbr="aborted",
            title="Requests aborted",
            unit=Unit.REQUESTS,
            definition=(
                "Requests of the load cut off by us at its end: no failure of the "
                "server."
            ),
            formula="request records aborted by the generator",
        ),
        Metric(
            key="warmup",
            abbr="warm-up",
            title="Warm-up requests",
            unit=Unit.REQUESTS,
            definition=(
                "Requests that only warmed the engine up; in no latency of the client."
            ),
            formula="request records of the warm-up phase",
        ),
        Metric(
            key="rate_per_s",
            abbr="asked",
            title="Asked rate",
            unit=Unit.PER_SECOND,
            definition="The arrival rate the load generator was last told to keep.",
            formula="latest load event with a rate",
        ),
        Metric(
            key="last_event",
            abbr="load",
            title="Last load event",
            unit=Unit.NONE,
            definition="What the load generator last began or ended.",
            formula="latest load event",
        ),
        Metric(
            key="latencies",
            abbr="",
            title="Client latencies",
            unit=Unit.NONE,
            definition="The client's own latency table.",
            formula="request records and token times",
        ),
    ),
)
