"""What the load generator's client measures and how well it does, also over time."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Metric, Unit, metrics

VERDICTS = {
    "OK": "client kept up",
    "CLIENT-BOUND": "CLIENT-BOUND",
    "UNKNOWN": "client not judged",
}
"""What a verdict on the client is called where nothing else says whose it is."""

CLIENT = metrics(
    "client.",
    Vantage.CLIENT,
    Metric(
        key="rate_per_s",
        abbr="asked",
        title="Asked rate",
        unit=Unit.PER_SECOND,
        definition="The arrival rate that the load generator was last told to keep.",
        formula="latest load event with a rate",
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
        definition="The load run that these numbers belong to.",
        formula="readings of the run",
    ),
    Metric(
        key="number",
        abbr="run",
        title="Number of the run",
        unit=Unit.NONE,
        definition=(
            "Its place among the session's runs, in the order in which they began."
        ),
        formula="load events",
    ),
    Metric(
        key="elsewhere",
        abbr="started elsewhere",
        title="Started elsewhere",
        unit=Unit.NONE,
        definition=(
            "Another program of this user started the run: it can be watched here, but"
            " not changed or stopped."
        ),
        formula="who gave notice of the run",
    ),
    Metric(
        key="others",
        abbr="other runs",
        title="Other runs",
        unit=Unit.NONE,
        definition="The session's other load runs, the latest 100.",
        formula="readings of each",
    ),
    Metric(
        key="events",
        abbr="events",
        title="Load events",
        unit=Unit.NONE,
        definition="When the run began, changed and ended; the latest 200 events.",
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
            "The mean of the rate asked of the run, over the time during which there "
            "was one."
        ),
        formula="load events with a rate",
    ),
    Metric(
        key="achieved_per_s",
        abbr="sent",
        title="Achieved rate",
        unit=Unit.PER_SECOND,
        definition=(
            "Requests sent per second while the run was sending; bursts count, warm-up"
            " and drain do not."
        ),
        formula="(ended + in flight) of a second - of the second before",
    ),
    Metric(
        key="slo",
        abbr="SLO",
        title="Objectives",
        unit=Unit.NONE,
        definition="The objectives that a request must meet, all of them, to be good.",
        formula="slo of the load plan",
    ),
    Metric(
        key="judged",
        abbr="judged",
        title="Judged requests",
        unit=Unit.REQUESTS,
        definition=(
            "Requests judged by the objectives; those we aborted before they missed "
            "one are not."
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
            "Requests that met every objective, counted from the time they were due."
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
            "CLIENT-BOUND if the client was too slow for the latencies it reports: in "
            "the last ten seconds, or over the whole run once it has ended. During a "
            "run it kept up again only after ten good seconds. Not judged, or UNKNOWN, "
            "where there is too little to tell by."
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
            "How many of the client's cores were busy while it was CLIENT-BOUND, and "
            "who kept them busy."
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
            "From the time a request was due until it was sent, where nothing but the "
            "client delayed it, over the last ten seconds of the run."
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
            "From the kernel's time stamp of a read to the client's own; the worst p99"
            " reported in the last ten seconds."
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
            "Share of reads that brought the chunks of several tokens at once, over "
            "the last ten seconds of the run."
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
        key="start_ns",
        abbr="start",
        title="Start",
        unit=Unit.NANOSECONDS,
        definition="Session time at which the first column begins.",
        formula="the window's, or the run's start",
    ),
    Metric(
        key="bin_ns",
        abbr="bin",
        title="Bin",
        unit=Unit.NANOSECONDS,
        definition="How much time each column covers.",
        formula="the window, or the run, in columns",
    ),
    Metric(
        key="asked_per_s",
        abbr="asked",
        title="Asked rate",
        unit=Unit.PER_SECOND,
        definition=(
            "The rate asked for at the end of the column; a closed loop has none."
        ),
        formula="load events with a rate",
    ),
    Metric(
        key="sent_per_s",
        abbr="sent",
        title="Sent",
        unit=Unit.PER_SECOND,
        definition=(
            "Requests sent per second in the column; bursts count, warm-up and drain "
            "do not. Reported once a second."
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
            "column."
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
            "column."
        ),
        formula="max",
    ),
    Metric(
        key="itl_mean_s",
        abbr="ITL",
        title="ITL, mean",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition=(
            "Mean gap between chunks in the column, of requests that have ended."
        ),
        formula="sum / count",
    ),
    Metric(
        key="itl_max_s",
        abbr="ITL max",
        title="ITL, worst",
        unit=Unit.SECONDS,
        better=Better.LOWER,
        definition=(
            "Longest gap between chunks in the column, of requests that have ended."
        ),
        formula="max",
    ),
    span="each column",
)
