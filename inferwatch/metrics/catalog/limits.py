"""How far steps are from what the hardware allows, and whose its memory is."""

from collectors.contract.readings import Vantage
from inferwatch.metrics.catalog.metric import NOW, metrics

LEFT_OUT = (
    "all-reduce and other communication, activations and sampling are left out, so "
    "that it is a floor"
)

LIMITS = (
    *metrics(
        "limits.",
        Vantage.ENGINE,
    ),
    *metrics(
        "limits.",
        Vantage.GPU,
    ),
)

OPERATING_POINT = metrics(
    "operating_point.",
    Vantage.ENGINE,
)

TIME_SPLIT = metrics(
    "time_split.",
    Vantage.ENGINE,
)

DEVICE_MEMORY = metrics(
    "device_memory.",
    Vantage.ENGINE,
    span=NOW,
)

SAVING = metrics(
    "saving.",
    Vantage.ENGINE,
)
