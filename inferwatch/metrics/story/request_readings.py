"""What is at hand to tell of one request, and how it is gathered.

Memory and record answer the same questions; whoever answers, equal readings are
gathered in the same way.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    EngineInfo,
    EventKind,
    GpuSample,
    Note,
    RequestEvent,
    RequestRecord,
    Step,
    TokenTimes,
    Vantage,
    rank_of,
)
from inferwatch.metrics.load.client import ended_ns
from inferwatch.metrics.requests.outcomes import client_id

AFTER_NS = NS_PER_S
"""How long after its end its last step may have ended: an engine tells of the end of a
request before that of the step."""
BEFORE = 16
"""Steps before a request came, of all ranks: one of them may have been under way."""
Name = tuple[str, str]
"""Key of a request, and what people call it."""


class ReadingLookup(Protocol):
    """Answers what a request's story is told from; all as of ever."""

    def events(self, key: str) -> list[RequestEvent]:
        """What was told of a request."""
        ...

    def steps(
        self, start_ns: int, end_ns: int, source: str | None, most: int
    ) -> list[Step]:
        """Those that ended after the start and up to the end, by their end."""
        ...

    def steps_before(self, t_ns: int, source: str, most: int) -> list[Step]:
        """The latest that ended up to then, by their end."""
        ...

    def names(
        self, source: str, ordinals: Collection[int], until_ns: int
    ) -> dict[int, Name]:
        """What the members of steps are called that an engine had by then."""
        ...

    def engines(self, source: str) -> list[EngineInfo]:
        """What is known of the engines of a source, in order of receipt."""
        ...

    def client(
        self, external_ids: Collection[str]
    ) -> tuple[RequestRecord | None, TokenTimes | None]:
        """How a client of ours saw it."""
        ...

    def gpu_samples(self, start_ns: int, end_ns: int) -> list[GpuSample]:
        """Those of a span, in order of receipt."""
        ...

    def losses(self, source: str) -> list[Note]:
        """When readings of an engine, or itself, were lost."""
        ...

    @property
    def since_ns(self) -> int | None:
        """Of what is longer ago not all is there; None: all there ever was."""
        ...


MOST_STEPS = 1_000_000
"""Of one request's life; of a longer one the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReadings:
    """One request's readings as of a moment, in session time."""

    key: str
    now_ns: int
    events: tuple[RequestEvent, ...]
    """In order of time."""
    ordinal: int | None
    live: bool
    end_ns: int
    """Of the last event of one that ended, else now."""
    steps: Sequence[Step] = ()
    """Of its rank, from some before it came until it ended."""
    engine: EngineInfo | None = None
    record: RequestRecord | None = None
    token_times: TokenTimes | None = None
    gpu_samples: tuple[GpuSample, ...] = ()
    losses: tuple[Note, ...] = ()
    since_ns: int | None = None
    """Of what is longer ago not all is there."""
    names: dict[int, Name] = field(default_factory=dict)
    """Of members of its steps that were asked for."""

    @property
    def source(self) -> str:
        return self.events[0].source

    def moment(self, kind: EventKind, vantage: Vantage) -> int | None:
        """When it was told of first."""
        for event in self.events:
            if event.kind is kind and event.vantage is vantage:
                return event.t_ns
        return None


def gather(lookup: ReadingLookup, key: str, now_ns: int) -> RequestReadings | None:
    """Everything of one request; None where nothing is known of it by then."""
    every = (event for event in lookup.events(key) if event.t_ns <= now_ns)
    events = tuple(sorted(every, key=_in_order))
    if not events:
        return None
    source = events[0].source
    told = (each.ordinal for each in events if each.ordinal is not None)
    ordinal = next(told, None)
    losses = tuple(each for each in lookup.losses(source) if each.t_ns <= now_ns)
    ended = [each.t_ns for each in events if each.kind is EventKind.FINISHED]
    ended += [
        note.t_ns
        for note in losses
        if note.kind == "lost" and note.t_ns >= events[-1].t_ns
    ][:1]
    start_ns = events[0].t_ns
    end_ns = max(ended, default=now_ns)
    last_ns = min(end_ns + AFTER_NS, now_ns) if ended else now_ns
    before = lookup.steps_before(start_ns, source, BEFORE)
    steps = before + lookup.steps(start_ns, last_ns, source, MOST_STEPS)
    rank = None if ordinal is None else rank_of(ordinal)
    engines = [
        each
        for each in lookup.engines(source)
        if each.t_ns <= now_ns and (rank is None or each.rank == rank)
    ]
    client = lookup.client(_client_names(events))
    record = client[0] if client[0] and ended_ns(client[0]) <= now_ns else None
    return RequestReadings(
        key=key,
        now_ns=now_ns,
        events=events,
        ordinal=ordinal,
        live=not ended,
        end_ns=end_ns,
        steps=[each for each in steps if rank is None or each.rank == rank],
        engine=engines[-1] if engines else None,
        record=record,
        token_times=client[1] if record else None,
        gpu_samples=_of_engine(
            lookup.gpu_samples(start_ns, last_ns), engines[-1] if engines else None
        ),
        losses=tuple(each for each in losses if each.t_ns >= start_ns),
        since_ns=lookup.since_ns,
    )


KINDS = list(EventKind)


def _in_order(event: RequestEvent) -> tuple[int, int, str]:
    """By time, and of the same moment as a life goes."""
    return event.t_ns, KINDS.index(event.kind), event.vantage


def _client_names(events: Sequence[RequestEvent]) -> set[str]:
    """What a client may call it."""
    names = {each.external_id or each.request_id for each in events}
    return names | {client_id(each) for each in names}


def _of_engine(
    samples: Sequence[GpuSample], engine: EngineInfo | None
) -> tuple[GpuSample, ...]:
    """Those of an engine's GPUs; of all where it does not tell which it has."""
    uuids = set(engine.gpus) if engine else set()
    return tuple(each for each in samples if not uuids or each.source in uuids)
