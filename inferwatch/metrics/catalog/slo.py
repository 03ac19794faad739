"""Objectives of requests, and who held them all at once."""

from inferwatch.metrics.catalog.metric import NOW, Better, Metric, Unit, metrics

SLO = (
    *metrics(
        "slo.",
        None,
        Metric(
            key="slo",
            abbr="SLO",
            title="Objectives",
            unit=Unit.NONE,
            definition="What each request is to hold, all at once.",
            formula="--slo, or the settings file",
            span=NOW,
        ),
        Metric(
            key="target",
            abbr="target",
            title="Target",
            unit=Unit.SHARE,
            definition="Share of the requests that must be good.",
            formula="--slo-target, else 0.95",
            span=NOW,
        ),
        Metric(
            key="vantage",
            abbr="seen by",
            title="Judged where",
            unit=Unit.NONE,
            definition=(
                "Who measured: TTFT and E2EL are the front end's, TPOT and gaps the "
                "engine's."
            ),
            formula="the metrics of the objectives",
        ),
        Metric(
            key="judged",
            abbr="judged",
            title="Judged requests",
            unit=Unit.REQUESTS,
            definition="Requests that ended and of which it is known.",
            formula="good + those that missed anything",
        ),
        Metric(
            key="good",
            abbr="good",
            title="Good requests",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
            definition="Requests that held every objective at once.",
            formula="finished, and no value beyond its limit",
        ),
        Metric(
            key="good_tokens",
            abbr="good tokens",
            title="Tokens of good requests",
            unit=Unit.TOKENS,
            better=Better.HIGHER,
            definition="Output tokens of requests that held every objective at once.",
            formula="sum of their output tokens",
        ),
        Metric(
            key="ended_tokens",
            abbr="ended tokens",
            title="Tokens of ended requests",
            unit=Unit.TOKENS,
            definition=(
                "Output tokens of all requests that ended, good, bad or undetermined, "
                "as far as they were told."
            ),
            formula="sum of their output tokens",
        ),
        Metric(
            key="undetermined",
            abbr="open",
            title="Undetermined requests",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            definition=(
                "Ended, neither good nor bad: the client left before a limit was "
                "broken, or what would tell was not seen."
            ),
            formula="ended - judged",
        ),
        Metric(
            key="goodput_per_s",
            abbr="goodput",
            title="Goodput",
            unit=Unit.PER_SECOND,
            better=Better.HIGHER,
            definition="Good requests a second.",
            formula="good / time watched",
        ),
        Metric(
            key="missed",
            abbr="missed",
            title="Missed objectives",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            definition=(
                "Requests that missed each metric; failed ones are bad by themselves, "
                "and a request may miss several."
            ),
            formula="value beyond its limit; what did not come is as late as the wait",
        ),
        Metric(
            key="burn",
            abbr="burn",
            title="Error budget burn",
            unit=Unit.NONE,
            better=Better.LOWER,
            definition=(
                "How fast the error budget is spent: above 1 more requests are bad "
                "than the target allows."
            ),
            formula="share of bad requests / (1 - target)",
        ),
        Metric(
            key="burn_long",
            abbr="burn 1 h",
            title="Error budget burn of an hour",
            unit=Unit.NONE,
            better=Better.LOWER,
            definition="The same over an hour, or the session where that is shorter.",
            formula="share of bad requests / (1 - target), by the minute",
            span="the last hour",
        ),
        Metric(
            key="budget_left",
            abbr="budget",
            title="Error budget left",
            unit=Unit.SHARE,
            better=Better.HIGHER,
            definition="Of the session's error budget; below 0 it is spent.",
            formula="1 - share of bad requests / (1 - target)",
            span="the whole session",
        ),
        Metric(
            key="missed_since_ns",
            abbr="missed since",
            title="Missed since",
            unit=Unit.NONE,
            definition=(
                "Since when too few requests are good: of the last minute, or of five "
                "where fewer than five ended, for five seconds."
            ),
            formula="good < target x judged, looked at once a second",
            span=NOW,
        ),
        Metric(
            key="classes",
            abbr="by class",
            title="Objectives by class",
            unit=Unit.NONE,
            definition=(
                "Those of a clause of their own: by class of a load, header, LoRA or "
                "priority, the first that a clause names."
            ),
            formula="judged and good requests of each",
        ),
    ),
    *metrics(
        "slo_class.",
        None,
        Metric(
            key="name",
            abbr="class",
            title="Class",
            unit=Unit.NONE,
            definition="The class that a clause of the objectives names.",
            formula="--slo",
        ),
        Metric(
            key="slo",
            abbr="SLO",
            title="Objectives of a class",
            unit=Unit.NONE,
            definition="What its requests are to hold.",
            formula="--slo",
        ),
        Metric(
            key="judged",
            abbr="judged",
            title="Judged requests of a class",
            unit=Unit.REQUESTS,
            definition="Of this class.",
            formula="as of all",
        ),
        Metric(
            key="good",
            abbr="good",
            title="Good requests of a class",
            unit=Unit.REQUESTS,
            better=Better.HIGHER,
            definition="Of this class.",
            formula="as of all",
        ),
    ),
)
