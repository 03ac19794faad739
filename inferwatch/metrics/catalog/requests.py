"""The columns of the request table."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Metric, Unit, metrics

REQUESTS = (
    *metrics(
        "request.",
        None,
        Metric(
            key="key",
            abbr="key",
            title="Key",
            unit=Unit.NONE,
            definition="The request's name within this session.",
            formula="source and internal id",
        ),
        Metric(
            key="state",
            abbr="state",
            title="State",
            unit=Unit.NONE,
            definition=(
                "Where the request is: arrived, queued, prefill, decode, preempted, "
                "finished, aborted or failed."
            ),
            formula="its latest event or step",
        ),
        Metric(
            key="request_id",
            abbr="id",
            title="Internal id",
            unit=Unit.NONE,
            definition="The engine's own id for the request.",
            formula="any event",
        ),
        Metric(
            key="sequence",
            abbr="sequence",
            title="Sequence",
            unit=Unit.NONE,
            definition=(
                "Which answer of several it is, as the reply counts its choices: a "
                "request with n=4 is four sequences, 0 to 3, with a row each."
            ),
            formula="the number before the internal id",
        ),
    ),
    *metrics(
        "request.",
        Vantage.FRONTEND,
        Metric(
            key="external_id",
            abbr="client id",
            title="External id",
            unit=Unit.NONE,
            definition="The id that clients and the server's log use.",
            formula="arrived",
        ),
        Metric(
            key="arrived_ns",
            abbr="arrived",
            title="Arrival",
            unit=Unit.NANOSECONDS,
            definition=(
                "Session time at which it arrived at the API server; where that is "
                "unknown, in the engine."
            ),
            formula="arrived, else added",
        ),
        Metric(
            key="ttft_s",
            abbr="TTFT",
            title="Time to first token",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="From its arrival at the API server to its first token.",
            formula="first_token - arrived",
        ),
        Metric(
            key="e2el_s",
            abbr="E2EL",
            title="End-to-end latency",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "From its arrival at the API server to its last token, if it finished."
            ),
            formula="finished - arrived",
        ),
        Metric(
            key="priority",
            abbr="priority",
            title="Priority",
            unit=Unit.NONE,
            definition="Lower goes first; unknown where all requests have the same.",
            formula="added",
        ),
        Metric(
            key="header",
            abbr="header",
            title="Header",
            unit=Unit.NONE,
            definition="What it said in the one header that was chosen to group by.",
            formula="arrived",
        ),
        Metric(
            key="reason",
            abbr="reason",
            title="Finish reason",
            unit=Unit.NONE,
            definition="Why it ended: stop, length, repetition, abort, error or lost.",
            formula="finished",
        ),
    ),
    *metrics(
        "request.",
        Vantage.ENGINE,
        Metric(
            key="cause",
            abbr="cause",
            title="Main cause",
            unit=Unit.NONE,
            definition=(
                "What took the largest part of its TTFT, or of its wait so far."
            ),
            formula="largest of its TTFT's parts",
        ),
        Metric(
            key="ttft_parts",
            abbr="TTFT parts",
            title="Parts of the TTFT",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "Its TTFT by cause: the API, each reason why it waited in the queue, "
                "its own prefill and that of others; what nothing explains is unknown."
            ),
            formula="events, and the steps between them by bound_by",
        ),
        Metric(
            key="itl_cause",
            abbr="late by",
            title="Cause of the longest gap",
            unit=Unit.NONE,
            definition=(
                "Why its longest gap came late, if it is above 5 ms and three times "
                "the median of its gaps."
            ),
            formula="the step that the late token came out of",
        ),
        Metric(
            key="lora",
            abbr="model/LoRA",
            title="LoRA adapter",
            unit=Unit.NONE,
            definition=(
                "The LoRA adapter that it asked for; where there is none, screens name "
                "the model."
            ),
            formula="added",
        ),
        Metric(
            key="ordinal",
            abbr="#",
            title="Ordinal",
            unit=Unit.NONE,
            definition="The number that steps use for the request.",
            formula="added",
        ),
        Metric(
            key="prompt_tokens",
            abbr="prompt",
            title="Prompt tokens",
            unit=Unit.TOKENS,
            definition="Length of its prompt.",
            formula="arrived or added",
        ),
        Metric(
            key="cached_tokens",
            abbr="cached",
            title="Cached tokens",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
            definition="Prompt tokens that were found in the prefix cache.",
            formula="scheduled or finished",
        ),
        Metric(
            key="output_tokens",
            abbr="out",
            title="Output tokens",
            unit=Unit.TOKENS,
            definition="Tokens produced for it so far.",
            formula="produced in steps; what its end reports, if that is more",
        ),
        Metric(
            key="max_tokens",
            abbr="max",
            title="Token limit",
            unit=Unit.TOKENS,
            definition="The most output tokens that it may have.",
            formula="arrived or added",
        ),
        Metric(
            key="temperature",
            abbr="temp",
            title="Temperature",
            unit=Unit.NONE,
            definition="The sampling temperature it asked for.",
            formula="arrived or added",
        ),
        Metric(
            key="added_ns",
            abbr="added",
            title="Added to the queue",
            unit=Unit.NANOSECONDS,
            definition="Session time since which it has been in the engine's queue.",
            formula="added",
        ),
        Metric(
            key="queue_s",
            abbr="queue",
            title="Queue time",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="How long it waited in the engine until it was first scheduled.",
            formula="scheduled - added",
        ),
        Metric(
            key="prefill_s",
            abbr="prefill",
            title="Prefill time",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "From when it was first scheduled to the end of the step that gave its"
                " first token."
            ),
            formula="first token's step - scheduled",
        ),
        Metric(
            key="tpot_s",
            abbr="TPOT",
            title="Time per output token",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition=(
                "Mean time per token after the first, so far; unknown below two tokens."
            ),
            formula="(last - first token) / (output tokens - 1)",
        ),
        Metric(
            key="itl_last_s",
            abbr="ITL last",
            title="Last gap",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="The gap before its latest token.",
            formula="latest gap between steps with output",
        ),
        Metric(
            key="itl_max_s",
            abbr="ITL max",
            title="Longest gap",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="The longest gap between two of its tokens.",
            formula="max gap between steps with output",
        ),
        Metric(
            key="decode_s",
            abbr="decode",
            title="Decode time",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="From its first token to its latest.",
            formula="last - first token",
        ),
        Metric(
            key="preemptions",
            abbr="pre",
            title="Preemptions",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            definition="How often it was put back into the queue to free its blocks.",
            formula="preempted in steps; what its end reports, if that is more",
        ),
    ),
    *metrics(
        "request.",
        Vantage.CLIENT,
        Metric(
            key="class_name",
            abbr="class",
            title="Class",
            unit=Unit.NONE,
            definition="Its class, where our load generator sends a mix of classes.",
            formula="the load event that has its id",
        ),
    ),
    *metrics(
        "request.",
        None,
        Metric(
            key="missed",
            abbr="slo",
            title="Objectives missed",
            unit=Unit.NONE,
            definition=(
                "Which objectives it missed; nothing where it held all, unknown where "
                "nobody can tell."
            ),
            formula="its values beyond their limits, once it has ended",
        ),
    ),
)
