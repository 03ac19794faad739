"""Who holds the KV cache, what is reused, and how many more would fit."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import metrics

LATEST = "latest map"
"""The span of what maps of blocks tell: they come a few times a second."""
RESTS_ON = (
    "The map is copied a few times a second, so both moments are late by up to a "
    "quarter of one."
)

MEMORY = metrics(
    "memory.",
    Vantage.ENGINE,
)

HOLDER = metrics(
    "holder.",
    Vantage.ENGINE,
    span=LATEST,
)

HIT = metrics(
    "hit.",
    Vantage.ENGINE,
    span="session",
)

ROOM = metrics(
    "room.",
    Vantage.ENGINE,
)
