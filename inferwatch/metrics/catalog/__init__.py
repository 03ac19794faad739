"""Every number a screen shows, declared once: tables, help and exports read this.

Rows of the latency table are keyed as in JSON (``ttft_s``); fields of a snapshot's
parts by part and name (``flow.waiting``, ``kv.used_blocks``, ``request.tpot_s``).
"""

from inferwatch.metrics.catalog.client import (
    CLIENT,
    CLIENT_NOW,
    CLIENT_QUALITY,
    CLIENT_TIMELINE,
    VERDICTS,
)
from inferwatch.metrics.catalog.cost import COST
from inferwatch.metrics.catalog.efficiency import BATCH_CURVE, STALL
from inferwatch.metrics.catalog.flow import FLOW
from inferwatch.metrics.catalog.groups import GROUPS
from inferwatch.metrics.catalog.hardware import CHARTS, GPU, HARDWARE, HOST, PROCESS
from inferwatch.metrics.catalog.limits import (
    DEVICE_MEMORY,
    LIMITS,
    OPERATING_POINT,
    SAVING,
    TIME_SPLIT,
)
from inferwatch.metrics.catalog.memory import HIT, HOLDER, MEMORY, ROOM
from inferwatch.metrics.catalog.metric import (
    NOW,
    Better,
    FlowColumn,
    FlowFact,
    LatencyLine,
    Metric,
    Unit,
    said_of,
)
from inferwatch.metrics.catalog.price import SPENDING
from inferwatch.metrics.catalog.requests import REQUESTS
from inferwatch.metrics.catalog.run import RUN
from inferwatch.metrics.catalog.slo import SLO
from inferwatch.metrics.catalog.slowest import SLOWEST
from inferwatch.metrics.catalog.steps import KV, PREFIX_CACHE, STEPS
from inferwatch.metrics.catalog.timeline import TIMELINE
from inferwatch.metrics.number import Number, number_of, numbers

__all__ = [
    "CATALOG",
    "NOW",
    "Better",
    "FlowColumn",
    "FlowFact",
    "LatencyLine",
    "Metric",
    "Number",
    "Unit",
    "client_words",
    "label_of",
    "number_of",
    "numbers",
]

CATALOG: dict[str, Number] = {
    metric.key: said_of(metric)
    for group in (
        FLOW,
        STEPS,
        BATCH_CURVE,
        STALL,
        KV,
        PREFIX_CACHE,
        MEMORY,
        HOLDER,
        HIT,
        ROOM,
        LIMITS,
        OPERATING_POINT,
        TIME_SPLIT,
        DEVICE_MEMORY,
        SAVING,
        TIMELINE,
        CHARTS,
        HARDWARE,
        GPU,
        HOST,
        PROCESS,
        REQUESTS,
        SLOWEST,
        SLO,
        SPENDING,
        GROUPS,
        CLIENT,
        COST,
        CLIENT_NOW,
        CLIENT_QUALITY,
        CLIENT_TIMELINE,
        RUN,
    )
    for metric in group
}


def label_of(field: object) -> str:
    """What screens call a number: the help explains it by the same word."""
    number = CATALOG[field] if isinstance(field, str) else number_of(field)
    return number.label


def client_words(verdict: str) -> str:
    """A verdict on the client as a phrase that stands by itself."""
    return VERDICTS[verdict]
