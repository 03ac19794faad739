"""Hosts: latest values, values over the window, and charts."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    HostInfo,
    HostSample,
    NamedProcesses,
    OtherProcesses,
    Vantage,
)
from inferwatch.metrics.hardware.host_use import (
    SPAN_NS,
    RecentUse,
    busy_between,
    by_role,
    shares_between,
)
from inferwatch.metrics.number import LATEST_READING, NOW, Better, Number, Unit, piece
from inferwatch.metrics.series.curves import Grid
from inferwatch.metrics.series.histograms import Floats
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.spans import SavedSpans, Spans, Worsts, told_of
from inferwatch.metrics.series.window import Window


@piece("process", Vantage.HOST, span="last 5 s")
class ProcessState:
    """One process of a host, over the last seconds."""

    pid: int
    role: str
    cpu_share: Annotated[
        float | None,
        Number(
            "CPU", "CPU", "Share of one core that the process used.", unit=Unit.SHARE
        ),
    ] = None
    rss_bytes: Annotated[
        int | None,
        Number(
            "memory",
            "Memory",
            "Memory of the process in RAM.",
            unit=Unit.BYTES,
            span=LATEST_READING,
        ),
    ] = None
    threads: Annotated[
        int | None,
        Number("threads", "Threads", "Threads of the process.", span=LATEST_READING),
    ] = None
    throttled: Annotated[
        float | None,
        Number(
            "throttled",
            "Kept from running",
            "Share of the time for which the CPU quota of its control group kept the "
            "process from running.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimeline:
    """Charts of one host, in the bins of the snapshot's timeline."""

    busy: tuple[float | None, ...] = ()
    """Share of all cores, 0-1."""
    cpu_by_role: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Shares of one core."""
    loop_lag_s: tuple[float | None, ...] = ()
    """Worst lag of the API servers' event loops."""


@piece("host", Vantage.HOST)
class HostState:
    """One host: its cores, its memory, and the watched processes."""

    source: str = ""
    """Empty for the host of inferwatch."""
    info: HostInfo | None = None
    last_ns: Annotated[
        int | None,
        Number(
            "last",
            "Last sample",
            "Session time of the last sample of this host.",
            unit=Unit.NANOSECONDS,
            span=NOW,
        ),
    ] = None
    cores: Annotated[
        int | None,
        Number(
            "cores", "Cores", "Cores of the host that inferwatch may use.", span=NOW
        ),
    ] = None
    busy: Annotated[
        float | None,
        Number(
            "busy",
            "Busy cores",
            "How many of these cores were busy, whoever kept them so.",
            span="last 5 s",
        ),
    ] = None
    run_queue: Annotated[
        int | None,
        Number(
            "run queue",
            "Run queue",
            "Threads of the host that ran or waited for a core: more than there are "
            "cores means that some waited.",
            better=Better.LOWER,
            span=LATEST_READING,
        ),
    ] = None
    memory_used_bytes: Annotated[
        int | None,
        Number(
            "memory",
            "Memory in use",
            "Memory of the host in use, without caches that can be dropped.",
            unit=Unit.BYTES,
            span=LATEST_READING,
        ),
    ] = None
    api_loop_lag_s: Annotated[
        float | None,
        Number(
            "API loop lag",
            "Lag of the API server's event loop",
            "How late the event loop of an API server ran at worst, as the probe in "
            "it saw: while it is late, tokens wait to be sent and requests to be read.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    own_loop_lag_s: Annotated[
        float | None,
        Number(
            "own loop lag",
            "Lag of inferwatch's event loop",
            "How late inferwatch's own event loop ran at worst.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    processes: tuple[ProcessState, ...] = ()
    others: tuple[NamedProcesses, ...] = ()
    """The largest processes that are not watched, while these keep the host busy."""
    timeline: HostTimeline = field(default_factory=HostTimeline)
    """Empty unless requested."""


MOST_HOSTS = 100
MOST_SERVERS = 100
"""Largest number of servers whose event loops are followed."""
MOST_APART_NS = 60 * NS_PER_S
"""Longest time between two samples for CPU shares."""
OTHERS_NS = 15 * NS_PER_S
"""How long it is believed which other processes are the largest."""
ABSURD = 1e18
"""Values from this on are errors; NaN is not below it either."""
STARTS_NS = 2 * NS_PER_S
"""A lag that began up to this long before a server's first report is of its start."""
ENGINE_ROLES = ("api", "core", "worker")
ROLES = (*ENGINE_ROLES, "load", "inferwatch")
CHANNELS = ("busy", *ROLES)
WIDTH = 2 * len(CHANNELS)


class SavedHost(msgspec.Struct, array_like=True):
    """A Host as checkpoints keep it."""

    source: str
    info: HostInfo | None
    recent: list[HostSample]
    run_queue: int | None
    memory_used_bytes: int | None
    spans: SavedSpans
    own_lag: SavedSpans
    others: OtherProcesses | None = None


class SavedHosts(msgspec.Struct, array_like=True):
    """A HostTracker as checkpoints keep it."""

    hosts: list[SavedHost]
    lags: dict[str, tuple[int | None, int, SavedSpans]]
    """By server: its first report, its latest one, and its lags."""


class Host:
    """One host and its processes: latest values, and over time."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.info: HostInfo | None = None
        self.spans = Spans(WIDTH)
        self._recent = RecentUse(SPAN_NS)
        self._own_lag = Worsts(1)
        self._run_queue: int | None = None
        self._memory_used_bytes: int | None = None
        self.others: OtherProcesses | None = None

    def take(self, sample: HostSample) -> None:
        before, t_ns = self._recent.last, sample.t_ns
        self._recent.add(sample)
        if sample.run_queue is not None:
            self._run_queue = sample.run_queue
        if sample.memory_used_bytes is not None:
            self._memory_used_bytes = sample.memory_used_bytes
        begin_ns = t_ns - 1 if before is None else before.t_ns
        if not 0 < t_ns - begin_ns <= MOST_APART_NS:
            return
        if sample.loop_lag_s is not None:
            self._own_lag.add(begin_ns, t_ns, np.array([sample.loop_lag_s]))
        if before is not None:
            self.spans.add(begin_ns, t_ns, _usage_row(before, sample))

    @property
    def pids(self) -> dict[int, str]:
        last = self._recent.last
        return {each.pid: each.role for each in last.processes} if last else {}

    def state(
        self, now_ns: int, window: Window, lags: list[Worsts], grid: Grid | None
    ) -> HostState:
        last, use = self._recent.last, self._recent.use(SPAN_NS)
        return HostState(
            source=self.source,
            info=self.info,
            last_ns=None if last is None else last.t_ns,
            cores=self.cores,
            busy=use.busy,
            run_queue=self._run_queue,
            memory_used_bytes=self._memory_used_bytes,
            api_loop_lag_s=_worst([each.over(now_ns, window) for each in lags]),
            own_loop_lag_s=_worst([self._own_lag.over(now_ns, window)]),
            processes=tuple(self._processes()),
            others=self._largest_others,
            timeline=HostTimeline() if grid is None else self._line(window, lags, grid),
        )

    @property
    def cores(self) -> int | None:
        last = self._recent.last
        if last is not None and last.cores is not None:
            return last.cores
        return self.info.cores if self.info else None

    @property
    def _largest_others(self) -> tuple[NamedProcesses, ...]:
        last, others = self._recent.last, self.others
        if last is None or others is None or last.t_ns - others.t_ns > OTHERS_NS:
            return ()
        return tuple(others.largest)

    def busy(self, window: Window, grid: Grid) -> Floats:
        """Return the busy share of all cores, by bin."""
        rows = self.spans.columns(window, grid)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares: Floats = rows[:, 0] / rows[:, 1]
        return shares

    def saved(self, parts: Parts) -> SavedHost:
        return SavedHost(
            source=self.source,
            info=self.info,
            recent=list(self._recent.samples),
            run_queue=self._run_queue,
            memory_used_bytes=self._memory_used_bytes,
            spans=self.spans.saved(parts),
            own_lag=self._own_lag.saved(parts),
            others=self.others,
        )

    def restore(self, saved: SavedHost, parts: WrittenParts) -> None:
        self.info = saved.info
        self._recent.restore(saved.recent)
        self._run_queue = saved.run_queue
        self._memory_used_bytes = saved.memory_used_bytes
        self.spans.restore(saved.spans, parts)
        self._own_lag.restore(saved.own_lag, parts)
        self.others = saved.others

    def _processes(self) -> Iterable[ProcessState]:
        last, used = self._recent.last, self._recent.by_process(SPAN_NS)
        for each in last.processes if last is not None else ():
            share, throttled = used.get(each.pid, (None, None))
            yield ProcessState(
                pid=each.pid,
                role=each.role,
                cpu_share=share,
                rss_bytes=each.rss_bytes,
                threads=each.threads,
                throttled=throttled,
            )

    def _line(self, window: Window, lags: list[Worsts], grid: Grid) -> HostTimeline:
        rows = self.spans.columns(window, grid)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = dict(zip(CHANNELS, (rows[:, ::2] / rows[:, 1::2]).T, strict=True))
        worst = [each.columns(window, grid)[:, 0] for each in lags]
        lag = np.fmax.reduce(worst) if worst else np.full(grid.count, np.nan)
        return HostTimeline(
            busy=told_of(means["busy"]),
            cpu_by_role={
                role: told_of(means[role])
                for role in ROLES
                if not np.isnan(means[role]).all()
            },
            loop_lag_s=told_of(lag),
        )


class ServerLag:
    """The event loop lag of one server."""

    def __init__(self) -> None:
        self.first_ns: int | None = None
        """When it was first reported."""
        self.last_ns = 0
        self.worst = Worsts(1)

    def take(self, t_ns: int, lag_ns: int) -> None:
        if self.first_ns is None:
            self.first_ns = self.last_ns = t_ns
        since_ns = max(min(self.last_ns, t_ns - 1), t_ns - MOST_APART_NS)
        self.last_ns = t_ns
        if lag_ns <= t_ns - self.first_ns - STARTS_NS:
            self.worst.add(since_ns, t_ns, np.array([lag_ns / NS_PER_S]))


class HostTracker:
    """Folds the readings of hosts, and the event loop lag of API servers."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._lags: dict[str, ServerLag] = {}
        """By source."""

    def info(self, info: HostInfo) -> None:
        host = self._host(info.source)
        if host is not None:
            host.info = info

    def sample(self, sample: HostSample) -> None:
        host = self._host(sample.source)
        if host is not None and _believed(sample):
            host.take(sample)

    def others(self, others: OtherProcesses) -> None:
        host = self._host(others.source)
        if host is not None:
            host.others = others

    def lag(self, source: str, t_ns: int, lag_ns: int) -> None:
        """Add a server's worst event loop lag since its previous report."""
        server_lag = self._lags.get(source)
        if server_lag is None and len(self._lags) < MOST_SERVERS:
            server_lag = self._lags[source] = ServerLag()
        if server_lag is not None:
            server_lag.take(t_ns, lag_ns)

    def lost(self, source: str) -> None:
        """Reset the lag of a lost server, or of all; a restarted one starts anew."""
        for each in [source] if source else list(self._lags):
            if each in self._lags:
                self._lags[each].first_ns = None

    @property
    def seen_ns(self) -> int | None:
        """When a host other than inferwatch's own was first seen; None if never."""
        others = [each for each in self._hosts.values() if each.source]
        return min((each.info.t_ns for each in others if each.info), default=None)

    @property
    def hosts(self) -> list[Host]:
        return [self._hosts[source] for source in sorted(self._hosts)]

    def states(
        self,
        now_ns: int,
        window: Window,
        servers: dict[str, set[int]],
        grid: Grid | None,
    ) -> tuple[HostState, ...]:
        """Return each host's state; ``servers`` are the servers shown, with pids."""
        return tuple(
            host.state(now_ns, window, self._lags_on(host, servers), grid)
            for host in self.hosts
        )

    def saved(self, parts: Parts) -> SavedHosts:
        return SavedHosts(
            [host.saved(parts) for host in self._hosts.values()],
            {
                source: (each.first_ns, each.last_ns, each.worst.saved(parts))
                for source, each in self._lags.items()
            },
        )

    def restore(self, saved: SavedHosts, parts: WrittenParts) -> None:
        for each in saved.hosts:
            host = self._hosts[each.source] = Host(each.source)
            host.restore(each, parts)
        for source, (first_ns, last_ns, spans) in saved.lags.items():
            lag = self._lags[source] = ServerLag()
            lag.first_ns, lag.last_ns = first_ns, last_ns
            lag.worst.restore(spans, parts)

    def _lags_on(self, host: Host, servers: dict[str, set[int]]) -> list[Worsts]:
        """Return the lags of servers that have a process on the host."""
        here = set(host.pids)
        return [
            self._lags[source].worst
            for source, pids in servers.items()
            if pids & here and source in self._lags
        ]

    def _host(self, source: str) -> Host | None:
        """Return a host, created if new; None if there are too many."""
        host = self._hosts.get(source)
        if host is None and len(self._hosts) < MOST_HOSTS:
            host = self._hosts[source] = Host(source)
        return host


def _believed(sample: HostSample) -> bool:
    values = [each.cpu_s for each in sample.processes]
    values += [each.throttled_s or 0.0 for each in sample.processes]
    values += [sample.busy_s or 0.0, sample.loop_lag_s or 0.0]
    return all(abs(each) < ABSURD for each in values)


def _usage_row(before: HostSample, sample: HostSample) -> Floats:
    """Return a row of the CPU that was used between two samples."""
    row = np.zeros(WIDTH)
    busy = busy_between(before, sample)
    if busy is not None and busy >= 0 and sample.cores:
        row[0:2] = busy / sample.cores, 1.0
    for role, share in by_role(shares_between(before, sample)).items():
        if role in ROLES and share >= 0:
            place = 2 * CHANNELS.index(role)
            row[place : place + 2] = share, 1.0
    return row


def _worst(rows: list[Floats]) -> float | None:
    known = [float(row[0]) for row in rows if not np.isnan(row[0])]
    return max(known, default=None)
