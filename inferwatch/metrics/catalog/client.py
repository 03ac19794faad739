"""What the load generator's client measures and how well it does, also over time."""

from collectors.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Metric, Unit, metrics

CLIENT = metrics(
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
            "Each gap between two chunks of a stream; a chunk may hold several tokens."
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
            "Requests of the load cut off by us at its end: no failure of the server."
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
)

CLIENT_NOW = metrics(
    "client.",
    Vantage.CLIENT,
    Metric(
        key="run",
        abbr="run",
        title="Load run",
        unit=Unit.NONE,
        definition="The load run that goes on, else the latest.",
        formula="readings of the run",
    ),
    Metric(
        key="events",
        abbr="events",
        title="Load events",
        unit=Unit.NONE,
        definition="What load generators began, changed or ended, the latest 200.",
        formula="load events",
    ),
    Metric(
        key="timeline",
        abbr="",
        title="Client columns",
        unit=Unit.NONE,
        definition="The columns of the client's charts.",
        formula="request records, token times, client samples",
    ),
    Metric(
        key="asked_mean_per_s",
        abbr="asked",
        title="Asked rate, mean",
        unit=Unit.PER_SECOND,
        definition=(
            "Mean of the asked rate over the time of the window in which one was asked."
        ),
        formula="load events with a rate",
    ),
    Metric(
        key="achieved_per_s",
        abbr="sent",
        title="Achieved rate",
        unit=Unit.PER_SECOND,
        definition=(
            "Requests sent per second over the time of the window in which a load was "
            "sending, bursts included, warm-up and drain left out."
        ),
        formula="(ended + in flight) of a second - of the second before",
    ),
    Metric(
        key="slo",
        abbr="SLO",
        title="Objectives",
        unit=Unit.NONE,
        definition="What a request of the load must hold, all at once, to be good.",
        formula="slo of the load plan",
    ),
    Metric(
        key="judged",
        abbr="judged",
        title="Judged requests",
        unit=Unit.REQUESTS,
        definition=(
            "Requests of the load that were held against the objectives; what we "
            "aborted before it broke one is not."
        ),
        formula="request records and token times",
    ),
    Metric(
        key="good",
        abbr="good",
        title="Good requests",
        unit=Unit.REQUESTS,
        better=Better.HIGHER,
        definition=(
            "Requests of the load that held every objective at once, counted from the "
            "time they were due."
        ),
        formula="request records and token times",
    ),
)

CLIENT_QUALITY = metrics(
    "client.",
    Vantage.CLIENT,
    Metric(
        key="verdict",
        abbr="client",
        title="Client verdict",
        unit=Unit.NONE,
        definition=(
            "CLIENT-BOUND when the client was too slow for the latencies it reports, "
            "in the last ten seconds, or over the whole run once it has ended; while it"
            " goes on, OK again after ten good seconds. UNKNOWN: too little to tell."
        ),
        formula="client samples and request records",
    ),
    Metric(
        key="reasons",
        abbr="why",
        title="Reasons",
        unit=Unit.NONE,
        definition="Why the client is called CLIENT-BOUND.",
        formula="client samples and request records",
    ),
    Metric(
        key="cause",
        abbr="cause",
        title="What kept the client waiting",
        unit=Unit.NONE,
        definition=(
            "How many of the client's cores were busy when it was CLIENT-BOUND, and who"
            " kept them busy."
        ),
        formula="CPU time of the host and of the processes watched",
    ),
    Metric(
        key="send_lag_p99_s",
        abbr="send lag p99",
        title="Send lag, p99",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition=(
            "From the time a request was due to its send, where nothing but the client"
            " kept it waiting, over the last ten seconds of the run."
        ),
        formula="sent - intended",
    ),
    Metric(
        key="recv_lag_p99_s",
        abbr="receive",
        title="Receive lag, p99",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition=(
            "From the kernel's stamp of a read to the client's own, the worst of the "
            "last ten seconds' p99."
        ),
        formula="client samples",
    ),
    Metric(
        key="merged_share",
        abbr="merged",
        title="Merged reads",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition=(
            "Share of reads that brought several tokens' chunks at once, over the last"
            " ten seconds of the run."
        ),
        formula="merged reads / reads",
    ),
    Metric(
        key="cpu_share",
        abbr="CPU",
        title="Generator's CPU",
        unit=Unit.SHARE,
        better=Better.LOWER,
        definition=(
            "Share of one core that the load generator used, over the last ten seconds"
            " of the run."
        ),
        formula="CPU seconds / span of the client samples",
    ),
    span="last 10 s of the run",
)

CLIENT_TIMELINE = metrics(
    "client_timeline.",
    Vantage.CLIENT,
    Metric(
        key="asked_per_s",
        abbr="asked",
        title="Asked rate",
        unit=Unit.PER_SECOND,
        definition=(
            "The rate that was asked at the end of the bin; a gap in a closed loop."
        ),
        formula="load events with a rate",
    ),
    Metric(
        key="sent_per_s",
        abbr="sent",
        title="Sent",
        unit=Unit.PER_SECOND,
        definition=(
            "Requests sent per second in the bin, bursts included, warm-up and drain "
            "left out; told once a second."
        ),
        formula="(ended + in flight) of a second - of the second before",
    ),
    Metric(
        key="ttft_mean_s",
        abbr="TTFT",
        title="TTFT, mean",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition=(
            "Mean TTFT, from the time a request was due, of the first chunks in the "
            "bin."
        ),
        formula="sum / count",
    ),
    Metric(
        key="ttft_max_s",
        abbr="TTFT max",
        title="TTFT, worst",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition=(
            "Worst TTFT, from the time a request was due, of the first chunks in the "
            "bin."
        ),
        formula="max",
    ),
    Metric(
        key="itl_mean_s",
        abbr="ICL",
        title="ICL, mean",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition="Mean gap between chunks in the bin, of requests that have ended.",
        formula="sum / count",
    ),
    Metric(
        key="itl_max_s",
        abbr="ICL max",
        title="ICL, worst",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition=(
            "Longest gap between chunks in the bin, of requests that have ended."
        ),
        formula="max",
    ),
    span="each column",
)
