"""What was told long ago and still holds: a session that begins late needs it, too."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

import msgspec

from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    ClockAnchor,
    Contact,
    Endpoint,
    EngineInfo,
    EngineSettings,
    EventKind,
    GpuInfo,
    GpuProcesses,
    HostInfo,
    LiveLimits,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    MeasuredPeak,
    ModelConfig,
    Note,
    NoteKind,
    Prices,
    RequestEvent,
    ServerInfo,
    WatchedSlo,
    WorkerMemory,
)
from inferwatch.metrics.cache.block_maps import RankBlocks

OF_NOW = (
    Contact,
    Endpoint,
    EngineInfo,
    EngineSettings,
    GpuInfo,
    GpuProcesses,
    HostInfo,
    LiveLimits,
    MeasuredPeak,
    ModelConfig,
    Prices,
    ServerInfo,
    WatchedSlo,
    WorkerMemory,
)
"""True as of any moment until it is told anew."""
OF_THEN = (ClockAnchor, LoadPlanned)
"""Likewise, but for its moment."""
LIVES = {NoteKind.STARTED, NoteKind.LOST, NoteKind.RESTARTED, NoteKind.STOPPED}
PARTS = ("rank", "worker", "device", "pid")
"""What else than its source a reading is of."""
MOST_FACTS = 5_000
MOST_REQUESTS = 20_000
Numbered = tuple[int, AnyReading]


class Standing:
    """Of readings that are let go of, those that still say something."""

    def __init__(self) -> None:
        self._count = 0
        self._facts: OrderedDict[tuple[object, ...], Numbered] = OrderedDict()
        self._requests: OrderedDict[tuple[str, str], list[Numbered]] = OrderedDict()
        self._pools: dict[tuple[str, int], RankBlocks] = {}

    def take(self, reading: AnyReading) -> None:
        """The next one that is let go of, in the order of receipt."""
        self._count += 1
        if isinstance(reading, RequestEvent):
            self._request(reading)
        elif isinstance(reading, BlockMap):
            of = reading.source, reading.rank
            self._pools.setdefault(of, RankBlocks()).take(reading, lambda *_: None)
        elif isinstance(reading, LoadEvent):
            self._load(reading)
        elif isinstance(reading, OF_NOW + OF_THEN) or (
            isinstance(reading, Note) and reading.kind in LIVES
        ):
            parts = (getattr(reading, name, None) for name in PARTS)
            self._hold((type(reading), reading.source, *parts), reading)

    def as_of(self, t_ns: int) -> list[AnyReading]:
        """All of it in the order in which it came, facts as if told at that moment."""
        told = sorted(
            chain(self._facts.values(), *self._requests.values()),
            key=lambda each: each[0],
        )
        return [*(_as_of(t_ns, each) for _, each in told), *self._maps(t_ns)]

    def _maps(self, t_ns: int) -> Iterator[AnyReading]:
        for (source, rank), pool in self._pools.items():
            whole = pool.whole_map(source, rank, t_ns)
            if whole is not None:
                yield whole

    def _hold(self, key: tuple[object, ...], reading: AnyReading) -> None:
        self._facts[key] = self._count, reading
        self._facts.move_to_end(key)
        if len(self._facts) > MOST_FACTS:
            self._facts.popitem(last=False)

    def _load(self, event: LoadEvent) -> None:
        """A run that has stopped is over; of the others each kind's last stands."""
        if event.kind is LoadKind.STOPPED:
            for key in [key for key in self._facts if key[1] == event.source]:
                if key[0] in {LoadEvent, LoadPlanned}:
                    del self._facts[key]
        else:
            self._hold((LoadEvent, event.source, event.kind), event)

    def _request(self, event: RequestEvent) -> None:
        """Of one that lives all is kept; one that ended is over."""
        key = event.source, event.request_id
        if event.kind is EventKind.FINISHED:
            self._requests.pop(key, None)
            return
        self._requests.setdefault(key, []).append((self._count, event))
        if len(self._requests) > MOST_REQUESTS:
            self._requests.popitem(last=False)


def _as_of(t_ns: int, reading: AnyReading) -> AnyReading:
    if isinstance(reading, OF_NOW):
        return msgspec.structs.replace(reading, t_ns=t_ns)
    return reading
