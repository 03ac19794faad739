"""The CPU that watching costs, and the readings it loses."""

from dataclasses import field
from typing import Annotated

import msgspec
from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import HostSample, Note, ProcessUsage, Totals
from inferwatch.metrics.hardware.host_use import SPAN_NS, HostUse, RecentUse
from inferwatch.metrics.number import Better, Number, Unit, piece


@piece("cost")
class Cost:
    """The CPU that watching costs, and the readings it loses."""

    dropped_readings: Annotated[
        int,
        Number(
            "lost",
            "Readings lost",
            "Readings from a probe or a load generator that never reached us.",
            unit=Unit.READINGS,
            better=Better.LOWER,
        ),
    ] = 0
    unrecorded_readings: Annotated[
        int,
        Number(
            "unrec",
            "Readings not recorded",
            "Readings that were shown, but could not be written to the record.",
            unit=Unit.READINGS,
            better=Better.LOWER,
        ),
    ] = 0
    self_cpu_s: Annotated[
        float | None,
        Number(
            "cpu",
            "Own CPU time",
            "CPU seconds that inferwatch has used since it started.",
            unit=Unit.SECONDS,
            better=Better.LOWER,
        ),
    ] = None
    self_cpu_share: Annotated[
        float | None,
        Number(
            "self",
            "Own CPU share",
            "Share of one core that the process of this program used over the last "
            "20 seconds, all its threads together. The engine and the load generator "
            "are processes of their own and not in it.",
            unit=Unit.SHARE,
            better=Better.LOWER,
        ),
    ] = None
    process_cpu_share: Annotated[
        dict[str, float],
        Number(
            "CPU",
            "CPU by process",
            "Share of one core used over the last five seconds (our own: over the "
            "last 20), by role: API server, EngineCore, workers, load generator, "
            "inferwatch.",
            unit=Unit.SHARE,
        ),
    ] = field(default_factory=dict)
    """By role: api, core, worker, load, inferwatch."""
    probe_us_per_step: Annotated[
        float | None,
        Number(
            "probe",
            "Probe per step",
            "Mean time per step that our hooks have taken on the engine's thread "
            "since the engine started.",
            unit=Unit.MICROSECONDS,
            better=Better.LOWER,
        ),
    ] = None


OWN_SPAN_NS = 20 * NS_PER_S
"""Longer for our own processes, as checkpoints are rare but expensive."""
US = 1_000


class SavedCost(msgspec.Struct, array_like=True):
    """A CostTracker as checkpoints keep it."""

    dropped: int
    hosts: list[HostSample]
    totals: list[Totals]


class CostTracker:
    """Keeps recent host samples and the latest totals of each probe."""

    def __init__(self) -> None:
        self._dropped = 0
        self._hosts = RecentUse(OWN_SPAN_NS)
        self._totals: dict[tuple[str, int], Totals] = {}

    def host(self, sample: HostSample) -> None:
        self._hosts.add(sample)

    def totals(self, totals: Totals) -> None:
        """Set a probe's totals; a front end's, without steps, are ignored."""
        if totals.steps:
            self._totals[totals.source, totals.rank] = totals

    def dropped(self, note: Note) -> None:
        self._dropped += note.count or 0

    def lost(self) -> None:
        """Forget the processes of a lost engine; those of inferwatch stay."""
        kept = [replace(each, processes=_ours(each)) for each in self._hosts.samples]
        self._hosts.restore(kept)

    def saved(self) -> SavedCost:
        return SavedCost(
            self._dropped, list(self._hosts.samples), list(self._totals.values())
        )

    def restore(self, saved: SavedCost) -> None:
        self._dropped = saved.dropped
        self._hosts.restore(saved.hosts)
        self._totals = {(each.source, each.rank): each for each in saved.totals}

    def cost(self, unrecorded_readings: int) -> Cost:
        shares = self._hosts.by_role(SPAN_NS)
        own = self._hosts.by_role(OWN_SPAN_NS).get("inferwatch")
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
        return self._hosts.use(SPAN_NS)

    def _self_cpu_s(self) -> float | None:
        last = self._hosts.last
        processes = last.processes if last is not None else []
        used = [each.cpu_s for each in processes if each.role == "inferwatch"]
        return sum(used) if used else None

    def _probe_us_per_step(self) -> float | None:
        steps = sum(totals.steps for totals in self._totals.values())
        spent_ns = sum(totals.probe_cost_ns for totals in self._totals.values())
        return spent_ns / steps / US if steps else None


def _ours(host: HostSample) -> list[ProcessUsage]:
    return [each for each in host.processes if each.role in {"inferwatch", "load"}]
