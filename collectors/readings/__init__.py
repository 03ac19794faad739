"""The facts: everything a collector can report, one frozen Struct a kind.

A reading is fact, wire format and row source at once; there is no conversion layer.

Times are integer nanoseconds and their names end in ``_ns``. On the wire they are
raw monotonic times of the sender's boot; a collector rebases them once (see
:mod:`collectors.clock`) to *session time*: nanoseconds since the session started.
``INSTANTS`` names the fields that are moments, so that durations stay as they are.
Unknown is ``None``, never zero.
"""

from collectors.readings.base import (
    Reading,
)
from collectors.readings.engine import (
    Endpoint,
    EngineInfo,
    RequestEvent,
    Step,
    Totals,
)
from collectors.readings.host import (
    ClockAnchor,
    GpuInfo,
    HostSample,
    ProcessUsage,
)
from collectors.readings.kinds import (
    BoundBy,
    EventKind,
    LoadKind,
    NoteKind,
    Phase,
    Vantage,
)
from collectors.readings.load import (
    ClientSample,
    LoadEvent,
    LoadPlanned,
    RequestRecord,
    TokenTimes,
)
from collectors.readings.session import (
    Note,
    Tick,
)

__all__ = [
    "AnyReading",
    "BoundBy",
    "ClientSample",
    "ClockAnchor",
    "Endpoint",
    "EngineInfo",
    "EventKind",
    "GpuInfo",
    "HostSample",
    "LoadEvent",
    "LoadKind",
    "LoadPlanned",
    "Note",
    "NoteKind",
    "Phase",
    "ProcessUsage",
    "Reading",
    "RequestEvent",
    "RequestRecord",
    "Step",
    "Tick",
    "TokenTimes",
    "Totals",
    "Vantage",
]

AnyReading = (
    ClockAnchor
    | EngineInfo
    | Endpoint
    | Step
    | RequestEvent
    | RequestRecord
    | TokenTimes
    | LoadPlanned
    | LoadEvent
    | ClientSample
    | HostSample
    | GpuInfo
    | Note
    | Totals
    | Tick
)
