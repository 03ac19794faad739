"""The slowest requests of the window, and what made them slow."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import Better, Metric, Unit, metrics

SLOWEST = (
    *metrics(
        "slowest.",
        Vantage.FRONTEND,
        Metric(
            key="n",
            abbr="slowest",
            title="Slowest requests",
            unit=Unit.REQUESTS,
            definition=(
                "How many requests are counted as the slowest by TTFT: those from p99 "
                "on, below a hundred the slowest tenth; at most 64 of one second."
            ),
            formula="requests whose TTFT >= its p99",
        ),
        Metric(
            key="of",
            abbr="of",
            title="Requests with a first token",
            unit=Unit.REQUESTS,
            definition="Of how many requests these are the slowest.",
            formula="count of first_token",
        ),
        Metric(
            key="from_s",
            abbr="from",
            title="TTFT of the fastest of them",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="The shortest TTFT among the slowest requests.",
            formula="min(first_token - arrived)",
        ),
        Metric(
            key="is_p99",
            abbr="p99",
            title="From p99 on",
            unit=Unit.NONE,
            definition="Whether these are the requests from p99 on.",
            formula="requests with a first token >= 100",
        ),
        Metric(
            key="ttft_s",
            abbr="TTFT",
            title="Their TTFT together",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="The TTFT of all of the slowest requests, added up.",
            formula="sum(first_token - arrived)",
        ),
        Metric(
            key="groups",
            abbr="by cause",
            title="What made them slow",
            unit=Unit.NONE,
            definition="Their time by cause, the largest share first.",
            formula="parts of their TTFTs",
        ),
        Metric(
            key="worst_key",
            abbr="worst",
            title="The slowest request",
            unit=Unit.NONE,
            definition="The request with the longest TTFT.",
            formula="source and internal id",
        ),
        Metric(
            key="worst_ttft_s",
            abbr="worst TTFT",
            title="TTFT of the slowest request",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="The longest TTFT of the window.",
            formula="max(first_token - arrived)",
        ),
        Metric(
            key="sentence",
            abbr="slow by",
            title="What took most",
            unit=Unit.NONE,
            definition="The cause that took most of their time, as a sentence.",
            formula="the first of the groups",
        ),
    ),
    *metrics(
        "slow_group.",
        Vantage.ENGINE,
        Metric(
            key="cause",
            abbr="cause",
            title="Cause",
            unit=Unit.NONE,
            definition="What took the time of some of the slowest requests.",
            formula="events, and the steps between them by bound_by",
        ),
        Metric(
            key="requests",
            abbr="requests",
            title="Requests",
            unit=Unit.REQUESTS,
            definition="How many of the slowest requests it took most from.",
            formula="requests whose largest part it is",
        ),
        Metric(
            key="share",
            abbr="share",
            title="Share of their time",
            unit=Unit.SHARE,
            definition="Of the TTFT of all of the slowest, what this cause took.",
            formula="time by cause / TTFT of all of them",
        ),
        Metric(
            key="worst_key",
            abbr="worst",
            title="Who lost most to it",
            unit=Unit.NONE,
            definition="The request that this cause took most time from.",
            formula="source and internal id",
        ),
        Metric(
            key="worst_ttft_s",
            abbr="its TTFT",
            title="TTFT of that request",
            unit=Unit.SECONDS,
            better=Better.LOWER,
            definition="The TTFT of the request that this cause took most time from.",
            formula="first_token - arrived",
        ),
    ),
)
