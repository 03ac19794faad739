"""The slowest requests of the window, and what made them slow."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import metrics

SLOWEST = (
    *metrics(
        "slowest.",
        Vantage.FRONTEND,
    ),
    *metrics(
        "slow_group.",
        Vantage.ENGINE,
    ),
)
