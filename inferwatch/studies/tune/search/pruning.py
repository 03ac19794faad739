"""Skips points that cannot win, as the what-if model predicts from a session.

A point is skipped only where the model can make a prediction, and where even with three
times the model's error the point stays behind the best that was measured. The model
provides a ratio: of the point to the session it was given, both simulated. That ratio
times the trial's score is the prediction, so it does not matter that the model sees
requests as the engine does, while the score is the client's.

The present setting, the neighbours of the best, and points that differ in flags unknown
to the model are never skipped. A point that becomes a neighbour of the best later is
measured after all (see :mod:`inferwatch.studies.tune.search.standings`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferwatch.formatting import format_durations, format_figure
from inferwatch.loadgen.plan.plan import LoadPlan, objectives
from inferwatch.metrics.requests.slo import Limit, Slo
from inferwatch.record.connections import reading
from inferwatch.record.lookup.recorded_readings import chosen_readings
from inferwatch.record.sessions.sessions import find
from inferwatch.studies.tune.plan import Goal
from inferwatch.studies.tune.search.standings import (
    PointStanding,
    SearchRules,
    neighbours,
    standings,
)
from inferwatch.studies.tune.space import Point, Space
from inferwatch.studies.tune.trial import Trial, TrialOutcome
from inferwatch.studies.what_if.heard import KINDS, CannotTellError
from inferwatch.studies.what_if.outcome import Outcome
from inferwatch.studies.what_if.prediction import (
    MOST_RATE_ERROR,
    Prediction,
    WhatIf,
    predict,
)
from inferwatch.studies.what_if.recorded import RecordedRun, recorded_run
from inferwatch.studies.what_if.setting import SchedulerSetting, SettingChange

SEQS, TOKENS = "max-num-seqs", "max-num-batched-tokens"
BLOCKS = "num-gpu-blocks-override"
LEFT_OUT = TrialOutcome.LEFT_OUT
PREDICTED = (SEQS, TOKENS, BLOCKS)
"""Flags whose effect the model can predict."""
JUDGED = {Goal.TOKENS, Goal.LATENCY, Goal.GOODPUT}
"""Goals whose score the model can predict."""
TIMES_ERROR = 3
LEAST_ERROR = 0.05
"""Smallest assumed error, as a better self-check says nothing about other settings."""
NULL_BLOCK = 1
"""vLLM reserves this many cache blocks for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A point that need not be measured."""

    point: Point
    cause: str
    """For example ``predicted 41 tokens/s ± 8, the best measured 97``."""


def left_out_by(
    database: Path,
    space: Space,
    rules: SearchRules,
    trials: Sequence[Trial],
    plan: LoadPlan,
) -> tuple[LeftOut, ...]:
    """The points to skip, as predicted from the latest trial's session.

    Only the present setting's first trial and the first trial of each engine with its
    start values are used: they took the largest steps, and the model knows nothing
    about larger ones.

    Raises:
        StorageError: the file cannot be read.
        UsageError: the session no longer exists.
    """
    base = next((e for e in trials[::-1] if e.record.outcome is not LEFT_OUT), None)
    if base is None or base.numbers is None or base.record.repeat:
        return ()
    if base.record.live and base.point != space.present:
        return ()
    run = run_of_trial(database, base)
    slos = objectives(plan)
    slo = None if slos.classes else slos.slo
    return () if run is None else cannot_win(space, rules, trials, base, run, slo)


def run_of_trial(database: Path, trial: Trial) -> RecordedRun | None:
    """The run recorded in a trial's session; None if the model cannot use it.

    Raises:
        StorageError: the file cannot be read.
        UsageError: the session no longer exists.
    """
    if trial.record.session is None:
        return None
    row = find(database, trial.record.session)
    with reading(database) as connection:
        connection.execute("BEGIN")
        try:
            return recorded_run(chosen_readings(connection, row.session, KINDS))
        except CannotTellError:
            return None


def cannot_win(
    space: Space,
    rules: SearchRules,
    trials: Sequence[Trial],
    base: Trial,
    run: RecordedRun,
    slo: Slo | None = None,
) -> tuple[LeftOut, ...]:
    """The points to skip, as predicted from the session of ``base``."""
    ranking = standings(space, rules, trials)
    best = next((each for each in ranking if each.is_best), None)
    sure = base.numbers is not None and not base.numbers.doubts
    if best is None or not sure or not _is_of(run.setting, base.point):
        return ()
    if rules.goal not in JUDGED or (rules.goal is Goal.GOODPUT and slo is None):
        return ()
    kept = {space.present, best.point, *neighbours(space, best.point)}
    tried = {each.point for each in trials}
    changes = {
        each.point: change
        for each in ranking
        if each.point not in kept | tried
        if (change := _change(base.point, each.point)) is not None
    }
    if not changes:
        return ()
    try:
        predictions = predict(run, list(changes.values()))
    except CannotTellError:
        return ()
    judge = _Judge(rules.goal, best, base, predictions, slo)
    return tuple(
        LeftOut(point=point, cause=cause)
        for point, predicted in zip(changes, predictions.predictions, strict=True)
        if (cause := judge.why_not(predicted)) is not None
    )


def _is_of(setting: SchedulerSetting, point: Point) -> bool:
    """Whether the recorded limits are those of the point, as far as they are known."""
    known = {
        SEQS: setting.max_num_seqs,
        TOKENS: setting.max_num_batched_tokens,
    }
    return all(point.value(flag) in {None, str(is_)} for flag, is_ in known.items())


def _change(base: Point, point: Point) -> SettingChange | None:
    """The change to predict; None if the model does not know one of the flags."""
    old, new = dict(base.flags), dict(point.flags)
    differs = {flag: v for flag, v in new.items() if old.get(flag) != v}
    numbers = {flag: int(v) for flag, v in differs.items() if v.isdecimal()}
    if not differs or set(differs) - set(PREDICTED) or len(numbers) < len(differs):
        return None
    blocks = numbers.get(BLOCKS)
    return SettingChange(
        max_num_seqs=numbers.get(SEQS),
        max_num_batched_tokens=numbers.get(TOKENS),
        kv_blocks=None if blocks is None else blocks - NULL_BLOCK,
    )


class _Judge:
    """Decides whether a predicted point could still win."""

    def __init__(
        self,
        goal: Goal,
        best: PointStanding,
        base: Trial,
        what_if: WhatIf,
        slo: Slo | None,
    ) -> None:
        self._goal, self._best, self._base = goal, best, base
        self._what_if, self._slo = what_if, slo

    def why_not(self, predicted: Prediction) -> str | None:
        """Why the point cannot win; None if it may or if that is unknown."""
        outcome, score = predicted.outcome, self._base.score(self._goal)
        if outcome is None or predicted.notes or not score:
            return None
        if predicted.drawn_on is not None:  # not even with the shortest of such steps
            outcome = predicted.low or outcome
        if self._goal is Goal.TOKENS:
            return self._of_tokens(outcome, score)
        if self._goal is Goal.LATENCY:
            return self._of_latency(outcome, score, predicted)
        if self._goal is Goal.GOODPUT and self._slo is not None:
            half = (self._of_goodput(e, outcome, predicted) for e in self._slo.limits)
            return next((cause for cause in half if cause is not None), None)
        return None

    def _of_tokens(self, outcome: Outcome, score: float) -> str | None:
        old = self._what_if.simulated.output_tokens_per_s
        ratio, error = _ratio(outcome.output_tokens_per_s, old), self._rate_error()
        if ratio is None or error is None:
            return None
        at = score * ratio
        if at * (1 + error) >= self._least_of_best:
            return None
        return (
            f"predicted {_figure(at)} tokens/s ± {_figure(at * error)}, "
            f"the best measured {_figure(self._best.score)}"
        )

    def _of_latency(
        self, outcome: Outcome, score: float, predicted: Prediction
    ) -> str | None:
        simulated_s = self._what_if.simulated.latencies["ttft_s"].p99
        ratio = _ratio(outcome.latencies["ttft_s"].p99, simulated_s)
        error = self._error("ttft_s", "p99", predicted)
        if ratio is None or error is None:
            return None
        at = score * ratio
        if at * (1 - error) <= self._most_of_best:
            return None
        texts = format_durations([at, at * error, self._best.score])
        p99, off, best = (each.strip() for each in texts)
        return f"predicted TTFT p99 {p99} ± {off}, the best measured {best}"

    def _of_goodput(
        self, limit: Limit, outcome: Outcome, predicted: Prediction
    ) -> str | None:
        """Why the point cannot win by goodput; None if it may, or if that is unknown.

        If a predicted median misses its limit, at most half of the requests are good.
        A client waits at least as long as the engine, so this holds for it, too.
        """
        if limit.metric == "itl_s":
            return None  # The limit is for a request's longest gap; these are all gaps.
        half_s = outcome.latencies[limit.metric].p50
        error = self._error(limit.metric, "p50", predicted)
        most = self._most_per_s(outcome)
        if half_s is None or error is None or most is None:
            return None
        if limit.holds(half_s * (1 - error)) or most / 2 >= self._least_of_best:
            return None
        p50, off = (e.strip() for e in format_durations([half_s, half_s * error]))
        name = limit.metric.removesuffix("_s").upper()
        return (
            f"predicted {name} p50 {p50} ± {off}: at most {_figure(most / 2)} "
            f"good requests/s, the best measured {_figure(self._best.score)}"
        )

    def _most_per_s(self, outcome: Outcome) -> float | None:
        """The upper bound of requests per second, good or not."""
        numbers, error = self._base.numbers, self._rate_error()
        ratio = _ratio(outcome.requests_per_s, self._what_if.simulated.requests_per_s)
        if numbers is None or not numbers.requests_per_s or error is None:
            return None
        return numbers.requests_per_s * max(ratio or 1.0, 1.0) * (1 + error)

    @property
    def _least_of_best(self) -> float:
        """The lower end of the best score's interval, or the score itself."""
        score = self._best.score or 0.0
        return min(score, self._best.span[0]) if self._best.span else score

    @property
    def _most_of_best(self) -> float:
        score = self._best.score or math.inf
        return max(score, self._best.span[1]) if self._best.span else score

    def _rate_error(self) -> float | None:
        """The relative error to allow a predicted rate: three times the self-check's.

        None if the self-check is so far off that the model must be wrong.
        """
        measured = self._what_if.measured.output_tokens_per_s
        ratio = _ratio(self._what_if.simulated.output_tokens_per_s, measured)
        if ratio is None or abs(ratio - 1) > MOST_RATE_ERROR:
            return None
        return TIMES_ERROR * max(abs(ratio - 1), self._what_if.step_error, LEAST_ERROR)

    def _error(self, metric: str, percent: str, predicted: Prediction) -> float | None:
        """Relative error of a latency, including its sensitivity to step times."""
        name = f"{metric} {percent}"
        missed = self._what_if.error_of(metric, percent)
        if missed is None or name in self._what_if.untold:
            return None
        hangs = abs(predicted.unsure.get(name, 0.0))
        error = TIMES_ERROR * max(abs(missed), hangs, LEAST_ERROR)
        return error if error < 1 else None


def _ratio(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def _figure(value: float | None) -> str:
    return format_figure(value).strip()
