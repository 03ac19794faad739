"""How an engine's start went: what each stage took, and how fast weights were read."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import OF_WEIGHTS, Stage, StartupStage, Vantage
from inferwatch.metrics.number import NOW, Number, Unit, piece
from inferwatch.metrics.steps.engines import known_sum


@piece("stage", Vantage.ENGINE, span=NOW)
class StageTime:
    """A stage of the start, over all workers."""

    stage: Stage
    duration_s: Annotated[
        float,
        Number(
            "stage",
            "Stage of the start",
            "What it took the slowest worker: they go through it side by side.",
            unit=Unit.SECONDS,
        ),
    ]
    worker: int | None = None
    """The slowest worker, of several."""
    n_bytes: int | None = None
    """Over all workers."""
    bytes_per_s: Annotated[
        float | None,
        Number(
            "loaded at",
            "Rate of a stage",
            "Bytes of the weights a worker went through, by the time it took the "
            "slowest one.",
            unit=Unit.GIGABYTES_PER_SECOND,
        ),
    ] = None
    cached: bool | None = None
    """Whether all workers found compiled what they needed."""


@piece("startup", Vantage.ENGINE, span=NOW)
class Startup:
    """The engine's latest start, stage by stage, in order."""

    duration_s: Annotated[
        float,
        Number(
            "started in",
            "Start of the engine",
            "From the server's first process to its last stage, including what "
            "happens between stages, such as agreeing on the size of the KV cache.",
            unit=Unit.SECONDS,
        ),
    ]
    stages: tuple[StageTime, ...] = ()
    storage_bytes: Annotated[
        int | None,
        Number(
            "from storage",
            "Weights from storage",
            "Of the weights, what storage had to fetch; the rest was in the host's "
            "memory from before. Some network file systems do not count it.",
            unit=Unit.BYTES,
        ),
    ] = None
    waited_share: Annotated[
        float | None,
        Number(
            "load wait",
            "Time the loader waited",
            "Share of the time weights were read in which the loading thread waited, "
            "for storage mostly.",
            unit=Unit.SHARE,
        ),
    ] = None

    def stage(self, *kinds: Stage) -> StageTime | None:
        """The first of these stages that there was."""
        return next((each for each in self.stages if each.stage in kinds), None)


def startup_of(told: Iterable[StartupStage]) -> Startup | None:
    """Put the stages of an engine's workers together; None without any."""
    stages = sorted(told, key=lambda each: each.t_ns)
    if not stages:
        return None
    by_kind: dict[Stage, list[StartupStage]] = {}
    for each in stages:
        by_kind.setdefault(each.stage, []).append(each)
    end_ns = max(each.t_ns + each.duration_ns for each in stages)
    reads = [each for each in stages if each.stage in OF_WEIGHTS]
    waited_ns = known_sum(each.waited_ns for each in reads)
    spent_ns = sum(each.duration_ns for each in reads)
    return Startup(
        duration_s=(end_ns - stages[0].t_ns) / NS_PER_S,
        stages=tuple(_over_workers(each) for each in by_kind.values()),
        storage_bytes=known_sum(each.storage_bytes for each in reads),
        waited_share=(
            None if waited_ns is None or not spent_ns else min(waited_ns / spent_ns, 1)
        ),
    )


def _over_workers(told: Sequence[StartupStage]) -> StageTime:
    slowest = max(told, key=lambda each: each.duration_ns)
    duration_s, kind = slowest.duration_ns / NS_PER_S, slowest.stage
    cached = [each.cached for each in told]
    rate = None
    if kind in OF_WEIGHTS and slowest.n_bytes is not None and duration_s:
        rate = slowest.n_bytes / duration_s
    return StageTime(
        stage=kind,
        duration_s=duration_s,
        worker=slowest.worker if len(told) > 1 else None,
        n_bytes=known_sum(each.n_bytes for each in told),
        bytes_per_s=rate,
        cached=None if None in cached else all(cached),
    )
