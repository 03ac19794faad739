"""All set-ups with their answers, and which is best."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from inferwatch.limits.plan import Workload
from inferwatch.studies.capacity.calibration import RecordedOverhead
from inferwatch.studies.capacity.demand import DemandPlan
from inferwatch.studies.capacity.search import CapacityAnswer, CapacityGoal


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandResult:
    """Replicas of the best set-up over a day, and what they rest on."""

    plan: DemandPlan
    per_replica_s: float
    """Requests per second that one replica holds."""
    start_s: float
    start_told: str
    """Where the time of a start comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityResult:
    """All set-ups with their answers."""

    model: str
    workload: Workload
    goal: CapacityGoal
    answers: Sequence[CapacityAnswer]
    currency: str = "$"
    calibration: RecordedOverhead | None = None
    demand: DemandResult | None = None
    remarks: Sequence[str] = ()
    """How options were read that have two meanings."""

    @property
    def is_priced(self) -> bool:
        return any(a.option.plan.machine.gpu_hour for a in self.answers)

    @property
    def is_without_pipelines(self) -> bool:
        """Whether all set-ups split the model by tensor parallelism alone."""
        machines = (answer.option.plan.machine for answer in self.answers)
        return all(each.gpus == each.tensor_parallel for each in machines)

    @property
    def is_cut_short(self) -> bool:
        """Whether something that might be better was not simulated."""
        best = self.best
        if best is None or best.replicas is None:
            return False
        most = best.replicas * best.option.price
        outbid = (e for e in self.answers if e.is_outbid and not e.steps)
        return any((e.least_replicas or inf) * e.option.price < most for e in outbid)

    @property
    def holding(self) -> list[CapacityAnswer]:
        """Those that hold, the cheapest first; without prices, the fewest GPUs."""
        return sorted((a for a in self.answers if a.holds), key=self.cost)

    @property
    def best(self) -> CapacityAnswer | None:
        """The cheapest in the formats asked for, else of all."""
        holding = self.holding
        asked = [each for each in holding if not each.option.is_extra]
        return next(iter(asked or holding), None)

    def cost(self, answer: CapacityAnswer) -> tuple[float, ...]:
        """By what it is sorted: price or GPUs, formats nobody asked for last."""
        cost = answer.gpu_hours_price or float(answer.gpus or inf)
        if self.goal.rate_per_s is None:  # of each token
            cost /= answer.tokens_per_s or 1.0
        spare = -(answer.replicas or 0) * (answer.most_per_s or 0.0)
        return cost, answer.option.is_extra, spare
