"""The least replicas of each set-up that hold objectives at a rate.

Two counts: the bound that no schedule can do without (closed form), and what vLLM's
scheduler needs when requests come at random (simulated). The answer is fed back: so
many hold, one fewer does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from inferwatch.limits.plan import CapacityPlan, cost_per_million
from inferwatch.metrics.requests.slo import DEFAULT_SHARE, Slo
from inferwatch.studies.capacity.batch import (
    NO_SLO,
    OF_METRIC,
    BatchLimits,
    Binds,
    ServerSetting,
    batch_limits,
    missed_by,
    queues,
    setting_for,
)
from inferwatch.studies.capacity.queue import WAITING, QueueOutcome, simulate
from inferwatch.studies.capacity.steps import Claim, StepTimes

BARELY = 1e-3
"""Share of a replica's capacity at which requests hardly meet."""
CLOSE = 0.01
"""Relative difference up to which a rate is found."""
OUTBID = 2.0
"""Set-ups whose bound is so many times the best answer are not simulated."""
Simulated = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityGoal:
    """What is to be held."""

    slo: Slo = NO_SLO
    target: float = DEFAULT_SHARE
    """Share of the requests that must be within all limits, 0-1."""
    rate_per_s: float | None = None
    """Requests per second of all replicas; None: of one replica as many as it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A replica's set-up that may be bought, and how long its steps take."""

    plan: CapacityPlan
    times: StepTimes
    formats: str
    """Formats of weights and KV cache, in words."""
    is_extra: bool = False
    """Whether nobody asked for its formats."""
    seen: tuple[int, int] | None = None
    """The largest batch and prompt tokens of a step for which times are known."""

    @property
    def price(self) -> float:
        """What a replica costs: its price, or its GPUs where it has none."""
        return self.plan.machine.gpus * (self.plan.machine.gpu_hour or 1.0)

    @property
    def claim(self) -> Claim:
        return self.times.pace.claim

    @property
    def queues(self) -> int:
        """Into how many queues its requests fall."""
        return queues(self.plan)

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.plan.machine.pipeline_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityAnswer:
    """What a set-up takes to hold the goal; replicas are None where it cannot."""

    option: Option
    goal: CapacityGoal
    limits: BatchLimits
    binds: Binds
    setting: ServerSetting | None = None
    most_per_s: float | None = None
    """Requests per second of a replica at its largest batch, without a queue."""
    least_replicas: int | None = None
    """No schedule does with fewer, at these times of steps."""
    replicas: int | None = None
    held: QueueOutcome | None = None
    """The queue with so many replicas."""
    fewer: QueueOutcome | None = None
    """The queue with one fewer; None where the bound excludes that."""
    missed: str | None = None
    """The objective that it misses at best, where it cannot hold the goal."""

    @property
    def is_outbid(self) -> bool:
        """Whether it was not simulated, as its bound costs far more than another."""
        return (
            self.replicas is None
            and self.missed is None
            and self.most_per_s is not None
        )

    @property
    def holds(self) -> bool:
        return self.replicas is not None

    @property
    def batch(self) -> int:
        """The largest batch of a replica within the objectives."""
        return self.limits.holding * self.option.queues

    @property
    def gpus(self) -> int | None:
        if self.replicas is None:
            return None
        return self.replicas * self.option.plan.machine.gpus

    @property
    def tokens_per_s(self) -> float | None:
        """Output of all replicas: of the rate asked for, else of the largest batch."""
        rate = self.goal.rate_per_s or self.most_per_s
        if rate is None or self.replicas is None:
            return None
        return rate * self.option.plan.workload.output

    @property
    def tpot_s(self) -> float | None:
        """As simulated, at the share to be good; else of the largest batch."""
        times = self.option.times
        if self.held is not None or not self.holds or times.workload.output == 1:
            return self.held.tpot_s if self.held is not None else None
        return times.mean_s(self.limits.holding)

    @property
    def ttft_s(self) -> float | None:
        """As simulated, at the share to be good; else of a prompt alone."""
        if self.held is not None or not self.holds:
            return self.held.ttft_s if self.held is not None else None
        return self.option.times.alone_s() / self.option.stages

    @property
    def good_share(self) -> float:
        """Share of those tokens that are of good requests."""
        return 1.0 if self.held is None else self.held.good_share

    @property
    def gpu_hours_price(self) -> float | None:
        """Price per hour of all GPUs."""
        price = self.option.plan.machine.gpu_hour
        return None if price is None or self.gpus is None else price * self.gpus

    @property
    def price_per_million(self) -> float | None:
        """Price of a million output tokens of good requests."""
        price, tokens = self.option.plan.machine.gpu_hour, self.tokens_per_s
        if price is None or self.gpus is None or not tokens:
            return None
        return cost_per_million(price, self.gpus, tokens * self.good_share)


def answers_for(
    options: Sequence[Option], goal: CapacityGoal, simulated: Simulated = lambda: None
) -> list[CapacityAnswer]:
    """An answer for each set-up, in order; ``simulated`` is called for each queue.

    Those with the lowest bound come first; what cannot come near is not simulated.
    """
    bounds = [bound_for(each, goal) for each in options]
    rate = goal.rate_per_s
    if rate is None:
        return [_alone(each) for each in bounds]
    answers, best = dict(enumerate(bounds)), inf

    def cost(place: int) -> float:
        least = bounds[place].least_replicas
        return inf if least is None else least * options[place].price

    for place in sorted(range(len(bounds)), key=cost):
        if cost(place) < inf and cost(place) <= OUTBID * best:
            answer = answers[place] = simulated_answer(bounds[place], simulated)
            if answer.replicas is not None and not answer.option.is_extra:
                best = min(best, answer.replicas * answer.option.price)
    return [answers[place] for place in range(len(options))]


def bound_for(option: Option, goal: CapacityGoal) -> CapacityAnswer:
    """The largest batch of a set-up, and how many replicas are too few, closed form."""
    seen_batch, seen_tokens = option.seen or (None, None)
    limits = batch_limits(option.plan, option.times, goal.slo, seen_batch)
    answer = CapacityAnswer(
        option=option,
        goal=goal,
        limits=limits,
        binds=limits.binds,
        missed=None if limits.holding else limits.missed,
    )
    if not limits.holding:
        return answer
    setting = setting_for(
        option.times, goal.slo, limits.holding, option.stages, seen_tokens
    )
    most_per_s = option.queues * option.times.most_per_s(limits.holding)
    least = None
    if goal.rate_per_s is not None:
        least = max(1, ceil(goal.rate_per_s / most_per_s * (1 - 1e-12)))
    return replace(answer, setting=setting, most_per_s=most_per_s, least_replicas=least)


def _alone(bound: CapacityAnswer) -> CapacityAnswer:
    return replace(bound, replicas=1) if bound.limits.holding else bound


def simulated_answer(
    bound: CapacityAnswer, simulated: Simulated = lambda: None
) -> CapacityAnswer:
    """The least replicas whose queue holds the goal at its rate."""
    if bound.setting is None or bound.goal.rate_per_s is None:
        return bound
    return _Search(bound, bound.setting, simulated).answer(bound.goal.rate_per_s)


def most_rate(answer: CapacityAnswer) -> float | None:
    """Requests per second that one replica of an answer holds; None without any."""
    if answer.setting is None or answer.most_per_s is None:
        return None
    search = _Search(answer, answer.setting, lambda: None)
    low, high = BARELY * answer.most_per_s, answer.most_per_s
    if not search.holds(search.at(low)):
        return None
    while high > low * (1 + CLOSE):
        middle = (low + high) / 2
        low, high = (middle, high) if search.holds(search.at(middle)) else (low, middle)
    return low


class _Search:
    """Simulates one queue of a set-up at several rates."""

    def __init__(
        self, answer: CapacityAnswer, setting: ServerSetting, simulated: Simulated
    ) -> None:
        self._answer, self._setting, self._simulated = answer, setting, simulated

    def at(self, rate_per_s: float) -> QueueOutcome:
        """The queue of a replica that gets so many requests."""
        option, goal = self._answer.option, self._answer.goal
        rate_per_s /= option.queues
        outcome = simulate(
            option.times, self._setting, rate_per_s, goal.slo, goal.target
        )
        self._simulated()
        return outcome

    def holds(self, outcome: QueueOutcome) -> bool:
        return outcome.holds(self._answer.goal.target)

    def answer(self, rate_per_s: float) -> CapacityAnswer:
        """The least replicas: tried upwards from the bound, then halved."""
        least = self._answer.least_replicas or 1
        low, high, step = least - 1, least, 1
        fewer, held = None, self.at(rate_per_s / high)
        if not self.holds(held):
            alone = self.at(BARELY * (self._answer.most_per_s or rate_per_s))
            if not self.holds(alone):
                return self._never(alone)
        while not self.holds(held):
            low, fewer, high = high, held, high + step
            step *= 2
            held = self.at(rate_per_s / high)
        while high - low > 1:
            middle = (low + high) // 2
            tried = self.at(rate_per_s / middle)
            if self.holds(tried):
                high, held = middle, tried
            else:
                low, fewer = middle, tried
        return replace(
            self._answer,
            replicas=high,
            held=held,
            fewer=fewer,
            binds=self._binds(high, fewer),
        )

    def _binds(self, replicas: int, fewer: QueueOutcome | None) -> Binds:
        if replicas == 1:
            return Binds.RATE
        if fewer is None or fewer.missed in {None, WAITING}:
            return self._answer.limits.binds
        return OF_METRIC[fewer.missed]

    def _never(self, alone: QueueOutcome) -> CapacityAnswer:
        """Not even requests that hardly meet hold: chunks make a prompt slower."""
        missed = alone.missed or WAITING
        binds = OF_METRIC.get(missed, Binds.QUEUE)
        return replace(self._answer, binds=binds, missed=missed)


def at_best(answer: CapacityAnswer) -> dict[str, float]:
    """By objective, how often its limit a single request takes at best."""
    option = answer.option
    times = option.times
    ttft_s, step_s = times.alone_s() / option.stages, times.mean_s(1)
    values = {
        "ttft_s": ttft_s,
        "tpot_s": step_s,
        "itl_s": step_s,
        "e2el_s": ttft_s + times.answer_steps * step_s,
    }
    missed = missed_by(times, answer.goal.slo, 1, option.stages)
    return {
        limit.metric: values[limit.metric] / limit.below_s
        for limit in answer.goal.slo.limits
        if limit.metric in missed
    }
