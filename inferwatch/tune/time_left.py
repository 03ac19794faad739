"""How long a tune has gone on, and about how much longer it will."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic

from inferwatch.tune.progress import TuneStage
from inferwatch.tune.search import SearchRules
from inferwatch.tune.space import Space
from inferwatch.tune.trial import Trial, TrialOutcome, TrialRecord


@dataclass(slots=True)
class Stopwatch:
    """Knows the stage of a tune, and what stages took before."""

    spent_s: float = 0.0
    """By those who were killed before us."""
    stage: TuneStage = TuneStage.STARTING
    _began_s: float = field(default_factory=monotonic)
    _entered_s: float = field(default_factory=monotonic)
    _load_s: float | None = None
    _starts_s: list[float] = field(default_factory=list)
    _loads_s: list[float] = field(default_factory=list)
    _trials_s: list[float] = field(default_factory=list)
    _ended_s: float | None = None

    def enter(self, stage: TuneStage) -> None:
        """Another stage begins."""
        now_s = monotonic()
        if self.stage is stage and stage is not TuneStage.STARTING:
            return
        took_s = now_s - self._entered_s
        if self.stage is TuneStage.LOADING and stage is TuneStage.JUDGING:
            self._loads_s.append(took_s)
        elif self.stage is TuneStage.STARTING and stage is TuneStage.LOADING:
            self._starts_s.append(took_s)
        self.stage, self._entered_s = stage, now_s
        if stage is TuneStage.DONE:
            self._ended_s = now_s

    def expect_load(self, seconds: float | None) -> None:
        """The load that comes next takes about so long; None: as those before."""
        self._load_s = seconds

    def note_trial(self, record: TrialRecord) -> None:
        """A trial has ended."""
        if record.outcome is TrialOutcome.MEASURED:
            self._trials_s.append(record.took_s)

    @property
    def elapsed_s(self) -> float:
        """Of the whole tune."""
        until_s = monotonic() if self._ended_s is None else self._ended_s
        return self.spent_s + until_s - self._began_s

    @property
    def a_trial_s(self) -> float:
        """What one takes; 0 before that is known."""
        return fmean(self._trials_s) if self._trials_s else self._load_s or 0.0

    def stage_now(self, warmup_s: float) -> tuple[TuneStage, float, float | None]:
        """The stage, for how long it goes on, and which share of it is over."""
        seconds = monotonic() - self._entered_s
        if self.stage is TuneStage.STARTING:
            return self.stage, seconds, _share(seconds, self._starts_s)
        if self.stage is not TuneStage.LOADING:
            return self.stage, seconds, None
        expected_s = [self._load_s] if self._load_s else self._loads_s
        if seconds < warmup_s:
            return TuneStage.WARMING, seconds, seconds / warmup_s
        return self.stage, seconds, _share(seconds, expected_s)

    def left_s(
        self, space: Space, rules: SearchRules, trials: Sequence[Trial]
    ) -> float | None:
        """About so much more; None before there is anything to go by."""
        if self.stage is TuneStage.DONE:
            return 0.0
        if not self._trials_s:
            return None
        return trials_left(space, rules, trials) * self.a_trial_s


def trials_left(space: Space, rules: SearchRules, trials: Sequence[Trial]) -> int:
    """About so many more."""
    del rules
    return len(set(space.points) - {each.point for each in trials})


def _share(seconds: float, before_s: Sequence[float]) -> float | None:
    if not before_s:
        return None
    return min(seconds / fmean(before_s), 1.0)
