"""How well the load generator's client does, and its columns over time."""

from collectors.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Unit, metrics

LOW, HIGH, NEITHER = Better.LOWER, Better.HIGHER, Better.NEITHER
S, PER_S, NONE = Unit.SECONDS, Unit.PER_SECOND, Unit.NONE
REQUESTS, SHARE, NS = Unit.REQUESTS, Unit.SHARE, Unit.NANOSECONDS

CLIENT_NOW = metrics(
    "client.",
    Vantage.CLIENT,
    (
        "run",
        "run",
        "Load run",
        NONE,
        NEITHER,
        "The load run that goes on, else the latest.",
        "readings of the run",
    ),
    (
        "events",
        "events",
        "Load events",
        NONE,
        NEITHER,
        "What load generators began, changed or ended, the latest 200.",
        "load events",
    ),
    (
        "timeline",
        "",
        "Client columns",
        NONE,
        NEITHER,
        "The columns of the client's charts.",
        "request records, token times, client samples",
    ),
    (
        "asked_mean_per_s",
        "asked",
        "Asked rate, mean",
        PER_S,
        NEITHER,
        ("Mean of the asked rate over the time of the window in which one was asked."),
        "load events with a rate",
    ),
    (
        "achieved_per_s",
        "sent",
        "Achieved rate",
        PER_S,
        NEITHER,
        (
            "Requests sent per second over the time of the window in which a load"
            " was sending, bursts included, warm-up and drain left out."
        ),
        "(ended + in flight) of a second - of the second before",
    ),
    (
        "slo",
        "SLO",
        "Objectives",
        NONE,
        NEITHER,
        "What a request of the load must hold, all at once, to be good.",
        "slo of the load plan",
    ),
    (
        "judged",
        "judged",
        "Judged requests",
        REQUESTS,
        NEITHER,
        (
            "Requests of the load that were held against the objectives; what we "
            "aborted before it broke one is not."
        ),
        "request records and token times",
    ),
    (
        "good",
        "good",
        "Good requests",
        REQUESTS,
        HIGH,
        (
            "Requests of the load that held every objective at once, counted from"
            " the time they were due."
        ),
        "request records and token times",
    ),
)

CLIENT_QUALITY = metrics(
    "client.",
    Vantage.CLIENT,
    (
        "verdict",
        "client",
        "Client verdict",
        NONE,
        NEITHER,
        (
            "CLIENT-BOUND when the client was too slow for the latencies it "
            "reports, over the last ten seconds of the run; UNKNOWN when there is"
            " too little to tell."
        ),
        "client samples and request records",
    ),
    (
        "reasons",
        "why",
        "Reasons",
        NONE,
        NEITHER,
        "Why the client is called CLIENT-BOUND.",
        "client samples and request records",
    ),
    (
        "send_lag_p99_s",
        "send lag p99",
        "Send lag, p99",
        S,
        LOW,
        (
            "From the time a request was due to its send, where nothing but the "
            "client kept it waiting, over the last ten seconds of the run."
        ),
        "sent - intended",
    ),
    (
        "recv_lag_p99_s",
        "receive",
        "Receive lag, p99",
        S,
        LOW,
        (
            "From the kernel's stamp of a read to the client's own, the worst of "
            "the last ten seconds' p99."
        ),
        "client samples",
    ),
    (
        "merged_share",
        "merged",
        "Merged reads",
        SHARE,
        LOW,
        (
            "Share of reads that brought several tokens' chunks at once, over the"
            " last ten seconds of the run."
        ),
        "merged reads / reads",
    ),
    (
        "cpu_share",
        "CPU",
        "Generator's CPU",
        SHARE,
        LOW,
        (
            "Share of one core that the load generator used, over the last ten "
            "seconds of the run."
        ),
        "CPU seconds / span of the client samples",
    ),
    span="last 10 s of the run",
)

CLIENT_TIMELINE = metrics(
    "client_timeline.",
    Vantage.CLIENT,
    (
        "asked_per_s",
        "asked",
        "Asked rate",
        PER_S,
        NEITHER,
        "The rate that was asked at the end of the bin; a gap in a closed loop.",
        "load events with a rate",
    ),
    (
        "sent_per_s",
        "sent",
        "Sent",
        PER_S,
        NEITHER,
        (
            "Requests sent per second in the bin, bursts included, warm-up and drain "
            "left out; told once a second."
        ),
        "(ended + in flight) of a second - of the second before",
    ),
    (
        "ttft_mean_s",
        "TTFT",
        "TTFT, mean",
        S,
        LOW,
        ("Mean TTFT, from the time a request was due, of the first chunks in the bin."),
        "sum / count",
    ),
    (
        "ttft_max_s",
        "TTFT max",
        "TTFT, worst",
        S,
        LOW,
        (
            "Worst TTFT, from the time a request was due, of the first chunks in "
            "the bin."
        ),
        "max",
    ),
    (
        "itl_mean_s",
        "ICL",
        "ICL, mean",
        S,
        LOW,
        "Mean gap between chunks in the bin, of requests that have ended.",
        "sum / count",
    ),
    (
        "itl_max_s",
        "ICL max",
        "ICL, worst",
        S,
        LOW,
        "Longest gap between chunks in the bin, of requests that have ended.",
        "max",
    ),
    span="each column",
)
