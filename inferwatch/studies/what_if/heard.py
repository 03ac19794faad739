"""The readings of a session that a prediction needs, by type."""

from collections import defaultdict
from dataclasses import dataclass, field

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    EngineSettings,
    EventKind,
    LiveLimits,
    LoadEvent,
    LoadPlanned,
    RequestEvent,
    RequestRecord,
    Step,
    Vantage,
)
from inferwatch.errors import UsageError
from inferwatch.metrics.requests.outcomes import client_id

KINDS = (
    Step,
    RequestEvent,
    EngineInfo,
    EngineSettings,
    LiveLimits,
    LoadPlanned,
    LoadEvent,
    RequestRecord,
)
"""The types of readings that a prediction uses."""
MOMENTS = {
    (EventKind.ARRIVED, Vantage.FRONTEND): "arrived_ns",
    (EventKind.FIRST_TOKEN, Vantage.FRONTEND): "sent_ns",
    (EventKind.FINISHED, Vantage.FRONTEND): "finished_ns",
    (EventKind.ADDED, Vantage.ENGINE): "added_ns",
    (EventKind.SCHEDULED, Vantage.ENGINE): "scheduled_ns",
    (EventKind.FINISHED, Vantage.ENGINE): "engine_finished_ns",
}
LEARNT = (
    *("tokenised_ns", "prompt_tokens", "max_tokens", "cached_tokens"),
    *("ordinal", "external_id", "priority", "header", "lora"),
)


class CannotTellError(UsageError):
    """Nothing can be predicted from a session; the message says why."""


@dataclass(slots=True)
class ObservedRequest:
    """Times and facts of one request, from front end and engine events."""

    arrived_ns: int | None = None
    tokenised_ns: int | None = None
    sent_ns: int | None = None
    finished_ns: int | None = None
    added_ns: int | None = None
    scheduled_ns: int | None = None
    engine_finished_ns: int | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    cached_tokens: int | None = None
    ordinal: int | None = None
    external_id: str | None = None
    priority: int | None = None
    header: str | None = None
    lora: str | None = None
    class_name: str | None = None
    """Its class in a load of ours."""


@dataclass(slots=True)
class RunReadings:
    """The readings of a recorded run that a simulation needs, by type."""

    steps: dict[tuple[str, int], list[Step]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Steps by source and rank."""
    requests: dict[tuple[str, str], ObservedRequest] = field(
        default_factory=lambda: defaultdict(ObservedRequest)
    )
    """Requests by source and the engine's request id."""
    engines: list[EngineInfo] = field(default_factory=list)
    settings: list[EngineSettings] = field(default_factory=list)
    limits: list[LiveLimits] = field(default_factory=list)
    plans: list[LoadPlanned] = field(default_factory=list)
    load: list[LoadEvent] = field(default_factory=list)
    classes: dict[str, str] = field(default_factory=dict)
    """Class of a load's requests by their client's id."""

    def take(self, reading: AnyReading) -> None:
        if isinstance(reading, Step) and not reading.memberless:
            self.steps[reading.source, reading.rank].append(reading)
        elif isinstance(reading, RequestEvent):
            self._event(reading)
        elif isinstance(reading, EngineInfo):
            self.engines.append(reading)
        elif isinstance(reading, EngineSettings):
            self.settings.append(reading)
        elif isinstance(reading, LiveLimits):
            self.limits.append(reading)
        else:
            self._of_load(reading)

    def _of_load(self, reading: AnyReading) -> None:
        if isinstance(reading, LoadPlanned):
            self.plans.append(reading)
        elif isinstance(reading, LoadEvent):
            self.load.append(reading)
        elif isinstance(reading, RequestRecord) and reading.class_name is not None:
            self.classes[client_id(reading.external_id)] = reading.class_name

    def class_of(self, request: ObservedRequest) -> str | None:
        """Return the class of a request in a load of ours."""
        if request.class_name is not None or request.external_id is None:
            return request.class_name
        return self.classes.get(client_id(request.external_id))

    def _event(self, event: RequestEvent) -> None:
        moment = MOMENTS.get((event.kind, event.vantage))
        if moment is None:
            return
        request = self.requests[event.source, event.request_id]
        if getattr(request, moment) is None:
            setattr(request, moment, event.t_ns)
        for name in LEARNT:
            value = getattr(event, name)
            if value is not None and getattr(request, name) is None:
                setattr(request, name, value)
