"""The bounds of one set-up over many batch sizes, and where throughput stops growing.

A curve is made of plans, so that each of its points is what a plan of it says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from inferwatch.limits.plan import (
    CapacityPlan,
    GpuSetup,
    Workload,
    knee_for,
    plan_for,
)
from inferwatch.limits.roofline import is_possible
from inferwatch.limits.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A plan of a curve, with what was measured at its batch."""

    plan: CapacityPlan
    measured_tokens_per_s: float | None = None

    @property
    def batch(self) -> int:
        """Requests that decode together."""
        return self.plan.workload.batch

    @property
    def ceiling(self) -> float | None:
        """Most tokens/s of this batch, whether it fits or not."""
        floor_s = self.plan.tpot_floor_s
        return self.batch / floor_s if floor_s else None

    @property
    def of_ceiling(self) -> float | None:
        """Share of the ceiling that was measured; above 1 is impossible."""
        measured, ceiling = self.measured_tokens_per_s, self.ceiling
        return measured / ceiling if measured and ceiling else None

    @property
    def possible(self) -> bool | None:
        """Whether the measurement can be; None without one."""
        measured = self.measured_tokens_per_s
        step_s = self.batch / measured if measured else None
        return is_possible(step_s, self.plan.tpot_floor_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCurve:
    """Plans of one set-up and context by batch size, rising."""

    points: tuple[CurvePoint, ...]
    at_knee: CapacityPlan | None
    """The plan at the knee (see `knee_batch`), which may be more than fit."""
    at_compute: CapacityPlan | None
    """The plan from which on compute binds; likewise."""

    @property
    def knee(self) -> int | None:
        """Batch size from which weights no longer set the pace."""
        return self.at_knee.workload.batch if self.at_knee is not None else None

    @property
    def plan(self) -> CapacityPlan:
        """The first plan: what does not depend on the batch is the same in all."""
        return self.points[0].plan

    def ceiling_at(self, batch: float) -> float | None:
        """Most tokens/s of a batch; between two points along a line of their floors."""
        for low, high in pairwise(self._floors()):
            if low[0] <= batch <= high[0]:
                share = (batch - low[0]) / (high[0] - low[0])
                return batch / (low[1] + share * (high[1] - low[1]))
        return None

    def _floors(self) -> list[tuple[int, float]]:
        """Batch and floor of each point, and of those where the curve bends."""
        bends = (each for each in (self.at_knee, self.at_compute) if each is not None)
        plans = [*(each.plan for each in self.points), *bends]
        floors = {
            each.workload.batch: each.tpot_floor_s
            for each in plans
            if each.tpot_floor_s and each.workload.batch <= self.points[-1].batch
        }
        return sorted(floors.items())

    @property
    def measured(self) -> tuple[CurvePoint, ...]:
        """Points with a measurement."""
        return tuple(e for e in self.points if e.measured_tokens_per_s is not None)

    @property
    def impossible(self) -> tuple[CurvePoint, ...]:
        """Points whose measurement is faster than possible."""
        return tuple(each for each in self.points if each.possible is False)


def curve_for(
    shape: ModelShape,
    machine: GpuSetup,
    workload: Workload,
    batches: Iterable[int],
    measured: Mapping[int, float] | None = None,
) -> PlanCurve:
    """The curve of a set-up over these batches, and those that were measured.

    ``measured`` are tokens/s by batch; the batch of the workload is ignored.
    """
    told, knee = measured or {}, knee_for(shape, machine, workload)

    def at(batch: int) -> CapacityPlan:
        return plan_for(shape, machine, replace(workload, batch=batch))

    points = (
        CurvePoint(plan=at(batch), measured_tokens_per_s=told.get(batch))
        for batch in sorted({*batches, *told})
    )
    curve = PlanCurve(
        points=tuple(points),
        at_knee=at(knee) if knee is not None else None,
        at_compute=None,
    )
    compute_from = curve.plan.compute_bound_from
    return (
        curve if compute_from is None else replace(curve, at_compute=at(compute_from))
    )
