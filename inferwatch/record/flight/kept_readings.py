"""The readings of the last minutes, compressed, in bounded memory."""

import zlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import msgspec

from collectors.contract.clock import NS_PER_S
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
    MetricsPage,
    ModelConfig,
    Note,
    NoteKind,
    Prices,
    Refusals,
    RequestEvent,
    ServerInfo,
    StartupStage,
    Tick,
    WatchedSlo,
    WorkerMemory,
)
from inferwatch.metrics.cache.block_maps import RankBlocks
from inferwatch.metrics.requests.refusals import joined

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
    Refusals,
    ServerInfo,
    StartupStage,
    WatchedSlo,
    WorkerMemory,
)
"""Kinds valid at any time until replaced."""
OF_THEN = (ClockAnchor, LoadPlanned)
"""The same, except that their own time matters."""
LIVES = {NoteKind.STARTED, NoteKind.LOST, NoteKind.RESTARTED, NoteKind.STOPPED}
SLEEP = {NoteKind.ASLEEP, NoteKind.AWAKE}
PARTS = ("rank", "worker", "device", "pid", "stage")
"""Fields besides the source that identify what a reading is about."""
MOST_FACTS = 5_000
MOST_REQUESTS = 20_000
Numbered = tuple[int, AnyReading]


class StandingReadings:
    """The readings among discarded ones that are still valid."""

    def __init__(self) -> None:
        self._count = 0
        self._facts: OrderedDict[tuple[object, ...], Numbered] = OrderedDict()
        self._requests: OrderedDict[tuple[str, str], list[Numbered]] = OrderedDict()
        self._pools: dict[tuple[str, int], RankBlocks] = {}

    def take(self, reading: AnyReading) -> None:
        """Take the next reading that was discarded, and keep it if it stays valid."""
        self._count += 1
        if isinstance(reading, RequestEvent):
            self._request(reading)
        elif isinstance(reading, BlockMap):
            of = reading.source, reading.rank
            self._pools.setdefault(of, RankBlocks()).take(reading, lambda *_: None)
        elif isinstance(reading, LoadEvent):
            self._load(reading)
        elif isinstance(reading, MetricsPage):
            if reading.whole:  # those kept after it build on it
                self._hold((MetricsPage, reading.source), reading)
        elif isinstance(reading, Note) and reading.kind in SLEEP:
            self._hold((NoteKind.ASLEEP, reading.source), reading)
        elif isinstance(reading, OF_NOW + OF_THEN) or (
            isinstance(reading, Note) and reading.kind in LIVES
        ):
            parts = (getattr(reading, name, None) for name in PARTS)
            self._hold((type(reading), reading.source, *parts), reading)

    def as_of(self, t_ns: int) -> list[AnyReading]:
        """Return the valid readings in order of receipt; facts are stamped ``t_ns``."""
        readings = sorted(
            chain(self._facts.values(), *self._requests.values()),
            key=lambda each: each[0],
        )
        return [*(_as_of(t_ns, each) for _, each in readings), *self._maps(t_ns)]

    def _maps(self, t_ns: int) -> Iterator[AnyReading]:
        for (source, rank), pool in self._pools.items():
            whole = pool.whole_map(source, rank, t_ns)
            if whole is not None:
                yield whole

    def _hold(self, key: tuple[object, ...], reading: AnyReading) -> None:
        _, before = self._facts.get(key, (0, None))
        if isinstance(reading, Refusals) and isinstance(before, Refusals):
            reading = joined(before, reading)
        self._facts[key] = self._count, reading
        self._facts.move_to_end(key)
        if len(self._facts) > MOST_FACTS:
            self._facts.popitem(last=False)

    def _load(self, event: LoadEvent) -> None:
        """Keep the last event of each kind of a load run, until the run stops."""
        if event.kind is LoadKind.STOPPED:
            for key in [key for key in self._facts if key[1] == event.source]:
                if key[0] in {LoadEvent, LoadPlanned}:
                    del self._facts[key]
        else:
            self._hold((LoadEvent, event.source, event.kind), event)

    def _request(self, event: RequestEvent) -> None:
        """Keep all events of a request until the request finishes."""
        key = event.source, event.request_id
        if event.kind is EventKind.FINISHED:
            self._requests.pop(key, None)
            return
        self._requests.setdefault(key, []).append((self._count, event))
        if len(self._requests) > MOST_REQUESTS:
            self._requests.popitem(last=False)


def _as_of(t_ns: int, reading: AnyReading) -> AnyReading:
    if isinstance(reading, Refusals):  # none of them is new as of then
        refused = [msgspec.structs.replace(each, new=0) for each in reading.refused]
        return msgspec.structs.replace(reading, t_ns=t_ns, refused=refused)
    if isinstance(reading, OF_NOW):
        return msgspec.structs.replace(reading, t_ns=t_ns)
    return reading


MOST_UNPACKED = 2_000
"""Readings; usually those of a second."""
QUICKLY = 1
"""Compression level: a busy engine's second takes a few milliseconds."""
UNPACKABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyReading])


class ReadingPack(NamedTuple):
    """A run of consecutive readings."""

    end_ns: int
    """When the last of them was received."""
    readings_count: int
    packed: bytes

    def readings(self) -> list[AnyReading]:
        return _decoder.decode(zlib.decompress(self.packed))


class KeptReadings:
    """The readings of the last minutes, and earlier ones that are still valid.

    Old ones are discarded second by second, as ticks tell the time.
    """

    def __init__(self, keep_ns: int, most_bytes: int) -> None:
        self._keep_ns, self.most_bytes = keep_ns, most_bytes
        self.bytes = 0
        """Size of the packs."""
        self.since_ns = 0
        """Time from which on everything is kept."""
        self.cut_short = False
        """Memory was short: less is kept than requested."""
        self.unpackable = 0
        """Number of readings that could not be serialised."""
        self.latest_ns = 0
        """Time of the last tick."""
        self._standing = StandingReadings()
        self._packs: deque[ReadingPack] = deque()
        self._unpacked: list[AnyReading] = []

    def add(self, reading: AnyReading) -> None:
        self._unpacked.append(reading)
        if type(reading) is Tick:
            self.latest_ns = reading.t_ns
            self._pack()
        elif len(self._unpacked) >= MOST_UNPACKED:
            self._pack()

    @property
    def keep_s(self) -> float:
        """Time span, in seconds, for which readings should be kept."""
        return self._keep_ns / NS_PER_S

    @property
    def covered_s(self) -> float:
        """Time span, in seconds, of the readings that are kept."""
        return (self.latest_ns - self.since_ns) / NS_PER_S

    def contents(self, as_of_ns: int) -> tuple[int, Iterator[AnyReading]]:
        """Number of readings and the readings, earlier ones first; thread-safe."""
        standing, packs = self._standing.as_of(as_of_ns), list(self._packs)
        rest = list(self._unpacked)
        count = len(standing) + sum(each.readings_count for each in packs) + len(rest)
        return count, _one_by_one(standing, packs, rest)

    def _pack(self) -> None:
        readings, self._unpacked = self._unpacked, []
        readings, packed = self._packed(readings)
        self._packs.append(ReadingPack(self.latest_ns, len(readings), packed))
        self.bytes += len(packed)
        before_ns = self.latest_ns - self._keep_ns
        while self._packs and self._packs[0].end_ns < before_ns:
            self._let_go()
        if self._packs and self._packs[0].end_ns <= before_ns + 2 * NS_PER_S:
            self.cut_short = False
        while len(self._packs) > 1 and self.bytes > self.most_bytes:
            self.cut_short = True
            self._let_go()

    def _packed(self, readings: list[AnyReading]) -> tuple[list[AnyReading], bytes]:
        try:
            encoded = _encoder.encode(readings)
        except UNPACKABLE:
            whole = [each for each in readings if _is_packable(each)]
            self.unpackable += len(readings) - len(whole)
            readings, encoded = whole, _encoder.encode(whole)
        return readings, zlib.compress(encoded, QUICKLY)

    def _let_go(self) -> None:
        oldest = self._packs.popleft()
        self.bytes -= len(oldest.packed)
        self.since_ns = oldest.end_ns
        for reading in oldest.readings():
            self._standing.take(reading)


def _one_by_one(
    standing: Iterable[AnyReading],
    packs: Iterable[ReadingPack],
    rest: Iterable[AnyReading],
) -> Iterator[AnyReading]:
    yield from standing
    for pack in packs:
        yield from pack.readings()
    yield from rest


def _is_packable(reading: AnyReading) -> bool:
    try:
        _encoder.encode(reading)
    except UNPACKABLE:
        return False
    return True
