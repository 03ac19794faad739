"""A request's way through the engine, left to right."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import (
    metrics,
)

FLOW = metrics(
    "flow.",
    Vantage.ENGINE,
)
