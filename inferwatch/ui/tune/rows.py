"""Rows of a tune: settings, their state and the reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from inferwatch.formatting import counted
from inferwatch.studies.tune.progress import TuneProgress, TuneStage
from inferwatch.studies.tune.result.tune_result import PointResult
from inferwatch.studies.tune.search.standings import (
    PointStanding,
    SearchRules,
    standings,
)
from inferwatch.studies.tune.space import Point
from inferwatch.studies.tune.trial import Trial, TrialOutcome


class RowState(StrEnum):
    """State of a setting."""

    BEST = "best"
    LIKE_BEST = "not told apart"
    OPEN = "may yet be best"
    LEFT_SO = "not followed up"
    DROPPED = "dropped"
    NOT_STARTED = "did not start"
    FAILED = "failed"
    LEFT_OUT = "left out"
    TO_COME = "to come"


GLYPHS = {
    RowState.BEST: ("★", "good"),
    RowState.LIKE_BEST: ("≈", "good"),
    RowState.OPEN: ("·", ""),
    RowState.LEFT_SO: ("·", ""),
    RowState.DROPPED: ("▼", "faint"),
    RowState.NOT_STARTED: ("✗", "bad"),
    RowState.FAILED: ("✗", "bad"),
    RowState.LEFT_OUT: ("○", "faint"),
    RowState.TO_COME: (" ", "faint"),
}
ENDED = {
    TrialOutcome.NOT_STARTED: RowState.NOT_STARTED,
    TrialOutcome.FAILED: RowState.FAILED,
    TrialOutcome.LEFT_OUT: RowState.LEFT_OUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRow:
    """A setting as the screen shows it."""

    point: Point
    state: RowState
    why: str
    """Reason of the state; empty if none is needed."""
    standing: PointStanding
    result: PointResult | None
    trials: tuple[Trial, ...]
    is_present: bool
    is_now: bool
    """It is being measured."""

    @property
    def key(self) -> str:
        return self.point.text

    @property
    def said(self) -> str:
        if self.state is RowState.DROPPED and self.why:
            return self.why
        return f"{self.state}: {self.why}" if self.why else str(self.state)


def rows_of(progress: TuneProgress) -> Sequence[TuneRow]:
    """Return a row for each setting: ranked ones, those to come, those that failed."""
    space, trials = progress.space, progress.trials
    rules = SearchRules(goal=progress.goal)
    results = {e.point: e for e in progress.result.points} if progress.result else {}
    rows = [
        _row(progress, each, results.get(each.point))
        for each in standings(space, rules, trials)
    ]
    sign = 1 if progress.goal.lower_is_better else -1

    def place(row: TuneRow) -> tuple[int, float]:
        if row.standing.score is not None:
            return 0, sign * row.standing.score
        return (1 if row.state is RowState.TO_COME else 2), 0.0

    return sorted(rows, key=place)


def _row(
    progress: TuneProgress, standing: PointStanding, result: PointResult | None
) -> TuneRow:
    point = standing.point
    trials = tuple(each for each in progress.trials if each.point == point)
    is_over = progress.stage is TuneStage.DONE
    state, why = _state(standing, trials, is_over=is_over)
    return TuneRow(
        point=point,
        state=state,
        why=why,
        standing=standing,
        result=result,
        trials=trials,
        is_present=point == progress.space.present,
        is_now=progress.now is not None and progress.now.point == point,
    )


def _state(
    standing: PointStanding, trials: Sequence[Trial], *, is_over: bool
) -> tuple[RowState, str]:
    bad = next((e.record for e in trials[::-1] if e.record.outcome in ENDED), None)
    if bad is not None and (standing.score is None or not standing.alive):
        why = bad.cause or standing.dropped or ""
        return ENDED[bad.outcome], why
    if standing.is_best:
        return RowState.BEST, "but doubtful" if standing.doubts else ""
    if not standing.alive:
        return RowState.DROPPED, standing.dropped or ""
    if standing.score is None:
        return (
            (RowState.OPEN, "no number came of it")
            if trials
            else (
                RowState.TO_COME,
                "",
            )
        )
    so_far = counted(standing.trials, "trial")
    if standing.like_best and (is_over or standing.trials > 1):
        return RowState.LIKE_BEST, so_far if standing.trials == 1 else ""
    return (RowState.LEFT_SO if is_over else RowState.OPEN), so_far
