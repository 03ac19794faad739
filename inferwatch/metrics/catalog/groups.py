"""The columns of a table of groups of requests."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import metrics

OF_THE_LIST = "the requests listed"
"""What a group covers, whatever the window."""
GROUPS = (
    *metrics(
        "group.",
        None,
        span=OF_THE_LIST,
    ),
    *metrics(
        "group.",
        Vantage.FRONTEND,
        span=OF_THE_LIST,
    ),
    *metrics(
        "group.",
        Vantage.ENGINE,
        span=OF_THE_LIST,
    ),
)
