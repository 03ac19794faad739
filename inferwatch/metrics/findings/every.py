"""All diagnoses."""

from inferwatch.metrics.findings import (
    cache,
    host,
    queue,
    refused,
    slow,
    speculation,
    startup,
    tenants,
    traffic,
    work,
)
from inferwatch.metrics.findings.diagnosis import Diagnosis

OF_COUNTS: tuple[Diagnosis, ...] = (queue.Deferred(), refused.RefusedRequests())
"""Diagnoses that hold of servers without a probe, by what they count."""
OF_ALL: tuple[Diagnosis, ...] = (
    traffic.ClientBound(),
    traffic.Dropped(),
    traffic.Late(),
)
"""Diagnoses of the whole session, however many servers there are."""
EXPLAINED_OTHERWISE = {each.NAME for each in slow.SLOW_BY}
"""Not shown where other findings explain the same causes."""
DIAGNOSES: tuple[Diagnosis, ...] = (
    traffic.EngineLost(),
    traffic.RestartLoop(),
    host.Stopped(),
    queue.BatchTooSmall(),
    queue.TokenBudget(),
    queue.HeadOfLine(),
    queue.StarvedPriorityClass(),
    tenants.NoisyTenantFound(),
    queue.Deferred(),
    cache.KvBound(),
    cache.Preemptions(),
    cache.BlocksWasted(),
    cache.CacheTooSmall(),
    cache.UnstablePrefix(),
    cache.PrefixMissed(),
    cache.PrefixCachingOff(),
    work.PrefillStalls(),
    work.MemoryBound(),
    work.ComputeBound(),
    work.TensorParallelTooHigh(),
    work.FasterThanFloor(),
    speculation.LowAcceptance(),
    speculation.SpeculationAtFullBatch(),
    host.HostGaps(),
    host.Throttled(),
    host.CpuBusy(),
    host.MemoryFull(),
    host.CpuQuota(),
    host.FrontEnd(),
    host.Stalls(),
    host.Compiling(),
    traffic.CutOff(),
    traffic.Aborts(),
    traffic.Failures(),
    refused.RefusedRequests(),
    startup.SlowStorage(),
    startup.CompileCacheMissed(),
    traffic.EngineWarmUp(),
    traffic.SloMissed(),
    *slow.SLOW_BY,
    *OF_ALL,
)
