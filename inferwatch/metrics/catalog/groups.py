"""The columns of a table of groups of requests."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Metric, Unit, metrics

OF_THE_LIST = "the requests listed"
"""What a group covers, whatever the window."""
GROUPS = (
    *metrics(
        "group.",
        None,
        Metric(
            key="name",
            abbr="group",
            title="Group",
            unit=Unit.NONE,
            definition="What its requests have in common.",
            formula="prompt length, model or LoRA, priority, class, header or cause",
        ),
        Metric(
            key="requests",
            abbr="n",
            title="Requests of the group",
            unit=Unit.REQUESTS,
            definition="How many of the requests listed are in the group.",
            formula="count",
        ),
        Metric(
            key="live",
            abbr="live",
            title="Live requests of the group",
            unit=Unit.REQUESTS,
            definition="How many of them have not ended.",
            formula="count",
        ),
        Metric(
            key="failed",
            abbr="failed",
            title="Failed requests of the group",
            unit=Unit.REQUESTS,
            better=Better.LOWER,
            definition="How many of them failed or were aborted.",
            formula="count",
        ),
        span=OF_THE_LIST,
    ),
    *metrics(
        "group.",
        Vantage.FRONTEND,
        Metric(
            key="ttft_s",
            abbr="TTFT",
            title="Time to first token of the group",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="Exact percentiles of those that have had a first token.",
            formula="quantiles of request.ttft_s",
        ),
        span=OF_THE_LIST,
    ),
    *metrics(
        "group.",
        Vantage.ENGINE,
        Metric(
            key="tpot_p50_s",
            abbr="TPOT p50",
            title="Time per output token of the group",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="The median of those that have had two tokens.",
            formula="median of request.tpot_s",
        ),
        Metric(
            key="itl_max_s",
            abbr="ITL max",
            title="Longest gap of the group",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="The longest gap between two tokens of any of them.",
            formula="max of request.itl_max_s",
        ),
        Metric(
            key="cached_share",
            abbr="cached",
            title="Cached share of the group",
            unit=Unit.SHARE,
            better=Better.HIGHER,
            definition="Of their prompt tokens, those found in the prefix cache.",
            formula="cached tokens / prompt tokens",
        ),
        Metric(
            key="cause",
            abbr="main cause",
            title="Main cause of the group",
            unit=Unit.NONE,
            definition="What took most of their TTFTs, all together.",
            formula="largest of the sums of request.ttft_parts",
        ),
        span=OF_THE_LIST,
    ),
)
