"""How long a tune has gone on, what trials and starts take, and what is left."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic

from inferwatch.studies.tune.progress import TuneStage
from inferwatch.studies.tune.trial import Trial, TrialOutcome

UNKNOWN_S = 60.0
"""Of a trial or a start, before there is anything to go by."""


@dataclass(slots=True)
class Stopwatch:
    """Knows the stage of a tune, and what stages took before."""

    spent_s: float = 0.0
    """By those who were killed before us."""
    now_s: Callable[[], float] = monotonic
    stage: TuneStage = TuneStage.STARTING
    _began_s: float = field(init=False)
    _entered_s: float = field(init=False)
    _took_s: dict[TuneStage, list[float]] = field(default_factory=dict)
    _load_s: float | None = None
    _left_s: float | None = None
    _left_at_s: float = 0.0
    _ended_s: float | None = None

    def __post_init__(self) -> None:
        """It goes on from now."""
        self._began_s = self._entered_s = self.now_s()

    def enter(self, stage: TuneStage) -> None:
        """Another stage begins, or the same anew."""
        now_s = self.now_s()
        if self.stage is not stage:
            took = self._took_s.setdefault(self.stage, [])
            took.append(now_s - self._entered_s)
        self.stage, self._entered_s = stage, now_s
        if stage is TuneStage.DONE:
            self._ended_s = now_s

    def expect_load(self, seconds: float | None) -> None:
        """The load that comes next takes about so long; None: as those before."""
        self._load_s = seconds

    def expect(self, left_s: float | None) -> None:
        """It is about so much longer, from now."""
        self._left_s, self._left_at_s = left_s, self.now_s()

    @property
    def elapsed_s(self) -> float:
        """Of the whole tune."""
        until_s = self.now_s() if self._ended_s is None else self._ended_s
        return self.spent_s + until_s - self._began_s

    @property
    def left_s(self) -> float | None:
        """About so much more; None before there is anything to go by."""
        if self.stage is TuneStage.DONE:
            return 0.0
        if self._left_s is None:
            return None
        return max(self._left_s - (self.now_s() - self._left_at_s), 0.0)

    def stage_now(self, warmup_s: float) -> tuple[TuneStage, float, float | None]:
        """The stage, for how long it goes on, and which share of it is over."""
        seconds = self.now_s() - self._entered_s
        if self.stage is not TuneStage.LOADING:
            return self.stage, seconds, self._share(seconds, None)
        if seconds < warmup_s:
            return TuneStage.WARMING, seconds, seconds / warmup_s
        return self.stage, seconds, self._share(seconds, self._load_s)

    def _share(self, seconds: float, expected_s: float | None) -> float | None:
        before_s = self._took_s.get(self.stage)
        if expected_s is None and before_s:
            expected_s = fmean(before_s)
        return min(seconds / expected_s, 1.0) if expected_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a trial and a start of an engine took on average, in seconds."""

    trial_s: float
    start_s: float


def costs_of(trials: Sequence[Trial], expected_s: float | None) -> Costs:
    """As trials took; of a load that is expected to take so long.

    The first trial of a life had its engine started, too.
    """
    first: dict[int, float] = {}
    others: list[float] = []
    for each in trials:
        record = each.record
        if record.outcome is not TrialOutcome.MEASURED:
            continue
        if record.life in first:
            others.append(record.took_s)
        else:
            first[record.life] = record.took_s
    trial_s = fmean(others) if others else expected_s
    if trial_s is None:
        trial_s = min(first.values(), default=UNKNOWN_S)
    starts = [max(took_s - trial_s, 0.0) for took_s in first.values()]
    return Costs(trial_s=trial_s, start_s=fmean(starts) if starts else UNKNOWN_S)
