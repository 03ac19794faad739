"""Predicts a recorded load under other settings, with the error to expect.

First the load is simulated under its own setting: the difference from the measurement
is the error that is shown with every prediction. A number whose self-check differs too
much is not predicted, nor is one that depends on steps unlike any recorded ones.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted, format_share
from inferwatch.metrics.series.window import Quantiles
from inferwatch.studies.what_if.heard import CannotTellError
from inferwatch.studies.what_if.outcome import (
    LATENCIES,
    OF_PRIORITY,
    Outcome,
    measured_outcome,
    simulated_outcome,
)
from inferwatch.studies.what_if.past_requests import PastRequest
from inferwatch.studies.what_if.priorities import given_text, priorities_in
from inferwatch.studies.what_if.reach import REACH, StepReach
from inferwatch.studies.what_if.recorded import RecordedLoop, RecordedRun
from inferwatch.studies.what_if.recorded_steps import RecordedSteps
from inferwatch.studies.what_if.scheduler import (
    RequestSpec,
    Scheduler,
    SimulationResult,
    StepLoad,
)
from inferwatch.studies.what_if.setting import (
    SchedulerSetting,
    SchedulingPolicy,
    SettingChange,
)
from inferwatch.studies.what_if.step_cost import StepCost

# How much faster or slower than expected the machine was at each moment of a run.
#
# The deviations are kept in order and by time, and applied to simulated steps: a
# stretch in which the machine was slow is slow for all requests of that time, which is
# what makes a p99. Nothing is random.

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

WINDOW_NS = NS_PER_S // 4
FEWEST_BESIDE = 20
"""Fewest steps from which the deviations at a moment are taken."""
RATIO = 0.25, 2.0
"""Bounds for actual / expected duration; time beyond them counts as a machine pause."""
LONG_GAP_NS = 3_000_000
"""A gap between steps longer than expected by this much counts as a pause."""
NEAR_NS = 20_000_000
"""A pause that ended up to this long ago still delays the step that starts now."""


class StepDeviations:
    """How prefill steps, or decode steps, deviate from their expected cost, by time."""

    def __init__(
        self, steps: RecordedSteps, mask: Bools, ratios: Floats, gaps: Floats
    ) -> None:
        self.count = int(mask.sum())
        self.ratios: list[float] = ratios[mask].tolist()
        self.gaps_ns: list[float] = gaps[mask].tolist()
        first_ns = int(steps.start_ns.min())
        self.windows = (int(steps.end_ns.max()) - first_ns) // WINDOW_NS + 1
        edges = first_ns + np.arange(self.windows + 1) * WINDOW_NS
        cuts = np.searchsorted(steps.start_ns[mask], edges)
        lows, highs = cuts[:-1], cuts[1:]
        missing = np.maximum(FEWEST_BESIDE - (highs - lows), 0)
        self.lows: list[int] = np.maximum(lows - (missing + 1) // 2, 0).tolist()
        wide = np.minimum(highs + (missing + 1) // 2, self.count)
        self.highs: list[int] = wide.tolist()


@dataclass(frozen=True, slots=True)
class MachinePauses:
    """Pauses of the machine, in which it computed nothing: their times and lengths.

    They depend on time, not on steps: whatever is computed then is delayed.
    """

    moments_ns: list[int]
    lengths_ns: list[int]
    span_ns: int
    """The pauses repeat after this, as a simulation may last longer than the
    recording."""


class MachineVariation:
    """The deviations of the machine over a run: of its steps, and its pauses."""

    def __init__(self, cost: StepCost, steps: RecordedSteps) -> None:
        took, expected = steps.took_ns.astype(float), cost.expected(steps)
        ratios = np.clip(took / expected, *RATIO)
        has_gap = steps.gap_ns >= 0
        gaps = np.where(has_gap, steps.gap_ns - cost.expected_gaps(steps), 0.0)
        long = gaps > LONG_GAP_NS
        prefills, usual = steps.prefill_tokens > 0, np.where(long, 0.0, gaps)
        self.of_prefills = StepDeviations(steps, prefills, ratios, usual)
        self.of_decodes = StepDeviations(steps, ~prefills, ratios, usual)
        if not self.of_prefills.count:
            self.of_prefills = self.of_decodes
        if not self.of_decodes.count:
            self.of_decodes = self.of_prefills
        self.pauses = _machine_pauses(steps, took - ratios * expected, gaps * long)


class ReplayedStepDurations:
    """How long simulated steps take, with the deviations of a recorded run."""

    def __init__(
        self,
        reach: StepReach,
        variation: MachineVariation,
        start_ns: int,
        rate: float,
        side: int = 0,
    ) -> None:
        """``start_ns`` is the simulated time at which the deviations begin.

        ``side`` is 1 if all steps take LONGER, and those drawn on as long as they
        might; -1 for the opposite.
        """
        self._cost, self._reach, self._variation = reach.cost, reach, variation
        self._start_ns, self._rate = start_ns, rate
        self._side, self._longer = side, LONGER**side
        self._next: dict[tuple[bool, int], int] = {}
        self.beyond_ns = 0
        """Time spent in steps too large to say what they cost."""
        self.drawn_on_ns = 0
        """Time spent in steps larger than any recorded step."""
        self._past = 0
        """The number of pauses so far, including those of earlier repetitions."""

    def step_ns(self, load: StepLoad, now_ns: int) -> tuple[int, int]:
        """The duration of a step with this load, and the gap after it."""
        cost, prefills = self._cost, load.prefill_tokens > 0
        deviations = (
            self._variation.of_prefills if prefills else self._variation.of_decodes
        )
        moment_ns = int((now_ns - self._start_ns) * self._rate)
        window = moment_ns // WINDOW_NS % deviations.windows
        low, high = deviations.lows[window], deviations.highs[window]
        turn = self._next.get((prefills, window), 0)
        self._next[prefills, window] = turn + 1
        like = low + turn % (high - low)
        expected = cost.expected_ns(load)
        if is_drawn_on := self._reach.is_drawn_on(load):
            expected = self._reach.expected_ns(load, self._side)
        took = expected * deviations.ratios[like] * self._longer
        members = load.decoding + load.prefilling
        gap = max(cost.gap_ns(members) + deviations.gaps_ns[like], 0.0)
        end_ns = moment_ns + int((took + gap) * self._rate)
        took_ns = max(int(took) + self._pause_ns(moment_ns, end_ns), 1)
        if is_drawn_on:
            self.drawn_on_ns += took_ns
            self.beyond_ns += took_ns * self._reach.is_beyond(load)
        return took_ns, int(gap)

    def _pause_ns(self, start_ns: int, end_ns: int) -> int:
        """The length of pauses in this span; pauses in idle time are skipped."""
        pauses = self._variation.pauses
        count, pause_ns = len(pauses.moments_ns), 0
        while count:
            lap, place = divmod(self._past, count)
            at_ns = pauses.moments_ns[place] + lap * pauses.span_ns
            if at_ns >= end_ns:
                break
            if at_ns >= start_ns - NEAR_NS:
                pause_ns += pauses.lengths_ns[place]
            self._past += 1
        return pause_ns


def _machine_pauses(
    steps: RecordedSteps, more_ns: Floats, gaps_ns: Floats
) -> MachinePauses:
    """The extra time of steps and gaps, as pauses at the moments when they occurred."""
    first_ns, last_ns = int(steps.start_ns.min()), int(steps.end_ns.max())
    usual_ns = steps.took_ns - more_ns
    middles = (steps.start_ns - first_ns + usual_ns / 2).astype(np.int64)
    ends = steps.end_ns - first_ns
    candidates = [
        *zip(middles.tolist(), more_ns.tolist(), strict=True),
        *zip(ends.tolist(), gaps_ns.tolist(), strict=True),
    ]
    pauses = sorted((at_ns, int(for_ns)) for at_ns, for_ns in candidates if for_ns >= 1)
    return MachinePauses(
        [at_ns for at_ns, _ in pauses],
        [for_ns for _, for_ns in pauses],
        last_ns - first_ns + 1,
    )


class ReplayedArrivals:
    """The arrivals of a recorded run, for the simulated scheduler.

    Requests of an open loop arrive at their recorded times, divided by the rate. Those
    of a closed loop arrive in their order, each when a user is free. A server that is
    faster than the recorded one gets the same requests again, until the loop's end.
    """

    def __init__(self, run: RecordedRun, rate: float, *, as_was: bool = False) -> None:
        """With ``as_was``, requests have the priorities that were recorded."""
        self._run, self._as_was = run, as_was
        self.start_ns = run.requests[0].due_ns
        self._due: list[tuple[int, int, RequestSpec]] = []
        self._turn = 0
        self._loops = {loop.run_id: _Users(loop) for loop in run.loops}
        for index, past in enumerate(run.requests):
            loop = self._loops.get(past.run_id or "")
            if loop is not None:
                loop.take(self._spec(index, past), past)
                continue
            passed_ns = (past.due_ns - self.start_ns) / rate
            self._push(self.start_ns + int(passed_ns), self._spec(index, past))
        for loop in self._loops.values():
            for due_ns, spec in loop.begin():
                self._push(due_ns, spec)

    def _spec(self, index: int, past: PastRequest) -> RequestSpec:
        blocks = past.cached_tokens // self._run.setting.block_tokens
        return RequestSpec(
            index=index,
            prompt_tokens=past.prompt_tokens,
            output_tokens=past.output_tokens,
            cached_tokens=past.cached_tokens,
            shared_blocks=round(blocks * self._run.shared),
            priority=past.priority if self._as_was else past.asked_priority,
            patience_ns=past.patience_ns,
        )

    def _push(self, due_ns: int, spec: RequestSpec) -> None:
        self._turn += 1
        heappush(self._due, (due_ns, self._turn, spec))

    def due(self, now_ns: int) -> Iterable[tuple[int, RequestSpec]]:
        """Yield the requests that arrive up to now, in order, with their times."""
        due = self._due
        while due and due[0][0] <= now_ns:
            came_ns, _, spec = heappop(due)
            yield came_ns, spec

    def next_ns(self) -> int | None:
        """When the next request arrives; None if there are no more."""
        return self._due[0][0] if self._due else None

    def ended(self, spec: RequestSpec, now_ns: int) -> None:
        """Let the user of a closed loop who sent the request send the next one."""
        loop = self._loops.get(self._run.requests[spec.index].run_id or "")
        if loop is not None and (following := loop.free(now_ns)) is not None:
            self._push(*following)


class _Users:
    """The simulated users of a closed loop."""

    def __init__(self, loop: RecordedLoop) -> None:
        self._loop = loop
        self._specs: deque[RequestSpec] = deque()
        self._recorded_ns: list[int] = []
        """When each recorded request arrived."""
        self._present = 0

    def take(self, spec: RequestSpec, past: PastRequest) -> None:
        """Add a recorded request of the loop, in order."""
        self._specs.append(spec)
        self._recorded_ns.append(past.due_ns)

    def begin(self) -> Iterable[tuple[int, RequestSpec]]:
        """Yield the first requests: at the recorded times, or when users were added."""
        first = self._recorded_ns[: self._loop.users[0][1]]
        for due_ns in first:
            yield due_ns, self._next()
        self._present = len(first)
        for since_ns, count in self._loop.users[1:]:
            for _ in range(count - self._present):
                yield since_ns, self._next()
            self._present = max(self._present, count)

    def free(self, now_ns: int) -> tuple[int, RequestSpec] | None:
        """The next request of a user who was answered; None if there is none."""
        due_ns = now_ns + self._loop.pause_ns
        if due_ns >= self._loop.until_ns:
            return None
        if self._present > self._loop.users_at(due_ns):
            self._present -= 1
            return None
        return due_ns, self._next()

    def _next(self) -> RequestSpec:
        spec = self._specs.popleft()
        self._specs.append(spec)
        return spec


Progress = Callable[[int], None]
MOST_ERROR = {"p50": 0.10, "p99": 0.20}
"""With a larger self-check error, the model is wrong about that number."""
MOST_RATE_ERROR = 0.10
LONGER = 1.1
"""Machines vary, so a prediction must hold even if steps take this many times as long.
"""
FEWEST_REQUESTS = 20
MOST_BEYOND = 0.01
"""Largest share of simulated time in steps too large to say what they cost."""


def check_name(metric: str, percent: str, priority: int | None = None) -> str:
    """Return what a number is called, such as ``ttft_s p99 of priority 10``."""
    return f"{metric} {percent}" + ("" if priority is None else OF_NAME + str(priority))


OF_NAME = " of priority "


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileCheck:
    """One quantile as measured, and as simulated under the same setting."""

    metric: str
    percent: str
    measured_s: float
    simulated_s: float
    priority: int | None = None
    """Of the requests of this priority alone."""

    @property
    def name(self) -> str:
        return check_name(self.metric, self.percent, self.priority)

    @property
    def error(self) -> float:
        """The relative error of the simulation against the measurement."""
        if not self.measured_s:
            return 0.0 if not self.simulated_s else 1.0
        return self.simulated_s / self.measured_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The outcome of the load under one other setting."""

    setting: SchedulerSetting
    outcome: Outcome | None = None
    """None if it cannot be predicted."""
    cannot: str | None = None
    """The reason, in words."""
    unsure: dict[str, float] = field(default_factory=dict)
    """Numbers that change too much with the duration of steps: by ``ttft_s p99``, the
    relative change if they take LONGER, and those drawn on as long as they might.
    """
    low: Outcome | None = None
    """The outcome if steps are as short as they might be, where a number is unsure."""
    high: Outcome | None = None
    """The same if they are as long as they might be."""
    drawn_on: float | None = None
    """The assumed error of steps with twice as many requests or prompt tokens as any
    that was seen; None if hardly any such step was needed.
    """
    notes: tuple[str, ...] = ()
    waiting_at_end: int = 0
    """Requests without a token when the last one arrived; many if the queue grew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A recorded load under its own setting and under others."""

    setting: SchedulerSetting
    measured: Outcome
    simulated: Outcome
    """Under its own setting; its difference from ``measured`` is the error of the
    model."""
    step_error: float
    """The median relative error of the expected duration of steps."""
    near_s: float
    """Half a typical step: shorter queue times count as none."""
    most_members: int
    """The largest recorded batch."""
    figures: tuple[QuantileCheck, ...] = ()
    untold: dict[str, str] = field(default_factory=dict)
    """Numbers that are not predicted: by ``ttft_s p99``, the reason."""
    predictions: tuple[Prediction, ...] = ()
    closed_loop: bool = False
    """Whether users send the next request when answered, so that arrivals depend on
    answers.
    """
    given: str | None = None
    """The priorities that were given, in words."""
    notes: tuple[str, ...] = ()

    def is_near(self, figure: QuantileCheck) -> bool:
        """Whether queue times are so short that their difference is no error."""
        longest_s = max(figure.measured_s, figure.simulated_s)
        return figure.metric == "queue_s" and longest_s < self.near_s

    def figure_of(self, name: str) -> QuantileCheck | None:
        """The self-check of a number by its ``check_name``; None if not measured."""
        return next((each for each in self.figures if each.name == name), None)

    def error_of(self, metric: str, percent: str) -> float | None:
        """The self-check's error for a quantile; None if nothing was measured."""
        figure = self.figure_of(check_name(metric, percent))
        return None if figure is None else figure.error


def predict(
    run: RecordedRun,
    changes: Sequence[SettingChange],
    progress: Progress = lambda _: None,
    *,
    machine: RecordedSteps | None = None,
) -> WhatIf:
    """Predict the outcome of the run under each change.

    ``progress`` is called with the number of simulated steps, and may raise to cancel.
    Predictions are for the machine as it was in the run; with ``machine``, as it was in
    another run with these steps, as the load of its neighbours cannot be predicted.

    Raises:
        CannotTellError: there are too few requests.
    """
    counted_requests = sum(past.counts for past in run.requests)
    if counted_requests < FEWEST_REQUESTS:
        raise CannotTellError(
            f"only {counted(counted_requests, 'request')} came and ended in sight: it "
            f"takes {FEWEST_REQUESTS} to say how well they can be predicted"
        )
    cost = StepCost(run.steps)
    measured = measured_outcome(run)
    simulator = _Simulator(run, cost, progress)
    variation = MachineVariation(cost, run.steps)
    result, _ = simulator.simulate(run.setting, variation, as_was=True)
    as_was = simulated_outcome(run, result, run.setting.kv_blocks)
    figures = tuple(_figures(measured, as_was))
    if machine is not None:
        variation = MachineVariation(cost, machine)
    answer = WhatIf(
        setting=run.setting,
        measured=measured,
        simulated=as_was,
        step_error=cost.error,
        near_s=cost.typical_ns / 2e9,
        most_members=cost.most_members,
        figures=figures,
        predictions=tuple(_predict(simulator, change, variation) for change in changes),
        closed_loop=bool(run.loops),
        given=given_text(run),
        notes=run.notes,
    )
    return replace(answer, untold=_unpredicted(figures, answer.is_near))


class _Simulator:
    """Simulates the run under one setting after another."""

    def __init__(self, run: RecordedRun, cost: StepCost, progress: Progress) -> None:
        self.run, self.cost, self._progress = run, cost, progress
        self.reach = StepReach.of(cost, run.steps)
        self._steps = 0

    def simulate(
        self,
        setting: SchedulerSetting,
        variation: MachineVariation,
        side: int = 0,
        *,
        as_was: bool = False,
    ) -> tuple[SimulationResult, ReplayedStepDurations]:
        """The result, and the durations of steps it is of."""
        arrivals = ReplayedArrivals(self.run, setting.rate, as_was=as_was)
        start_ns = int(self.run.steps.start_ns.min())
        costs = ReplayedStepDurations(
            self.reach, variation, start_ns, setting.rate, side
        )
        scheduler = Scheduler(setting, costs, arrivals)
        before = self._steps
        for steps in scheduler.go_on(arrivals.start_ns):
            self._progress(before + steps)
        self._steps += scheduler.result.steps
        return scheduler.result, costs


def _figures(measured: Outcome, as_was: Outcome) -> list[QuantileCheck]:
    checks = [
        _check(metric, percent, measured.latencies, as_was.latencies)
        for metric in LATENCIES
        for percent in MOST_ERROR
    ]
    for one in measured.by_priority:
        if (other := as_was.of_priority(one.priority)) is not None:
            checks += [
                _check(metric, percent, one.latencies, other.latencies, one.priority)
                for metric in OF_PRIORITY
                for percent in MOST_ERROR
            ]
    return [each for each in checks if each is not None]


def _check(
    metric: str,
    percent: str,
    measured: Mapping[str, Quantiles],
    as_was: Mapping[str, Quantiles],
    priority: int | None = None,
) -> QuantileCheck | None:
    before, after = _at(measured[metric], percent), _at(as_was[metric], percent)
    if before is None or after is None:
        return None
    return QuantileCheck(
        metric=metric,
        percent=percent,
        measured_s=before,
        simulated_s=after,
        priority=priority,
    )


def _at(quantiles: Quantiles, percent: str) -> float | None:
    value: float | None = getattr(quantiles, percent)
    return value


def _unpredicted(
    figures: Sequence[QuantileCheck], near: Callable[[QuantileCheck], bool]
) -> dict[str, str]:
    """Numbers whose self-check error is too large, with the reason."""
    return {
        each.name: (
            "simulated as it was, it misses what was measured by "
            f"{format_share(abs(each.error)).strip()}"
        )
        for each in figures
        if abs(each.error) > MOST_ERROR[each.percent] and not near(each)
    }


def _predict(
    simulator: _Simulator, change: SettingChange, variation: MachineVariation
) -> Prediction:
    run, cost = simulator.run, simulator.cost
    setting = change.of(run.setting)
    cannot = _refused(run, change)
    if cannot is not None:
        return Prediction(setting=setting, cannot=cannot)
    result, costs = simulator.simulate(setting, variation)
    cannot = _why_beyond(result, costs.beyond_ns, cost)
    if cannot is not None:
        return Prediction(setting=setting, cannot=cannot)
    if result.too_big:
        longest = max(spec.prompt_tokens for spec in result.too_big)
        return Prediction(
            setting=setting,
            cannot=f"a prompt of {longest:,} tokens does not fit into "
            f"{counted(setting.kv_blocks, 'block')} of {setting.block_tokens} tokens",
        )
    outcome = simulated_outcome(run, result, setting.kv_blocks)
    drawn_on = costs.drawn_on_ns > MOST_BEYOND * result.busy_ns

    def at_the_end(side: int) -> Outcome:
        other, _ = simulator.simulate(setting, variation, side)
        return simulated_outcome(run, other, setting.kv_blocks)

    high, low = at_the_end(1), None
    unsure = _sensitive(outcome, high, cost)
    if drawn_on or unsure:
        low = at_the_end(-1)
    if drawn_on:
        unsure = {each.name: each.error for each in _figures(outcome, high)}
    return Prediction(
        setting=setting,
        outcome=outcome,
        unsure=unsure,
        low=low,
        high=high if low is not None else None,
        drawn_on=_draw_error(simulator.reach, result) if drawn_on else None,
        notes=tuple(_doubts(run, setting)),
        waiting_at_end=_waiting_at_end(result),
    )


def _draw_error(reach: StepReach, result: SimulationResult) -> float:
    """The error of the steps that were drawn on, in the direction that was needed."""
    more_requests = result.most_members > reach.cost.most_members
    return reach.batch_error if more_requests else reach.prefill_error


def _sensitive(outcome: Outcome, slower: Outcome, cost: StepCost) -> dict[str, float]:
    """Results that would change by much more if steps were slightly slower.

    Near an engine's capacity, queues grow with step times.
    """
    changes = {}
    for each in _figures(outcome, slower):
        longest_ns = max(each.measured_s, each.simulated_s) * NS_PER_S
        queued = each.metric != "queue_s" or longest_ns >= cost.typical_ns / 2
        if queued and (1 + each.error) / LONGER - 1 > MOST_ERROR[each.percent]:
            changes[each.name] = each.error
    return changes


def _refused(run: RecordedRun, change: SettingChange) -> str | None:
    if change.rate not in {None, 1.0} and run.loops:
        users = run.loops[0].users[0][1]
        return (
            f"a closed loop of {counted(users, 'user')} asks when it is answered: it "
            "has no rate to change"
        )
    if (
        change.policy is SchedulingPolicy.PRIORITY
        and len(priorities_in(run.requests)) < 2
    ):
        return (
            "all requests have the same priority, so it would be first come, first "
            "served: say who has which with --priority 'chat=0 batch=10', by class, "
            "header or adapter"
        )
    if change.kv_blocks is not None and run.setting.kv_blocks is None:
        return "the engine did not tell how many KV blocks it has"
    return None


def _why_beyond(result: SimulationResult, beyond_ns: int, cost: StepCost) -> str | None:
    """Why the result is no prediction: it has steps larger than any recorded step.

    None if these are rare.
    """
    if beyond_ns <= MOST_BEYOND * result.busy_ns:
        return None
    seqs, tokens = int(cost.most_members * REACH), int(cost.most_prefill_tokens * REACH)
    if result.most_members > seqs:
        half = math.ceil(result.most_members / REACH)
        return (
            f"no step with more than {counted(cost.most_members, 'request')} was seen, "
            f"and it would take steps with {result.most_members:,}; up to {seqs:,} can "
            f"be extrapolated: record this load under max_num_seqs {half:,} or more"
        )
    half = math.ceil(result.most_prefill_tokens / REACH)
    return (
        f"no step with more than {cost.most_prefill_tokens:,} prompt tokens was seen, "
        f"and it would take steps with {result.most_prefill_tokens:,}; up to "
        f"{tokens:,} can be extrapolated: record this load under "
        f"max_num_batched_tokens {half:,} or more"
    )


def _doubts(run: RecordedRun, setting: SchedulerSetting) -> list[str]:
    """Reasons why the prediction is less sure than its error says."""
    doubts = []
    blocks, before = setting.kv_blocks, run.setting.kv_blocks
    fewer = blocks is not None and before is not None and blocks < before
    hits = sum(past.cached_tokens for past in run.requests)
    if fewer and hits:
        doubts.append(
            "prefix-cache hits are those of the recording; a smaller cache may have "
            "fewer"
        )
    longest = run.engine.max_model_len
    if (
        fewer
        and longest
        and blocks is not None
        and blocks * setting.block_tokens < longest
    ):
        doubts.append(
            f"vLLM starts with so few blocks only if max_model_len ({longest:,}) is "
            "lowered, too"
        )
    return doubts


def _waiting_at_end(result: SimulationResult) -> int:
    """The number of requests without a token when the last request arrived."""
    last_ns = max((request.due_ns for request in result.ended), default=0)
    return sum(request.started_ns > last_ns for request in result.ended)
