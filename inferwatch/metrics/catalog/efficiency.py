"""What batch sizes cost and bring, and where the scheduler stood still."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import metrics

BATCH_CURVE = metrics(
    "batch_curve.",
    Vantage.ENGINE,
)

STALL = metrics(
    "stall.",
    Vantage.ENGINE,
)
