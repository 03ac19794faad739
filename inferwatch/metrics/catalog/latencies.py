"""The rows of the latency table, and what a client measures of the same."""

from collectors.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Unit, metrics

S, LOW = Unit.SECONDS, Better.LOWER
HIGH, NEITHER = Better.HIGHER, Better.NEITHER

LATENCIES = (
    *metrics(
        "",
        Vantage.FRONTEND,
        (
            "ttft_s",
            "TTFT",
            "Time to first token",
            S,
            LOW,
            "From the arrival of a request at the API server to its first token.",
            "first_token - arrived",
        ),
        (
            "e2el_s",
            "E2EL",
            "End-to-end latency",
            S,
            LOW,
            (
                "From the arrival of a request at the API server to its last token, of "
                "requests that finished properly."
            ),
            "finished - arrived",
        ),
    ),
    *metrics(
        "",
        Vantage.ENGINE,
        (
            "queue_s",
            "queue",
            "Queue time",
            S,
            LOW,
            "How long a request waited in the engine until it was first scheduled.",
            "scheduled - added",
        ),
        (
            "prefill_s",
            "prefill",
            "Prefill time",
            S,
            LOW,
            (
                "From a request's first scheduling to the end of the step that gave "
                "its first token."
            ),
            "end of the first token's step - scheduled",
        ),
        (
            "tpot_s",
            "TPOT",
            "Time per output token",
            S,
            LOW,
            (
                "A finished request's mean time per token after the first; unknown "
                "below two tokens."
            ),
            "(last - first token) / (output tokens - 1)",
        ),
        (
            "itl_s",
            "ITL",
            "Inter-token latency",
            S,
            LOW,
            (
                "Each gap between two consecutive steps that gave a request tokens, "
                "preemptions included, pooled over requests."
            ),
            "end of a step - end of the request's previous step with output",
        ),
        (
            "decode_s",
            "decode",
            "Decode time",
            S,
            LOW,
            "From a request's first token to its last.",
            "last - first token",
        ),
    ),
)

CLIENT = (
    *metrics(
        "client.",
        Vantage.CLIENT,
        (
            "ttft_s",
            "TTFT",
            "Time to first token",
            S,
            LOW,
            (
                "From the moment a request was meant to be sent to its first chunk, so "
                "that a late sender cannot flatter the server."
            ),
            "first chunk - intended send",
        ),
        (
            "e2el_s",
            "E2EL",
            "End-to-end latency",
            S,
            LOW,
            (
                "From the moment a request was meant to be sent to its last chunk, of "
                "requests that succeeded."
            ),
            "last chunk - intended send",
        ),
        (
            "tpot_s",
            "TPOT",
            "Time per output token",
            S,
            LOW,
            "A succeeded request's mean time per token after the first.",
            "(last - first chunk) / (output tokens - 1)",
        ),
        (
            "itl_s",
            "ICL",
            "Inter-chunk latency",
            S,
            LOW,
            "Each gap between two chunks of a stream; a chunk may hold several tokens.",
            "chunk - previous chunk",
        ),
        (
            "sent",
            "sent",
            "Requests sent",
            Unit.REQUESTS,
            NEITHER,
            "Requests of the load that were sent, warm-up left out.",
            "request records with a send time",
        ),
        (
            "succeeded",
            "ok",
            "Requests succeeded",
            Unit.REQUESTS,
            HIGH,
            "Requests of the load that were answered in full, warm-up left out.",
            "request records without failure",
        ),
        (
            "failed",
            "failed",
            "Requests failed",
            Unit.REQUESTS,
            LOW,
            "Requests of the load that failed for the client, warm-up left out.",
            "request records with a failure",
        ),
        (
            "aborted",
            "aborted",
            "Requests aborted",
            Unit.REQUESTS,
            NEITHER,
            "Requests of the load cut off by us at its end: no failure of the server.",
            "request records aborted by the generator",
        ),
        (
            "warmup",
            "warm-up",
            "Warm-up requests",
            Unit.REQUESTS,
            NEITHER,
            "Requests that only warmed the engine up; in no latency of the client.",
            "request records of the warm-up phase",
        ),
        (
            "rate_per_s",
            "asked",
            "Asked rate",
            Unit.PER_SECOND,
            NEITHER,
            "The arrival rate the load generator was last told to keep.",
            "latest load event with a rate",
        ),
        (
            "last_event",
            "load",
            "Last load event",
            Unit.NONE,
            NEITHER,
            "What the load generator last began or ended.",
            "latest load event",
        ),
        (
            "latencies",
            "",
            "Client latencies",
            Unit.NONE,
            NEITHER,
            "The client's own latency table.",
            "request records and token times",
        ),
    ),
)
