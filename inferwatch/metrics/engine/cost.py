"""What watching costs and loses."""

from collections import deque

import msgspec
from msgspec.structs import replace

from collectors.clock import NS_PER_S
from collectors.readings import HostSample, Note, ProcessUsage, Totals
from inferwatch.metrics.snapshot import Cost

SPAN_NS = 5 * NS_PER_S
"""Shares of CPU are over about this long."""
OWN_SPAN_NS = 20 * NS_PER_S
"""Our own longer: a checkpoint is much work, once in a while."""
US = 1_000


class HostUse(msgspec.Struct, array_like=True, frozen=True):
    """How busy the host's cores are, and who keeps them so; in cores."""

    cores: int | None = None
    busy: float | None = None
    by_role: dict[str, float] = {}
    """Of the processes that are watched: api, core, worker, load, inferwatch."""


class SavedCost(msgspec.Struct, array_like=True):
    """All that a CostTracker keeps."""

    dropped: int
    hosts: list[HostSample]
    totals: list[Totals]


class CostTracker:
    """Keeps the last seconds of host samples and the latest totals of each probe."""

    def __init__(self) -> None:
        self._dropped = 0
        self._hosts: deque[HostSample] = deque()
        self._totals: dict[tuple[str, int], Totals] = {}

    def host(self, sample: HostSample) -> None:
        """CPU and memory so far."""
        self._hosts.append(sample)
        while len(self._hosts) > 2 and self._hosts[1].t_ns <= sample.t_ns - OWN_SPAN_NS:
            self._hosts.popleft()

    def totals(self, totals: Totals) -> None:
        """A probe's counts; front ends make no steps and say nothing of cost here."""
        if totals.steps:
            self._totals[totals.source, totals.rank] = totals

    def dropped(self, note: Note) -> None:
        """Readings that never came."""
        self._dropped += note.count or 0

    def lost(self) -> None:
        """The engine is gone: only processes of ours go on."""
        self._hosts = deque(
            replace(host, processes=_ours(host)) for host in self._hosts
        )

    def saved(self) -> SavedCost:
        """All that is kept."""
        return SavedCost(self._dropped, list(self._hosts), list(self._totals.values()))

    def restore(self, saved: SavedCost) -> None:
        """Take over what was saved."""
        self._dropped = saved.dropped
        self._hosts = deque(saved.hosts)
        self._totals = {(each.source, each.rank): each for each in saved.totals}

    def cost(self, unrecorded_readings: int) -> Cost:
        """As of the latest readings."""
        shares = self._shares(SPAN_NS)
        own = self._shares(OWN_SPAN_NS).get("inferwatch")
        if own is not None:
            shares["inferwatch"] = own
        return Cost(
            dropped_readings=self._dropped,
            unrecorded_readings=unrecorded_readings,
            self_cpu_s=self._self_cpu_s(),
            self_cpu_share=own,
            process_cpu_share=shares,
            probe_us_per_step=self._probe_us_per_step(),
        )

    def host_use(self) -> HostUse:
        """Over the last seconds."""
        if len(self._hosts) < 2:
            return HostUse()
        first, last = self._before(SPAN_NS), self._hosts[-1]
        elapsed_s = (last.t_ns - first.t_ns) / NS_PER_S
        busy = None
        if first.busy_s is not None and last.busy_s is not None and elapsed_s > 0:
            busy = (last.busy_s - first.busy_s) / elapsed_s
        return HostUse(cores=last.cores, busy=busy, by_role=self._shares(SPAN_NS))

    def _self_cpu_s(self) -> float | None:
        if not self._hosts:
            return None
        used = [p.cpu_s for p in self._hosts[-1].processes if p.role == "inferwatch"]
        return sum(used) if used else None

    def _before(self, span_ns: int) -> HostSample:
        """The latest sample that is so old, or the oldest."""
        begin_ns = self._hosts[-1].t_ns - span_ns
        old = (each for each in reversed(self._hosts) if each.t_ns <= begin_ns)
        return next(old, self._hosts[0])

    def _shares(self, span_ns: int) -> dict[str, float]:
        """By role, of processes that live at both ends of the span."""
        if len(self._hosts) < 2:
            return {}
        first, last = self._before(span_ns), self._hosts[-1]
        before = {process.pid: process.cpu_s for process in first.processes}
        elapsed_s = (last.t_ns - first.t_ns) / NS_PER_S
        shares: dict[str, float] = {}
        for process in last.processes:
            if process.pid in before and elapsed_s > 0:
                used_s = process.cpu_s - before[process.pid]
                shares[process.role] = (
                    shares.get(process.role, 0.0) + used_s / elapsed_s
                )
        return shares

    def _probe_us_per_step(self) -> float | None:
        steps = sum(totals.steps for totals in self._totals.values())
        spent_ns = sum(totals.probe_cost_ns for totals in self._totals.values())
        return spent_ns / steps / US if steps else None


def _ours(host: HostSample) -> list[ProcessUsage]:
    return [each for each in host.processes if each.role in {"inferwatch", "load"}]
