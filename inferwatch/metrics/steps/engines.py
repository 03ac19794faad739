"""The engines, and their latest reports."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from collectors.contract.readings import (
    Endpoint,
    EngineInfo,
    EngineSettings,
    LiveLimits,
    MeasuredPeak,
    ModelConfig,
    Stage,
    StartupStage,
    Step,
    Totals,
    WorkerMemory,
)
from inferwatch.formatting import model_name
from inferwatch.metrics.series.history import KvBlocks
from inferwatch.metrics.steps.live_limits import in_place, limits_at, under
from inferwatch.metrics.steps.profiles import ProfileLog, SessionProfile

Key = tuple[str, int]
"""Source and data-parallel rank."""
StageKey = tuple[str, int, int | None, Stage]
AnyKey = TypeVar("AnyKey", Key, tuple[str, int, int], StageKey)
MOST_CHANGES = 64
"""Largest number of limit changes kept for a rank."""
Setting = str | int | float | bool | None


class Rank(msgspec.Struct, array_like=True):
    """One EngineCore (a rank of an engine) with its latest reports; saved as it is."""

    info: EngineInfo | None = None
    """With the limits in force, if they can be changed while it runs."""
    step: Step | None = None
    totals: Totals | None = None
    kv: KvBlocks = (None, None, None)
    last_end_ns: int | None = None
    waiting_since_ns: int | None = None
    """Since when every step left requests waiting."""
    calm_since_ns: int | None = None
    """When requests last stopped waiting."""
    lost: bool = False
    gap_ns: int = 0
    """Time before the latest step in which none ran, though there was work."""
    limits: LiveLimits | None = None
    """None if they cannot be changed."""
    told: EngineInfo | None = None
    """The engine's info as started."""
    limits_told: list[LiveLimits] = []
    """The latest limits since the start, including the present ones.

    A step that began before a change ends after the change was reported.
    """

    def take_info(self, info: EngineInfo) -> None:
        """Set the info; changed limits of an earlier process no longer apply."""
        if self.told is not None and self.told.pid != info.pid:
            self.limits, self.limits_told = None, []
        self.told, self.info = info, under(info, self.limits)

    def take_limits(self, limits: LiveLimits) -> None:
        self.limits = limits
        self.limits_told = [*self.limits_told[1 - MOST_CHANGES :], limits]
        if self.told is not None:
            self.info = under(self.told, limits)

    def token_budget(self, step: Step) -> int | None:
        """Return the token budget of a step; None where unknown.

        A step that must serve more requests than that has a larger budget.
        """
        limits = self.limits
        if limits is not None and step.start_ns < limits.t_ns:
            limits = limits_at(self.limits_told, step.start_ns)
        budget = in_place(limits).get("max_num_batched_tokens")
        if budget is not None:
            return max(budget, step.prefill_tokens + step.decode_tokens)
        return self.told.max_num_batched_tokens if self.told is not None else None

    def take_step(self, step: Step) -> None:
        self.gap_ns = gap_ns(self.step, step)
        self.step = step
        self.last_end_ns = step.end_ns
        self.kv = (step.kv_used_blocks, step.kv_cached_blocks, step.kv_free_blocks)
        self._waits(step.waiting, step.start_ns)

    def take_totals(self, totals: Totals) -> None:
        """Set the totals, which are reported even when no step runs."""
        self.totals = totals
        if totals.waiting is not None:
            self._waits(totals.waiting, totals.t_ns)
        if totals.kv_used_blocks is not None:
            self.kv = self._kv_after(totals.kv_used_blocks)

    @property
    def at_rest(self) -> Totals | None:
        """The latest totals, if no step ended since; else None."""
        totals = self.totals
        if totals is None or totals.running is None:
            return None
        if self.step is not None and self.step.end_ns > totals.t_ns:
            return None
        return totals

    @property
    def waiting(self) -> int:
        if self.at_rest is not None:
            return self.at_rest.waiting or 0
        return self.step.waiting if self.step is not None else 0

    @property
    def total_blocks(self) -> int | None:
        """KV blocks that requests can use; None where unknown."""
        if self.info is not None and self.info.num_kv_blocks is not None:
            return self.info.num_kv_blocks
        return None if None in self.kv else known_sum(self.kv)

    def forget(self) -> None:
        """Forget the latest reports because readings were lost."""
        self.step = self.totals = self.waiting_since_ns = None

    def gone(self) -> None:
        self.forget()
        self.kv = (None, None, None)
        self.lost = True

    def _waits(self, waiting: int, t_ns: int) -> None:
        if waiting and self.waiting_since_ns is None:
            self.waiting_since_ns = t_ns
        elif not waiting and self.waiting_since_ns is not None:
            self.waiting_since_ns, self.calm_since_ns = None, t_ns

    def _kv_after(self, used: int) -> KvBlocks:
        """Return the rank's KV blocks when ``used`` are in use.

        If that number has changed, how many of the others are cached is unknown.
        """
        return self.kv if used == self.kv[0] else (used, None, None)


class SavedEngines(msgspec.Struct, array_like=True):
    """Engines as checkpoints keep them."""

    ranks: list[tuple[str, int, Rank]]
    """Source and number of each rank, with the rank."""
    endpoints: dict[str, Endpoint]
    peak_used_blocks: int | None
    configs: list[ModelConfig] = []
    settings: list[EngineSettings] = []
    worker_memory: list[WorkerMemory] = []
    measured_peaks: list[MeasuredPeak] = []
    stages: list[StartupStage] = []
    profiles: list[SessionProfile] = []


class Engines:
    """Every data-parallel rank of every engine, including those lost last."""

    def __init__(self) -> None:
        self.ranks: dict[Key, Rank] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.peak_used_blocks: int | None = None
        self.configs: dict[Key, ModelConfig] = {}
        self.settings: dict[Key, EngineSettings] = {}
        """The latest settings, also of servers without a probe."""
        self.worker_memory: dict[tuple[str, int, int], WorkerMemory] = {}
        """By source, rank and worker."""
        self.stages: dict[StageKey, StartupStage] = {}
        """Of the latest start, by source, rank, worker and stage."""
        self.profiles = ProfileLog()
        """Of engines that are gone as well."""
        self.measured_peaks: dict[str, MeasuredPeak] = {}
        """By source, which is empty for the host of inferwatch."""

    def take_info(self, info: EngineInfo) -> None:
        """Set the info of a rank, and drop engines that were lost earlier."""
        for key in [key for key, rank in self.ranks.items() if rank.lost]:
            del self.ranks[key]
            self.endpoints.pop(key[0], None)
            self._forget_reports(key[0])
        self.rank(info.source, info.rank).take_info(info)

    def take_config(self, config: ModelConfig) -> None:
        """Set a rank's model configuration; only a probe's replaces an earlier one."""
        key = (config.source, config.rank)
        if config.dtype is not None or key not in self.configs:
            self.configs[key] = config

    def take_settings(self, settings: EngineSettings) -> None:
        """Add settings of a rank; a scrape reports fewer than the probe."""
        key = (settings.source, settings.rank)
        if (earlier := self.settings.get(key)) is not None:
            merged = earlier.settings | settings.settings
            settings = msgspec.structs.replace(settings, settings=merged)
        self.settings[key] = settings

    def take_memory(self, memory: WorkerMemory) -> None:
        key = (memory.source, memory.rank, memory.worker)
        self.worker_memory[key] = memory

    def take_stage(self, stage: StartupStage) -> None:
        self.stages[stage.source, stage.rank, stage.worker, stage.stage] = stage

    def take_peak(self, peak: MeasuredPeak) -> None:
        self.measured_peaks[peak.source] = peak

    def take_limits(self, limits: LiveLimits) -> None:
        self.rank(limits.source, limits.rank).take_limits(limits)

    @property
    def live_limits(self) -> tuple[LiveLimits, ...]:
        """Limits of live engines, where they can be changed; by rank."""
        ranks = [self.ranks[key] for key in sorted(self.ranks)]
        return tuple(r.limits for r in ranks if r.limits is not None and not r.lost)

    @property
    def limit_changes(self) -> tuple[LiveLimits, ...]:
        """The latest limit changes of live engines, by time."""
        changes = (
            each for r in self.ranks.values() if not r.lost for each in r.limits_told
        )
        return tuple(
            sorted(changes, key=lambda each: (each.t_ns, each.source, each.rank))
        )

    @property
    def first_settings(self) -> dict[str, Setting]:
        """Settings of the first rank, with the limits in force."""
        first = min(self.settings, default=None)
        if first is None:
            return {}
        settings = dict(self.settings[first].settings)
        rank = self.ranks.get(first)
        return settings | in_place(rank.limits if rank is not None else None)

    def take_step(self, rank: Rank, step: Step) -> KvBlocks:
        """Set the latest step of a rank, and return the KV blocks of all engines."""
        rank.take_step(step)
        return self._kv_changed()

    def take_totals(self, totals: Totals) -> None:
        """Set the totals of an EngineCore; front ends' totals are of other things."""
        if totals.running is not None or totals.kv_used_blocks is not None:
            self.rank(totals.source, totals.rank).take_totals(totals)
            self._kv_changed()

    def saved(self) -> SavedEngines:
        return SavedEngines(
            ranks=[(*key, rank) for key, rank in self.ranks.items()],
            endpoints=self.endpoints,
            peak_used_blocks=self.peak_used_blocks,
            configs=[*self.configs.values()],
            settings=[*self.settings.values()],
            worker_memory=[*self.worker_memory.values()],
            measured_peaks=[*self.measured_peaks.values()],
            stages=[*self.stages.values()],
            profiles=self.profiles.saved(),
        )

    def restore(self, saved: SavedEngines) -> None:
        self.ranks = {(source, number): rank for source, number, rank in saved.ranks}
        self.endpoints = saved.endpoints
        self.peak_used_blocks = saved.peak_used_blocks
        for config in saved.configs:
            self.take_config(config)
        for settings in saved.settings:
            self.take_settings(settings)
        for memory in saved.worker_memory:
            self.take_memory(memory)
        for peak in saved.measured_peaks:
            self.take_peak(peak)
        for stage in saved.stages:
            self.take_stage(stage)
        self.profiles.restore(saved.profiles)

    def ranks_of(self, source: str) -> list[Rank]:
        """Return the ranks of a source; all if it is empty."""
        return [rank for (each, _), rank in self.ranks.items() if source in {"", each}]

    @property
    def alive(self) -> set[str]:
        """Sources of engines that are not lost."""
        return {source for (source, _), rank in self.ranks.items() if not rank.lost}

    @property
    def sources(self) -> set[str]:
        """Sources of all engines, including those lost last."""
        return {source for source, _ in self.ranks}

    def lost(self, source: str, t_ns: int) -> None:
        """Mark an engine as lost; its info stays until another one starts."""
        self.profiles.lost(source, t_ns)
        for rank in self.ranks_of(source):
            rank.gone()

    def rank(self, source: str, rank: int) -> Rank:
        key = (source, rank)
        rank_state = self.ranks.get(key)
        if rank_state is None:
            rank_state = self.ranks[key] = Rank()
        return rank_state

    @property
    def latest_step(self) -> Step | None:
        """The step that ended last, of live engines."""
        ranks = [rank for rank in self.ranks.values() if not rank.lost]
        steps = [rank.step for rank in ranks if rank.step is not None]
        return max(steps, key=lambda step: step.end_ns, default=None)

    def model_of(self, source: str) -> str | None:
        """Return the name of the model that a source serves; None if nobody told."""
        first = self.ranks.get((source, 0))
        if first is not None and first.info is not None:
            return model_name(first.info.model)
        ranks = (rank for (of, _), rank in self.ranks.items() if of == source)
        names = (model_name(rank.info.model) for rank in ranks if rank.info is not None)
        return next(names, None)

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """Infos of live engines, and of those lost last."""
        ranks = [self.ranks[key] for key in sorted(self.ranks)]
        known = [rank.info for rank in ranks if rank.info is not None]
        sizes: dict[str, int] = {}
        for info in known:
            least = max(info.data_parallel or 1, info.rank + 1)
            sizes[info.source] = max(sizes.get(info.source, 1), least)
        return tuple(_of_so_many(info, sizes[info.source]) for info in known)

    @property
    def kv(self) -> KvBlocks:
        """Used, idle-cached and free blocks of all ranks."""
        if len(self.ranks) == 1:  # the usual case, and called for every step
            return next(iter(self.ranks.values())).kv
        used, cached, free = zip(*(r.kv for r in self.ranks.values()), strict=True)
        return known_sum(used), known_sum(cached), known_sum(free)

    def _forget_reports(self, source: str) -> None:
        """Forget what an engine reported, as another one started."""
        _without(self.configs, source)
        _without(self.settings, source)
        _without(self.worker_memory, source)
        _without(self.stages, source)

    def _kv_changed(self) -> KvBlocks:
        kv = self.kv
        if kv[0] is not None and kv[0] > (self.peak_used_blocks or -1):
            self.peak_used_blocks = kv[0]
        return kv


def _without(reports: dict[AnyKey, Any], source: str) -> None:
    for key in [key for key in reports if key[0] == source]:
        del reports[key]


def gap_ns(before: Step | None, step: Step) -> int:
    """Return how long no step of a rank ran between two, though there was work.

    There was work if a request waited for a step and not for something else, or if the
    first request of the later step is in the earlier one; when requests arrived in
    between is not known. Overlapping steps have no gap.
    """
    if before is None or step.index != before.index + 1:
        return 0
    gap = step.start_ns - before.end_ns
    if gap <= 0:
        return 0
    goes_on = bool(step.members) and step.members[0] in before.members
    waited = before.waiting and step.deferred_before is None
    return gap if waited or goes_on else 0


def _of_so_many(info: EngineInfo, ranks: int) -> EngineInfo:
    """Return the info with all ranks counted; those of a dense model report 1."""
    if (info.data_parallel or 1) >= ranks:
        return info
    return msgspec.structs.replace(info, data_parallel=ranks)


def known_sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
