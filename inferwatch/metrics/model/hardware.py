"""GPUs and hosts as a snapshot shows them: which the engine uses, and their totals."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any, TypedDict
from urllib.parse import urlsplit

import msgspec
import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import EngineInfo, Totals
from inferwatch.metrics.findings.facts import Around
from inferwatch.metrics.floor.budget import with_drivers
from inferwatch.metrics.floor.view import Limits
from inferwatch.metrics.hardware.gpus import (
    ENERGY,
    HELD_NS,
    PLACE,
    Gpu,
    GpuTracker,
    SavedGpus,
    channel_means,
    gpu_timeline,
    power,
    throttled,
)
from inferwatch.metrics.hardware.hosts import (
    ENGINE_ROLES,
    HostState,
    HostTracker,
    SavedHosts,
)
from inferwatch.metrics.hardware.view import GpuState, GpuTimeline, Hardware
from inferwatch.metrics.load.client import LoadClient
from inferwatch.metrics.series.curves import Grid, grid_over
from inferwatch.metrics.series.histograms import Floats
from inferwatch.metrics.series.saving import Parts, WrittenParts
from inferwatch.metrics.series.spans import told_of
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot

Column = tuple[float | None, ...]


class MeasuredColumns(TypedDict, total=False):
    """The columns of the timeline that GPUs and hosts measure; absent without them."""

    hbm_bytes_per_s: Column
    hbm_share: Column
    sm_active: Column
    power_w: Column
    throttled: Column
    host_busy: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareView:
    """What a snapshot shows of GPUs and hosts."""

    hardware: Hardware
    gpus: tuple[GpuState, ...] = ()
    hosts: tuple[HostState, ...] = ()
    columns: MeasuredColumns
    latest: MeasuredColumns
    """The same columns of the snapshot's last moments."""

    def add_to(self, limits: Limits | None) -> Limits | None:
        """Return the limits with measured bandwidth and free memory of the GPUs."""
        if limits is None or not self.gpus:
            return limits
        own = [each for each in self.gpus if each.watched is not False]
        tensor = [e.tensor_active_mean for e in own if e.tensor_active_mean is not None]
        return replace(
            limits,
            measured_mbu=self.hardware.hbm_share_mean,
            measured_mfu=sum(tensor) / len(tensor) if tensor else None,
            memory=with_drivers(limits.memory, self.gpus),
        )


LEAST_ENERGY_NS = 5 * NS_PER_S
"""Shortest time for energy per token; boards update energy every tenth of a second."""
WHOLE = 0.999
"""Share of a bin that energy must cover to be compared with tokens."""
MODEL_ROLES = ("core", "worker")
"""Roles of engine processes; their GPU memory shows where an engine runs."""


class SavedHardware(msgspec.Struct, array_like=True):
    """A HardwareTracker as checkpoints keep it."""

    gpus: SavedGpus
    hosts: SavedHosts


class HardwareTracker:
    """Folds the readings of GPUs and hosts."""

    def __init__(self) -> None:
        self.gpus = GpuTracker()
        self.hosts = HostTracker()

    def totals(self, totals: Totals) -> None:
        """Record the event loop lag of a front end."""
        if totals.loop_lag_max_ns is not None:
            self.hosts.lag(totals.source, totals.t_ns, totals.loop_lag_max_ns)

    def view(self, snapshot: Snapshot, *, over_time: bool) -> HardwareView:
        """Return all GPUs and hosts, each with charts if ``over_time``.

        ``snapshot`` tells which servers are shown, and over which bins.
        """
        line, now_ns, window = snapshot.timeline, snapshot.now_ns, snapshot.window
        grid = _grid_of(line)
        gpus, hosts = self.gpus.gpus, self.hosts.hosts
        if not gpus and not hosts:
            together = self._together(snapshot, [], ())
            return HardwareView(hardware=together, columns={}, latest={})
        own = self._engines_gpus(snapshot)
        chosen = _counted_gpus(gpus, own)
        states = tuple(
            replace(
                gpu.state(
                    now_ns,
                    window,
                    gpu_timeline(gpu, window, grid if over_time else None),
                ),
                watched=None if own is None else gpu.info.uuid in own,
            )
            for gpu in gpus
        )
        servers: dict[str, set[int]] = {}
        told = [(each.source, each.pid) for each in snapshot.endpoints]
        told += [(each.source, each.pid) for each in snapshot.engines]
        for source, pid in told:
            servers.setdefault(source, set()).add(pid)
        return HardwareView(
            gpus=states,
            hosts=self.hosts.states(
                now_ns, window, servers, grid if over_time else None
            ),
            hardware=self._together(
                snapshot,
                chosen,
                [each for each in states if each.source in _uuids(chosen)],
            ),
            columns=self._columns(window, chosen, grid),
            latest={}
            if snapshot.latest is None
            else self._columns(Window.MINUTE, chosen, _grid_of(snapshot.latest)),
        )

    @property
    def first_ns(self) -> int | None:
        """When the first reading of a GPU or host came."""
        spans = [each.spans for each in self.gpus.gpus]
        spans += [each.spans for each in self.hosts.hosts]
        begun = [each.first_ns for each in spans]
        return min((each for each in begun if each is not None), default=None)

    def saved(self, parts: Parts) -> SavedHardware:
        return SavedHardware(self.gpus.saved(parts), self.hosts.saved(parts))

    def restore(self, saved: SavedHardware, parts: WrittenParts) -> None:
        self.gpus.restore(saved.gpus, parts)
        self.hosts.restore(saved.hosts, parts)

    def _engines_gpus(self, snapshot: Snapshot) -> set[str] | None:
        """Return UUIDs of the GPUs that the engines use; None where unknown."""
        told = {uuid for info in snapshot.engines for uuid in info.gpus}
        known = {gpu.info.uuid or "": gpu for gpu in self.gpus.gpus}
        found = told & set(known)
        if not found:
            pids = self._pids(snapshot)
            found = {
                uuid
                for uuid, gpu in known.items()
                if pids.get(gpu.info.host or "", set()) & set(gpu.memory_by_pid)
            }
        parents = (known[uuid].info.parent_uuid for uuid in found)
        return found | {uuid for uuid in parents if uuid in known} or None

    def _pids(self, snapshot: Snapshot) -> dict[str, set[int]]:
        """Return the processes of the engines shown that may use a GPU, by host.

        If one server among several is shown, they are those of its host, where that is
        known by its address; all engine processes there if no other server runs on it.
        """
        cores = {info.pid for info in snapshot.engines}
        alone = snapshot.shown_source is not None and len(snapshot.sources) > 1
        places = self._hosts_of_servers(snapshot) if alone else {}
        place = places.get(snapshot.shown_source or "")
        shared = place is None or list(places.values()).count(place) > 1
        return {
            host.source: {
                pid
                for pid, role in host.pids.items()
                if pid in cores or (role in MODEL_ROLES and not (alone and shared))
            }
            for host in self.hosts.hosts
            if place in {None, host.source}
        }

    def _hosts_of_servers(self, snapshot: Snapshot) -> dict[str, str]:
        """Return the host of each server, for servers whose host is known."""
        hosts = [each.source for each in self.hosts.hosts if each.source]
        found: dict[str, str] = {}
        for server in snapshot.servers:
            url = server.info.url if server.info else None
            for named in (urlsplit(url or "").hostname, server.source.split(":")[0]):
                for host in hosts:
                    if named and _same_host(named, host):
                        found.setdefault(server.source, host)
        return found

    def _columns(
        self, window: Window, chosen: Sequence[Gpu], grid: Grid
    ) -> MeasuredColumns:
        """Return what GPUs and hosts of the engine measured, by chart column."""
        columns: MeasuredColumns = {}
        if chosen:
            each = [channel_means(gpu.spans.columns(window, grid)) for gpu in chosen]
            columns = {
                "hbm_bytes_per_s": _column_sums(
                    [one["hbm_bytes_per_s"] for one in each]
                ),
                "hbm_share": _averaged([one["hbm_share"] for one in each]),
                "sm_active": _averaged([one["sm_active"] for one in each]),
                "power_w": _column_sums([power(one) for one in each]),
                "throttled": told_of(np.fmax.reduce([throttled(one) for one in each])),
            }
        hosts = self.hosts.hosts
        running = [h for h in hosts if set(h.pids.values()) & set(ENGINE_ROLES)]
        if hosts:
            busy = [host.busy(window, grid) for host in running or hosts[:1]]
            columns["host_busy"] = _averaged(busy)
        return columns

    def _together(
        self, snapshot: Snapshot, chosen: Sequence[Gpu], states: Sequence[GpuState]
    ) -> Hardware:
        there = [each for each in states if _is_read(each, snapshot.now_ns)]
        lately = [each for each in states if each.info.lost_because is None] or states
        joules = _joules_per_token(snapshot, chosen)
        return replace(
            snapshot.hardware,
            gpus=len(states),
            no_gpu=self.gpus.absent_because,
            hbm_bytes_per_s=_sum(each.hbm_bytes_per_s for each in there),
            hbm_share=_mean(each.hbm_share for each in there),
            sm_active=_mean(each.sm_active for each in there),
            power_w=_sum(each.power_w for each in there),
            power_limit_w=_sum(each.power_limit_w for each in there),
            hbm_bytes_per_s_mean=_sum(each.hbm_bytes_per_s_mean for each in lately),
            hbm_share_mean=_mean(each.hbm_share_mean for each in lately),
            sm_active_mean=_mean(each.sm_active_mean for each in lately),
            power_w_mean=_sum(each.power_w_mean for each in lately),
            energy_j=_sum(each.energy_j for each in lately),
            joules_per_token=joules,
            tokens_per_s_per_w=1 / joules if joules else None,
            weight_bytes=_whole_sum(info.weight_bytes for info in snapshot.engines),
            kv_bytes=_whole_sum(_kv_bytes(info) for info in snapshot.engines),
        )


def _counted_gpus(gpus: Sequence[Gpu], own: set[str] | None) -> list[Gpu]:
    """Return the GPUs to count, each once: a MIG slice only without its parent GPU.

    Where the engine's GPUs are unknown, all whole GPUs count.
    """
    if own is None:
        uuids = _uuids(gpus)
        return [gpu for gpu in gpus if gpu.info.parent_uuid not in uuids]
    mine = [gpu for gpu in gpus if gpu.info.uuid in own]
    parents = {gpu.info.parent_uuid for gpu in mine}
    return [gpu for gpu in mine if gpu.info.uuid not in parents]


def _uuids(gpus: Iterable[Gpu]) -> set[str | None]:
    return {gpu.info.uuid for gpu in gpus}


def _is_read(gpu: GpuState, now_ns: int) -> bool:
    """Return whether a GPU is present and was read recently."""
    if gpu.info.lost_because is not None or gpu.last_ns is None:
        return False
    span_ns = round((gpu.span_s or 0) * NS_PER_S)
    return now_ns - gpu.last_ns <= max(HELD_NS, 2 * span_ns)


def _joules_per_token(snapshot: Snapshot, chosen: Sequence[Gpu]) -> float | None:
    """Return energy per output token over bins where both are known."""
    if not chosen or not snapshot.timeline.output_tokens:
        return None
    grid, tokens = _tokens(snapshot)
    both = ~np.isnan(tokens)
    joules = np.zeros(grid.count)
    for gpu in chosen:
        rows = gpu.spans.columns(snapshot.window, grid)
        joules += rows[:, PLACE[ENERGY]] / NS_PER_S
        both &= rows[:, PLACE[ENERGY] + 1] >= WHOLE * grid.bin_ns
    made = float(tokens[both].sum())
    if not made or int(both.sum()) * grid.bin_ns < LEAST_ENERGY_NS:
        return None
    return float(joules[both].sum()) / made


def _tokens(snapshot: Snapshot) -> tuple[Grid, Floats]:
    """Return output tokens of each bin; NaN where they were not counted.

    Charts of a session begin with its first step. Here the watched time before that
    counts, too: idling costs the same before a load as after it.
    """
    line = snapshot.timeline
    grid = Grid(line.start_ns, line.bin_ns, len(line.steps))
    told = [np.nan if n is None else float(n) for n in line.output_tokens]
    tokens = np.array(told)
    if line.running_max:  # from scrapes: None is unknown already
        return grid, tokens
    tokens = np.nan_to_num(tokens)
    end_ns = snapshot.charts_end_ns
    begin_ns = end_ns - snapshot.covered_ns
    if snapshot.window.value is None and begin_ns < grid.start_ns:
        whole = grid_over(begin_ns, int(grid.edges_ns()[-1]) - 1)
        where = whole.index_of(grid.edges_ns()[:-1])
        grid, tokens = whole, np.bincount(where, tokens, whole.count)
    begins = grid.edges_ns()[:-1]
    watched = (begins >= begin_ns) & (begins + grid.bin_ns <= end_ns)
    found: Floats = np.where(watched, tokens, np.nan)
    return grid, found


def _grid_of(line: Timeline) -> Grid:
    return Grid(line.start_ns, line.bin_ns, len(line.steps))


def _column_sums(columns: Sequence[Floats]) -> tuple[float | None, ...]:
    """Return the sums of columns; None where any is unknown."""
    added: Floats = np.sum(columns, axis=0)
    return told_of(added)


def _averaged(columns: Sequence[Floats]) -> tuple[float | None, ...]:
    held = np.array(columns)
    known = (~np.isnan(held)).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return told_of(np.nansum(held, axis=0) / known)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None where any value is unknown."""
    told = list(values)
    known = [value for value in told if value is not None]
    return sum(known) if told and len(known) == len(told) else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _whole_sum(values: Iterable[int | None]) -> int | None:
    total = _sum(values)
    return None if total is None else int(total)


def _kv_bytes(info: EngineInfo) -> int | None:
    """Return the size of a rank's KV cache; None where unknown."""
    parts: list[Any] = [
        info.num_kv_blocks,
        info.kv_block_tokens,
        info.kv_bytes_per_token,
    ]
    return None if None in parts else parts[0] * parts[1] * parts[2]


def _same_host(one: str, other: str) -> bool:
    """Return whether both names mean one host, with or without a domain."""
    one, other = one.lower(), other.lower()
    whole = _is_address(one) or _is_address(other) or ("." in one and "." in other)
    return one == other if whole else one.split(".")[0] == other.split(".")[0]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def around_of(
    now_ns: int,
    hardware: HardwareTracker,
    client: LoadClient,
    engines: Iterable[Any],
) -> Around:
    """Return the state of GPUs, hosts and client, which diagnoses look at as well."""
    pids: dict[str, set[int]] = {}
    for each in engines:
        pids.setdefault(each.source, set()).add(each.pid)
    window = Window.TEN_SECONDS
    return Around(
        gpus=tuple(
            gpu.state(now_ns, window, GpuTimeline()) for gpu in hardware.gpus.gpus
        ),
        hosts=hardware.hosts.states(now_ns, window, pids, None),
        client_why=client.bound_because,
    )
