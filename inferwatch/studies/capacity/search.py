"""The least replicas of each set-up that hold objectives at a rate.

Two counts: the bound that no schedule can do without (closed form), and what vLLM's
scheduler needs when requests come at random (simulated). The answer is fed back: so
many hold, one fewer does not.
"""

from collections.abc import Callable, Iterable, Sequence
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
    latencies,
    queues,
    settings_for,
)
from inferwatch.studies.capacity.queue import WAITING, QueueOutcome, simulate
from inferwatch.studies.capacity.steps import Claim, StepTimes

CLOSE = 0.01
"""Relative difference up to which a rate is found."""
NEAR = 4.0
"""So many times the lowest bound are searched first."""
OUTBID = 2.0
"""Set-ups whose bound is so many times the best answer are not simulated."""
MOST_SETTINGS = 3
"""Settings of a set-up that are simulated."""
MOST_STEPS = 150_000
"""No further set-up is simulated after so many steps, nor setting after a twentieth."""
FEW_MORE = 0.05
"""Share of the replicas by which the search goes on at first."""
EXACT = 100
"""Up to so many replicas they are found exactly, else to such a part of them."""
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
    settings: Sequence[ServerSetting] = ()
    """Those that are simulated, the most promising first."""
    most_per_s: float | None = None
    """Requests per second of a replica at its largest batch, without a queue."""
    least_replicas: int | None = None
    """At these times of steps, fewer cannot serve the rate even without a queue."""
    replicas: int | None = None
    held: QueueOutcome | None = None
    """The queue with so many replicas."""
    fewer: QueueOutcome | None = None
    """The queue with fewer, at best; None where the bound excludes that."""
    fewer_replicas: int | None = None
    """How many those are: one fewer, of hundreds a few."""
    steps: int = 0
    """Simulated for it."""
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
        """As simulated, at the share to be good; else of the largest batch."""
        if self.held is not None or not self.holds:
            return self.held.ttft_s if self.held is not None else None
        return self.option.times.ttft_s(self.limits.holding, self.option.stages)

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

    Formats asked for come first, and the lowest bounds of them; what cannot come near,
    or comes after many steps, is not simulated.
    """
    found = [bound_for(each, goal) for each in options]
    if goal.rate_per_s is None:
        return [_alone(each) for each in found]
    costs = [
        inf if each.least_replicas is None else each.least_replicas * each.option.price
        for each in found
    ]
    order = sorted(
        (n for n in range(len(costs)) if costs[n] < inf),
        key=lambda n: (options[n].is_extra, costs[n]),
    )
    for most in (NEAR * min(costs, default=inf), inf):
        _simulate(found, [(n, costs[n]) for n in order], most, simulated)
        if any(each.holds and not each.option.is_extra for each in found):
            break
    return [_with_heavier(each, found) for each in found]


def _simulate(
    answers: list[CapacityAnswer],
    order: Iterable[tuple[int, float]],
    most: float,
    simulated: Simulated,
) -> None:
    """Replace bounds by answers of at most such a cost."""
    best, steps, holds = inf, 0, False
    for place, cost in order:
        answer = answers[place]
        if cost > min(most, OUTBID * best) or (holds and steps > MOST_STEPS):
            continue
        price = answer.option.price
        if answer.is_outbid:
            answer = simulated_answer(
                answer, simulated, min(most, OUTBID * best) / price
            )
        answers[place] = answer
        steps += answer.steps
        if answer.replicas is not None:
            holds = True
            if not answer.option.is_extra:
                best = min(best, answer.replicas * price)


def _with_heavier(
    answer: CapacityAnswer, others: Sequence[CapacityAnswer]
) -> CapacityAnswer:
    """The answer, or that of heavier formats on the same GPUs, if it takes fewer.

    A lighter format can do what a heavier does by letting its steps last as long;
    faster steps alone may fare worse (Graham, *Bounds on multiprocessing timing
    anomalies*, SIAM J. Appl. Math. 17/2, 1969).
    """
    if answer.setting is None or answer.is_outbid:
        return answer
    plan, times = answer.option.plan, answer.option.times
    as_good = (
        each
        for each in others
        if each.replicas is not None
        and each.option.plan.machine == plan.machine
        and each.option.plan.max_requests <= plan.max_requests
        and times.is_as_fast_as(each.option.times)
    )
    least = min(as_good, key=lambda each: each.replicas or inf, default=answer)
    if (least.replicas or inf) >= (answer.replicas or inf):
        return answer
    return replace(
        answer,
        binds=least.binds,
        setting=least.setting,
        replicas=least.replicas,
        held=least.held,
        fewer=least.fewer,
        fewer_replicas=least.fewer_replicas,
        missed=None,
    )


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
    settings = settings_for(
        option.times, goal.slo, limits.holding, option.stages, seen_tokens
    )
    most_per_s = option.queues * option.times.most_per_s(limits.holding)
    least = None
    if goal.rate_per_s is not None:
        least = max(1, ceil(goal.rate_per_s / most_per_s * (1 - 1e-12)))
    return replace(
        answer,
        setting=settings[0],
        settings=settings[:MOST_SETTINGS],
        most_per_s=most_per_s,
        least_replicas=least,
    )


def _alone(bound: CapacityAnswer) -> CapacityAnswer:
    return replace(bound, replicas=1) if bound.limits.holding else bound


def simulated_answer(
    bound: CapacityAnswer,
    simulated: Simulated = lambda: None,
    most: float = inf,
) -> CapacityAnswer:
    """The least replicas whose queue holds the goal, in the best of the settings.

    What takes more than ``most`` of them is as good as outbid.
    """
    if bound.goal.rate_per_s is None:
        return bound
    best, steps, tried = bound, 0, 0
    for tried, setting in enumerate(bound.settings, 1):  # noqa: B007
        search = _Search(replace(bound, setting=setting), setting, simulated)
        found = search.answer(bound.goal.rate_per_s, best, most)
        steps += search.steps
        best = found if found.holds or setting is bound.setting else best
        if best.replicas == bound.least_replicas or steps > MOST_STEPS / 20:
            break
    return replace(best, steps=steps, settings=bound.settings[:tried])


def most_rate(answer: CapacityAnswer) -> float | None:
    """Requests per second that one replica of an answer holds; None without any."""
    rate = answer.goal.rate_per_s
    if answer.setting is None or answer.replicas is None or rate is None:
        return None
    search = _Search(answer, answer.setting, lambda: None)
    low, high = rate / answer.replicas, answer.most_per_s or inf
    if answer.fewer_replicas:
        high = min(high, rate / answer.fewer_replicas)
    while high > low * (1 + CLOSE):
        middle = (low + high) / 2
        low, high = (middle, high) if search.holds(search.at(middle)) else (low, middle)
    return low


class _Search:
    """Simulates one queue of a set-up, in one setting, at several rates."""

    def __init__(
        self, answer: CapacityAnswer, setting: ServerSetting, simulated: Simulated
    ) -> None:
        self._answer, self._setting, self._simulated = answer, setting, simulated
        self.steps = 0

    def at(self, rate_per_s: float, *, alone: bool = False) -> QueueOutcome:
        """The queue of a replica that gets so many requests, or one alone."""
        option, goal = self._answer.option, self._answer.goal
        rate_per_s /= option.queues
        outcome = simulate(
            option.times,
            self._setting,
            rate_per_s,
            goal.slo,
            goal.target,
            alone=alone,
        )
        self.steps += outcome.steps
        self._simulated()
        return outcome

    def holds(self, outcome: QueueOutcome) -> bool:
        return outcome.holds(self._answer.goal.target)

    def answer(
        self, rate_per_s: float, best: CapacityAnswer, most: float
    ) -> CapacityAnswer:
        """The least replicas: tried upwards from the bound, then halved.

        With an answer in another setting, only fewer are tried.
        """
        least = self._answer.least_replicas or 1
        low, high, step = least - 1, least, max(1, int(least * FEW_MORE))
        fewer = best.fewer
        if best.replicas is not None:
            high = best.fewer_replicas or least
        held = self.at(rate_per_s / high)
        if not self.holds(held):
            if best.replicas is not None:
                return self._no_better(best, best.replicas, held)
            alone = self.at(rate_per_s, alone=True)
            if not self.holds(alone):
                return self._never(alone)
        while not self.holds(held):
            low, fewer, high = high, held, high + step
            step *= 2
            if high > most:
                return self._answer
            held = self.at(rate_per_s / high)
        return self._halved(rate_per_s, (low, fewer), (high, held))

    def _halved(
        self,
        rate_per_s: float,
        too_few: tuple[int, QueueOutcome | None],
        enough: tuple[int, QueueOutcome],
    ) -> CapacityAnswer:
        (low, fewer), (high, held) = too_few, enough
        while high - low > max(1, high // EXACT) and self.steps < MOST_STEPS:
            middle = (low + high) // 2
            tried = self.at(rate_per_s / middle)
            if self.holds(tried):
                high, held = middle, tried
            else:
                low, fewer = middle, tried
        if low < (self._answer.least_replicas or 1):
            fewer = None
        return replace(
            self._answer,
            replicas=high,
            held=held,
            fewer=fewer,
            fewer_replicas=low if fewer is not None else None,
            binds=self._binds(high, fewer),
        )

    def _no_better(
        self, best: CapacityAnswer, replicas: int, fewer: QueueOutcome
    ) -> CapacityAnswer:
        """The answer in another setting, as fewer replicas do not hold in this one."""
        if best.fewer is not None and best.fewer.good_share >= fewer.good_share:
            return best
        return replace(best, fewer=fewer, binds=self._binds(replicas, fewer))

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
    values = latencies(answer.option.times, 1, answer.option.stages)
    slo = answer.goal.slo
    missed = slo.missed(values, (), failed=False) or []
    return {
        limit.metric: values[limit.metric] / limit.below_s
        for limit in slo.limits
        if limit.metric in missed
    }
