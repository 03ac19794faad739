"""Predicts a recorded load under other settings, and tells how far to trust that.

First the load is simulated under its own setting: what that differs from the
measurement is the error that every prediction is shown with. A number whose self-check
differs too much is not predicted, nor is one that rests on steps unlike any that were
seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted, format_share
from inferwatch.metrics.series.window import Quantiles
from inferwatch.studies.what_if.arrivals import ReplayedArrivals
from inferwatch.studies.what_if.heard import CannotTellError
from inferwatch.studies.what_if.moods import MachineVariation, ReplayedStepDurations
from inferwatch.studies.what_if.outcome import (
    LATENCIES,
    Outcome,
    measured_outcome,
    simulated_outcome,
)
from inferwatch.studies.what_if.recorded import RecordedRun
from inferwatch.studies.what_if.recorded_steps import RecordedSteps
from inferwatch.studies.what_if.scheduler import Scheduler, SimulationResult
from inferwatch.studies.what_if.setting import SchedulerSetting, SettingChange
from inferwatch.studies.what_if.step_cost import StepCost

Progress = Callable[[int], None]
MOST_ERROR = {"p50": 0.10, "p99": 0.20}
"""A self-check that differs by more shows that the model is wrong about that number."""
MOST_RATE_ERROR = 0.10
LONGER = 1.1
"""Machines vary: a prediction must hold if steps take this many times as long."""
FEWEST_REQUESTS = 20
MOST_BEYOND = 0.01
"""The share of simulated time that may be in steps larger than any that was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileCheck:
    """One quantile as measured, and as simulated under the same setting."""

    metric: str
    percent: str
    measured_s: float
    simulated_s: float

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
    """Why not, fit to show."""
    unsure: dict[str, float] = field(default_factory=dict)
    """By ``ttft_s p99``: the relative change if steps take LONGER, where it is too
    large."""
    notes: tuple[str, ...] = ()
    waiting_at_end: int = 0
    """How many requests had no token when the last one arrived: more, if the queue
    grew."""


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
    """The largest batch that was seen."""
    figures: tuple[QuantileCheck, ...] = ()
    untold: dict[str, str] = field(default_factory=dict)
    """By ``ttft_s p99``: why that number is not predicted."""
    predictions: tuple[Prediction, ...] = ()
    closed_loop: bool = False
    """Whether arrivals depend on answers, as users send the next request when
    answered."""
    notes: tuple[str, ...] = ()

    def is_near(self, figure: QuantileCheck) -> bool:
        """Whether both queue times are shorter than ``near_s``, which is no error."""
        longest_s = max(figure.measured_s, figure.simulated_s)
        return figure.metric == "queue_s" and longest_s < self.near_s

    def error_of(self, metric: str, percent: str) -> float | None:
        """Return the error of the self-check; None if nothing was measured."""
        for figure in self.figures:
            if (figure.metric, figure.percent) == (metric, percent):
                return figure.error
        return None


def predict(
    run: RecordedRun,
    changes: Sequence[SettingChange],
    progress: Progress = lambda _: None,
    *,
    machine: RecordedSteps | None = None,
) -> WhatIf:
    """Predict the outcome of the run under each change.

    ``progress`` is called with the number of simulated steps, and may raise to stop.
    Predictions are for the machine as it was in the run; with ``machine``, as it was in
    another run with these steps: the load of its neighbours cannot be predicted.

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
    was = measured_outcome(run)
    simulator = _Simulator(run, cost, progress)
    variation = MachineVariation(cost, run.steps)
    result, _ = simulator.simulate(run.setting, variation)
    as_was = simulated_outcome(run, result, run.setting.kv_blocks)
    figures = tuple(_figures(was, as_was))
    if machine is not None:
        variation = MachineVariation(cost, machine)
    answer = WhatIf(
        setting=run.setting,
        measured=was,
        simulated=as_was,
        step_error=cost.error,
        near_s=cost.typical_ns / 2e9,
        most_members=cost.most_members,
        figures=figures,
        predictions=tuple(_predict(simulator, change, variation) for change in changes),
        closed_loop=bool(run.loops),
        notes=run.notes,
    )
    return replace(answer, untold=_untold(figures, answer.is_near))


class _Simulator:
    """Simulates the run under one setting after another."""

    def __init__(self, run: RecordedRun, cost: StepCost, progress: Progress) -> None:
        self.run, self.cost, self._progress = run, cost, progress
        self._steps = 0

    def simulate(
        self,
        setting: SchedulerSetting,
        variation: MachineVariation,
        longer: float = 1.0,
    ) -> tuple[SimulationResult, int]:
        """Return the result, and the time in steps larger than any that was seen."""
        arrivals = ReplayedArrivals(self.run, setting.rate)
        start_ns = int(self.run.steps.start_ns.min())
        costs = ReplayedStepDurations(self.cost, variation, start_ns, setting.rate)
        costs.longer = longer
        scheduler = Scheduler(setting, costs, arrivals)
        before = self._steps
        for steps in scheduler.go_on(arrivals.start_ns):
            self._progress(before + steps)
        self._steps += scheduler.result.steps
        return scheduler.result, costs.beyond_ns


def _figures(was: Outcome, as_was: Outcome) -> list[QuantileCheck]:
    checks = []
    for metric in LATENCIES:
        for percent in MOST_ERROR:
            before = _at(was.latencies[metric], percent)
            after = _at(as_was.latencies[metric], percent)
            if before is not None and after is not None:
                checks.append(
                    QuantileCheck(
                        metric=metric,
                        percent=percent,
                        measured_s=before,
                        simulated_s=after,
                    )
                )
    return checks


def _at(quantiles: Quantiles, percent: str) -> float | None:
    value: float | None = getattr(quantiles, percent)
    return value


def _untold(
    figures: Sequence[QuantileCheck], near: Callable[[QuantileCheck], bool]
) -> dict[str, str]:
    """Return the numbers for which the self-check differs too much, with the reason."""
    return {
        f"{each.metric} {each.percent}": (
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
    result, beyond_ns = simulator.simulate(setting, variation)
    cannot = _beyond(result, beyond_ns, cost)
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
    slower_result, _ = simulator.simulate(setting, variation, LONGER)
    slower = simulated_outcome(run, slower_result, setting.kv_blocks)
    return Prediction(
        setting=setting,
        outcome=outcome,
        unsure=_unsure(outcome, slower, cost),
        notes=tuple(_doubts(run, setting)),
        waiting_at_end=_waiting_at_end(result),
    )


def _unsure(outcome: Outcome, slower: Outcome, cost: StepCost) -> dict[str, float]:
    """Return the numbers that slightly slower steps would change by much more.

    Near an engine's capacity, queues grow from it.
    """
    changes = {}
    for each in _figures(outcome, slower):
        longest_ns = max(each.measured_s, each.simulated_s) * NS_PER_S
        queued = each.metric != "queue_s" or longest_ns >= cost.typical_ns / 2
        if queued and (1 + each.error) / LONGER - 1 > MOST_ERROR[each.percent]:
            changes[f"{each.metric} {each.percent}"] = each.error
    return changes


def _refused(run: RecordedRun, change: SettingChange) -> str | None:
    if change.rate not in {None, 1.0} and run.loops:
        users = run.loops[0].users[0][1]
        return (
            f"a closed loop of {counted(users, 'user')} asks when it is answered: it "
            "has no rate to change"
        )
    if change.kv_blocks is not None and run.setting.kv_blocks is None:
        return "the engine did not tell how many KV blocks it has"
    return None


def _beyond(result: SimulationResult, beyond_ns: int, cost: StepCost) -> str | None:
    """Return why not, if the result rests on steps larger than any seen."""
    if beyond_ns <= MOST_BEYOND * result.busy_ns:
        return None
    if result.most_members > cost.most_members:
        return (
            f"no step with more than {counted(cost.most_members, 'request')} was seen, "
            f"and it would take steps with {result.most_members:,}"
        )
    return (
        f"no step with more than {cost.most_prefill_tokens:,} prompt tokens was seen, "
        f"and it would take steps with {result.most_prefill_tokens:,}"
    )


def _doubts(run: RecordedRun, setting: SchedulerSetting) -> list[str]:
    """Return what makes this prediction less sure than its error says."""
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
    """Return how many requests had no token when the last one arrived."""
    last_ns = max((request.due_ns for request in result.ended), default=0)
    return sum(request.started_ns > last_ns for request in result.ended)
