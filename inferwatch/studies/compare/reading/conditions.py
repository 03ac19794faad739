"""The conditions of a measurement: GPU clocks, other work, missing readings.

Rows are read one by one, so memory stays small however long the session was.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter

import msgspec

from collectors.contract.clock import NS_PER_S, PARTED_NS
from collectors.contract.readings import NoteKind
from inferwatch.metrics.hardware.gpus import BITS, THROTTLES
from inferwatch.studies.compare.reading.configuration import engine_gpus
from inferwatch.studies.compare.reading.live_limits import Values, limits_held
from inferwatch.studies.compare.reading.span import ComparedSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuClocks:
    """The clocks of one GPU in a span; unknown values are None."""

    median_mhz: int | None
    held: Mapping[str, float]
    """Share of the time the clocks were throttled, by reason in words."""
    hottest_c: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """Other work on one host in a span; unknown values are None."""

    name: str
    """Empty for the host where inferwatch ran."""
    hardware: str | None
    """Processor model and number of cores."""
    others: float | None = None
    """Share of its cores used by processes that do not belong to the measurement."""
    throttled: Mapping[str, float] = field(default_factory=dict)
    """Share of the time a CPU quota throttled a process, by the process's role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingGaps:
    """Readings missing in a span's recording, and restarts of its engines."""

    dropped: int = 0
    """Readings lost on the way to the recorder."""
    lives: tuple[str, ...] = ()
    """Notes about engines that were lost or restarted."""
    stepped_s: tuple[float, ...] = ()
    """Steps of the wall clock, or how long the host slept, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """All known conditions of a span; empty where nothing was recorded."""

    gpus: tuple[GpuClocks, ...] = ()
    hosts: tuple[HostLoad, ...] = ()
    gaps: RecordingGaps = field(default_factory=RecordingGaps)
    limits: tuple[Values, ...] = ()
    """The engine's live limits in order; empty if they cannot be changed."""


def conditions(
    connection: sqlite3.Connection, session: int, span: ComparedSpan
) -> Conditions:
    return Conditions(
        gpus=tuple(_gpus(connection, session, span)),
        hosts=tuple(_hosts(connection, session, span)),
        gaps=_gaps(connection, session, span),
        limits=limits_held(connection, session, span),
    )


# The clocks of the GPUs that engines run on, or of all GPUs if those are unknown.

GPU_ROWS = (
    "SELECT name, t_ns, sm_clock_mhz, throttle_reasons, throttled_ns, temperature_c "
    "FROM gpu_samples JOIN sources USING (session, source) "
    "WHERE session = ? AND t_ns >= ? AND t_ns < ?"
)


@dataclass(slots=True)
class _Counter:
    """A counter that only rises, except when it restarts."""

    t_ns: int
    value: float
    seen_ns: int = 0
    risen: float = 0.0

    def update(self, t_ns: int, value: float) -> None:
        if t_ns <= self.t_ns:
            return
        if value >= self.value:
            self.risen += value - self.value
            self.seen_ns += t_ns - self.t_ns
        self.t_ns, self.value = t_ns, value

    @property
    def share(self) -> float | None:
        return min(self.risen / self.seen_ns, 1.0) if self.seen_ns else None


class _GpuSpan:
    """Accumulates the samples of one GPU."""

    def __init__(self) -> None:
        self._clocks: dict[int, int] = defaultdict(int)
        self._bits: dict[int, int] = defaultdict(int)
        self._counters: dict[str, _Counter] = {}
        self._hottest_c: int | None = None

    def take(
        self,
        t_ns: int,
        clock_mhz: int | None,
        bits: int | None,
        throttled: str,
        heat_c: int | None,
    ) -> None:
        if clock_mhz is not None:
            self._clocks[clock_mhz] += 1
        if bits is not None:
            self._bits[bits] += 1
        if heat_c is not None:
            self._hottest_c = max(self._hottest_c or heat_c, heat_c)
        counted: dict[str, int] = (
            msgspec.json.decode(throttled) if throttled != "{}" else {}
        )
        for why, held_ns in counted.items():
            counter = self._counters.setdefault(why, _Counter(t_ns, held_ns))
            counter.update(t_ns, held_ns)

    def clocks(self) -> GpuClocks:
        return GpuClocks(
            median_mhz=_median(self._clocks),
            held=self._held(),
            hottest_c=self._hottest_c,
        )

    def _held(self) -> dict[str, float]:
        """Throttled share by reason, from time counters or else from samples."""
        looks = sum(self._bits.values())
        shares = {}
        for bit, why in BITS.items():
            counter = self._counters.get(why)
            share = counter.share if counter is not None else None
            if share is None and looks:
                seen = sum(n for bits, n in self._bits.items() if bits & bit)
                share = seen / looks
            if share is not None:
                shares[THROTTLES[why]] = share
        return shares


def _gpus(
    connection: sqlite3.Connection, session: int, span: ComparedSpan
) -> Iterator[GpuClocks]:
    ours = engine_gpus(connection, session)
    gpus: dict[str, _GpuSpan] = defaultdict(_GpuSpan)
    rows = connection.execute(GPU_ROWS, (session, span.start_ns, span.end_ns))
    for uuid, *values in rows:
        if uuid in ours or not ours:
            gpus[uuid].take(*values)
    yield from (each.clocks() for each in gpus.values())


def _median(counts: Mapping[int, int]) -> int | None:
    """The median; the lower of the two middle values."""
    left = (sum(counts.values()) + 1) // 2
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return None


# Other work on the hosts' cores.

HOST_ROWS = (
    "SELECT source, ordinal, t_ns, cores, busy_s, pid, role, cpu_s, throttled_s "
    "FROM host_samples LEFT JOIN host_processes USING (session, ordinal) "
    "WHERE session = ? AND t_ns >= ? AND t_ns < ? ORDER BY ordinal"
)


class _HostSpan:
    """Accumulates the samples of one host."""

    def __init__(self) -> None:
        self._busy: _Counter | None = None
        self._own: dict[int, _Counter] = {}
        self._held: dict[int, _Counter] = {}
        self._roles: dict[int, str] = {}
        self._cores: int | None = None

    def take(self, t_ns: int, cores: int | None, busy_s: float | None) -> None:
        self._cores = cores or self._cores
        if busy_s is not None:
            self._busy = self._busy or _Counter(t_ns, busy_s)
            self._busy.update(t_ns, busy_s)

    def process(
        self, t_ns: int, pid: int, role: str, cpu_s: float, held_s: float | None
    ) -> None:
        self._roles[pid] = role
        self._own.setdefault(pid, _Counter(t_ns, cpu_s)).update(t_ns, cpu_s)
        if held_s is not None:
            held_ns = held_s * NS_PER_S
            self._held.setdefault(pid, _Counter(t_ns, held_ns)).update(t_ns, held_ns)

    def load(self, name: str, hardware: str | None) -> HostLoad:
        others = None
        if self._busy is not None and self._busy.seen_ns and self._cores:
            own_s = sum(each.risen for each in self._own.values())
            lasted_s = self._busy.seen_ns / NS_PER_S
            others = max(self._busy.risen - own_s, 0.0) / lasted_s / self._cores
        throttled: dict[str, float] = {}
        for pid, counter in self._held.items():
            if share := counter.share:
                role = self._roles[pid]
                throttled[role] = max(throttled.get(role, 0.0), share)
        return HostLoad(
            name=name, hardware=hardware, others=others, throttled=throttled
        )


def _hosts(
    connection: sqlite3.Connection, session: int, span: ComparedSpan
) -> Iterator[HostLoad]:
    described = connection.execute(
        "SELECT source, cpu, cores FROM hosts WHERE session = ? ORDER BY ordinal",
        (session,),
    )
    hardware = {source: _hardware(cpu, cores) for source, cpu, cores in described}
    hosts: dict[int, _HostSpan] = defaultdict(_HostSpan)
    rows = connection.execute(HOST_ROWS, (session, span.start_ns, span.end_ns))
    last: tuple[int, int] | None = None
    for source, ordinal, t_ns, cores, busy_s, pid, *usage in rows:
        if last != (source, ordinal):
            last = source, ordinal
            hosts[source].take(t_ns, cores, busy_s)
        if pid is not None:
            hosts[source].process(t_ns, pid, *usage)
    names = dict(
        connection.execute(
            "SELECT source, name FROM sources WHERE session = ?", (session,)
        ).fetchall()
    )
    for source in sorted(hardware.keys() | hosts.keys()):
        yield hosts[source].load(names.get(source, ""), hardware.get(source))


def _hardware(cpu: str | None, cores: int | None) -> str | None:
    known = [cpu, None if cores is None else f"{cores} cores"]
    return ", ".join(each for each in known if each) or None


# Missing readings, engine restarts and clock steps in the span.

LIVES = (NoteKind.LOST, NoteKind.RESTARTED)


def _gaps(
    connection: sqlite3.Connection, session: int, span: ComparedSpan
) -> RecordingGaps:
    notes = connection.execute(
        "SELECT kind, text, coalesce(count, 1) FROM notes "
        "WHERE session = ? AND t_ns >= ? AND t_ns < ? AND kind IN (?, ?, ?) "
        "ORDER BY ordinal LIMIT 1000",
        (session, span.start_ns, span.end_ns, NoteKind.DROPPED, *LIVES),
    ).fetchall()
    return RecordingGaps(
        dropped=sum(count for kind, _, count in notes if kind == NoteKind.DROPPED),
        lives=tuple(
            dict.fromkeys(text for kind, text, _ in notes if kind in set(LIVES))
        ),
        stepped_s=tuple(_steps(connection, session, span)),
    )


def _steps(
    connection: sqlite3.Connection, session: int, span: ComparedSpan
) -> Iterator[float]:
    """Steps of the wall clock in the span, found where its anchor was recorded anew."""
    rows = connection.execute(
        "SELECT source, boot_id, t_ns, wall_ns FROM clock_anchors "
        "WHERE session = ? ORDER BY source, boot_id, t_ns",
        (session,),
    )
    for _, of_one in groupby(rows, itemgetter(0, 1)):
        for before, after in pairwise(of_one):
            stepped_ns = (after[3] - after[2]) - (before[3] - before[2])
            inside = span.start_ns <= after[2] < span.end_ns
            if inside and abs(stepped_ns) >= PARTED_NS:
                yield stepped_ns / NS_PER_S
