"""The readings of one request, and how they are gathered from memory or a record.

Both sources answer the same queries, so equal readings give equal stories.
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
    NoteKind,
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
"""How long after a request's end its last step may end.

An engine reports the end of a request before that of the step.
"""
BEFORE = 16
"""Steps to include from before the request, of all ranks; one of them may overlap."""
Name = tuple[str, str]
"""Key of a request, and the name to show."""


class ReadingLookup(Protocol):
    """The queries that a request's story is made from; all cover the whole session."""

    def events(self, key: str) -> list[RequestEvent]:
        """Return the events of a request."""
        ...

    def steps(
        self, start_ns: int, end_ns: int, source: str | None, most: int
    ) -> list[Step]:
        """Return at most ``most`` steps that ended in (start, end], by end."""
        ...

    def steps_before(self, t_ns: int, source: str, most: int) -> list[Step]:
        """Return the latest ``most`` steps that ended by ``t_ns``, by end."""
        ...

    def names(
        self, source: str, ordinals: Collection[int], until_ns: int
    ) -> dict[int, Name]:
        """Return the names of an engine's requests by ordinal, as of ``until_ns``."""
        ...

    def engines(self, source: str) -> list[EngineInfo]:
        """Return the infos of a source's engines, in order of receipt."""
        ...

    def client(
        self, external_ids: Collection[str]
    ) -> tuple[RequestRecord | None, TokenTimes | None]:
        """Return the record and token times of a client of ours, if any."""
        ...

    def gpu_samples(self, start_ns: int, end_ns: int) -> list[GpuSample]:
        """Return the GPU samples of a span, in order of receipt."""
        ...

    def notes(self, source: str) -> list[Note]:
        """Return notes of lost readings, of a lost engine, and of compilations."""
        ...

    @property
    def since_ns(self) -> int | None:
        """Readings before this are incomplete; None if all were kept."""
        ...


MOST_STEPS = 1_000_000
"""Largest number of steps of one request; of a longer one the latest are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReadings:
    """One request's readings as of a moment, in session time."""

    key: str
    now_ns: int
    events: tuple[RequestEvent, ...]
    """By time."""
    ordinal: int | None
    live: bool
    end_ns: int
    """The last event of an ended request, else now."""
    steps: Sequence[Step] = ()
    """Steps of its rank, from some before its arrival to its end."""
    engine: EngineInfo | None = None
    record: RequestRecord | None = None
    token_times: TokenTimes | None = None
    gpu_samples: tuple[GpuSample, ...] = ()
    notes: tuple[Note, ...] = ()
    since_ns: int | None = None
    """Readings before this are incomplete."""
    names: dict[int, Name] = field(default_factory=dict)
    """Names of members of its steps, as far as requested."""

    @property
    def compiled(self) -> list[tuple[int, int]]:
        """Start and end of compilations while it lived."""
        notes = [each for each in self.notes if each.kind is NoteKind.COMPILATION]
        return [(each.t_ns, each.t_ns + (each.duration_ns or 0)) for each in notes]

    @property
    def source(self) -> str:
        return self.events[0].source

    def moment(self, kind: EventKind, vantage: Vantage) -> int | None:
        """Return when an event was first reported; None where it was not."""
        for event in self.events:
            if event.kind is kind and event.vantage is vantage:
                return event.t_ns
        return None


def gather(lookup: ReadingLookup, key: str, now_ns: int) -> RequestReadings | None:
    """Return the readings of one request; None where none are known by then."""
    every = (event for event in lookup.events(key) if event.t_ns <= now_ns)
    events = tuple(sorted(every, key=_in_order))
    if not events:
        return None
    source = events[0].source
    ordinals = (each.ordinal for each in events if each.ordinal is not None)
    ordinal = next(ordinals, None)
    notes = tuple(each for each in lookup.notes(source) if each.t_ns <= now_ns)
    ended = [each.t_ns for each in events if each.kind is EventKind.FINISHED]
    ended += [
        note.t_ns
        for note in notes
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
        notes=tuple(each for each in notes if each.t_ns >= start_ns),
        since_ns=lookup.since_ns,
    )


KINDS = list(EventKind)


def _in_order(event: RequestEvent) -> tuple[int, int, str]:
    """Return a sort key: time, then the order of events in a request's life."""
    return event.t_ns, KINDS.index(event.kind), event.vantage


def _client_names(events: Sequence[RequestEvent]) -> set[str]:
    """Return the ids under which a client may know the request."""
    names = {each.external_id or each.request_id for each in events}
    return names | {client_id(each) for each in names}


def _of_engine(
    samples: Sequence[GpuSample], engine: EngineInfo | None
) -> tuple[GpuSample, ...]:
    """Return the samples of the engine's GPUs; of all GPUs if these are unknown."""
    uuids = set(engine.gpus) if engine else set()
    return tuple(each for each in samples if not uuids or each.source in uuids)
