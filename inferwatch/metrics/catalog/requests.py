"""The columns of the request table."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import metrics

REQUESTS = (
    *metrics(
        "request.",
        None,
    ),
    *metrics(
        "request.",
        Vantage.FRONTEND,
    ),
    *metrics(
        "request.",
        Vantage.ENGINE,
    ),
    *metrics(
        "request.",
        Vantage.CLIENT,
    ),
    *metrics(
        "request.",
        None,
    ),
)
