"""Steps of the window, and the KV cache."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import metrics

STEPS = metrics(
    "steps.",
    Vantage.ENGINE,
)

KV = metrics(
    "kv.",
    Vantage.ENGINE,
)

PREFIX_CACHE = metrics(
    "prefix_cache.",
    Vantage.ENGINE,
)
