"""Runs a tune: one trial after the other, each stored as soon as it has ended.

    run = TuneRun(plan, database)              # or: TuneRun.resumed(database, tune_id)
    result = await run.run(stop)               # in a task, beside a screen or a log
    run.progress                               # an immutable snapshot; cheap

What is measured next depends only on earlier trials, so a tune that was killed
continues after its last complete trial.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Self, TypeVar

import msgspec

from inferwatch.errors import StorageError, UsageError
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.studies.answers.asking import BaselineAnswers
from inferwatch.studies.tune.answers import ASKED_TIMES
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.progress import TuneProgress, TuneStage
from inferwatch.studies.tune.reading.numbers import numbers_of
from inferwatch.studies.tune.result.tune_result import TuneResult, result_of
from inferwatch.studies.tune.running.engines import (
    AttachedEngine,
    EngineNews,
    OwnEngines,
    PointRefusedError,
    Reached,
    TunedEngines,
)
from inferwatch.studies.tune.running.journal import (
    TuneJournal,
    refuse_another,
    stored_tune,
)
from inferwatch.studies.tune.running.trial_load import (
    MeasureTrial,
    TrialFailedError,
    TrialTask,
    expected_s,
    measured,
)
from inferwatch.studies.tune.search.pruning import LeftOut, left_out_by
from inferwatch.studies.tune.search.race import (
    NextTrial,
    life_for,
    next_trial,
    trials_left,
)
from inferwatch.studies.tune.search.standings import SearchRules
from inferwatch.studies.tune.space import Point, Space, Variable, space_of
from inferwatch.studies.tune.trial import Trial, TrialNumbers, TrialOutcome, TrialRecord

UNKNOWN_S = 60.0
"""Assumed length of a trial or a start before anything was measured."""


@dataclass(slots=True)
class Stopwatch:
    """The current stage of a tune, and how long earlier stages took."""

    spent_s: float = 0.0
    """Time spent before the tune was resumed."""
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
        self._began_s = self._entered_s = self.now_s()

    def enter(self, stage: TuneStage) -> None:
        now_s = self.now_s()
        if self.stage is not stage:
            took = self._took_s.setdefault(self.stage, [])
            took.append(now_s - self._entered_s)
        self.stage, self._entered_s = stage, now_s
        if stage is TuneStage.DONE:
            self._ended_s = now_s

    def expect_load(self, seconds: float | None) -> None:
        """Set how long the next load will run; None if as long as those before it."""
        self._load_s = seconds

    def expect(self, left_s: float | None) -> None:
        """Set the estimated time left, counted from now."""
        self._left_s, self._left_at_s = left_s, self.now_s()

    @property
    def elapsed_s(self) -> float:
        until_s = self.now_s() if self._ended_s is None else self._ended_s
        return self.spent_s + until_s - self._began_s

    @property
    def left_s(self) -> float | None:
        """Estimated time left; None before anything was measured."""
        if self.stage is TuneStage.DONE:
            return 0.0
        if self._left_s is None:
            return None
        return max(self._left_s - (self.now_s() - self._left_at_s), 0.0)

    def stage_now(self, warmup_s: float) -> tuple[TuneStage, float, float | None]:
        """The stage, its duration so far, and the share of it that is completed."""
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
    """Mean time of a trial and of an engine start, in seconds."""

    trial_s: float
    start_s: float


def costs_of(trials: Sequence[Trial], expected_s: float | None) -> Costs:
    """Mean times of trials so far, or ``expected_s`` before there are any.

    The first trial with each engine includes the engine's start.
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


MOST_SAID = 200
TRIES = 2
"""Attempts at a trial if its engine dies or nothing is answered."""

ReadNumbers = Callable[[Path, str, TunePlan], TrialNumbers]
RuleOut = Callable[
    [Path, Space, SearchRules, Sequence[Trial], LoadPlan], Sequence[LeftOut]
]
Made = TypeVar("Made")


class _StoppedError(Exception):
    """The tune was stopped on request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneParts:
    """The replaceable parts of a tune; tests provide their own."""

    engines: Callable[[TunePlan, EngineNews], TunedEngines] | None = None
    measure: MeasureTrial = measured
    numbers: ReadNumbers = numbers_of
    left_out: RuleOut = left_out_by


@dataclass(slots=True)
class _State:
    """The state of a running tune."""

    space: Space
    trials: list[Trial] = field(default_factory=list)
    now: NextTrial | None = None
    rate_per_s: float | None = None
    result: TuneResult | None = None
    said: list[str] = field(default_factory=list)


class TuneRun:
    """One tune, from its first or next trial to its result."""

    def __init__(
        self,
        plan: TunePlan,
        database: Path,
        *,
        headers: Mapping[str, str] | None = None,
        allow_load: bool = False,
        earlier: Sequence[TrialRecord] = (),
        parts: TuneParts | None = None,
    ) -> None:
        """Prepare a tune.

        ``headers`` may contain secrets and are sent only to a running engine.
        ``allow_load`` also tunes an engine that serves other traffic. ``earlier`` are
        previous trials of this tune.

        Raises:
            UsageError: the plan has too many settings.
        """
        variables = tuple(Variable(flag=f, values=v) for f, v in plan.vary)
        self._plan = plan
        self._database = database
        self._parts = parts or TuneParts()
        self._journal = TuneJournal(database, plan.tune_id)
        self._state = _State(space_of(variables, Point(flags=plan.present)))
        self._earlier = tuple(earlier)
        self._never_start: set[Point] = set()
        self._baseline: BaselineAnswers | None = None
        self._clock = Stopwatch(spent_s=sum(each.took_s for each in earlier))
        news = EngineNews(stage=self._enter, say=self.say)
        if self._parts.engines is not None:
            self._engines = self._parts.engines(plan, news)
        elif plan.url is not None:
            self._engines = AttachedEngine(
                plan, news, headers or {}, allow_load=allow_load
            )
        else:
            self._engines = OwnEngines(
                plan, news, lives=max((e.life for e in earlier), default=0)
            )
        self.outcome = "interrupted"
        """How it ended: ``done``, ``out of time``, ``interrupted`` or ``failed``."""

    @classmethod
    def resumed(
        cls,
        database: Path,
        tune_id: str,
        *,
        asked: TunePlan | None = None,
        headers: Mapping[str, str] | None = None,
        allow_load: bool = False,
        parts: TuneParts | None = None,
    ) -> Self:
        """Resume a tune whose plan is stored in the file.

        ``asked`` is what the flags say now, if anything: only budget and name may
        differ.

        Raises:
            UsageError: there is no such tune, or its plan is different.
            StorageError: the file cannot be read.
        """
        stored = stored_tune(database, tune_id)
        plan = stored.plan
        if asked is not None:
            refuse_another(plan, asked)
            plan = msgspec.structs.replace(
                plan,
                budget_s=asked.budget_s or plan.budget_s,
                name=asked.name or plan.name,
                load=msgspec.structs.replace(plan.load, headers=asked.load.headers),
            )
        return cls(
            plan,
            database,
            headers=headers,
            allow_load=allow_load,
            earlier=stored.records,
            parts=parts,
        )

    @property
    def plan(self) -> TunePlan:
        """The plan; its present setting is complete once the engine has reported it."""
        return self._plan

    @property
    def progress(self) -> TuneProgress:
        state, clock = self._state, self._clock
        stage, stage_s, share = clock.stage_now(self._plan.load.warmup_s)
        return TuneProgress(
            tune_id=self._plan.tune_id,
            model=self._plan.model,
            goal=self._plan.goal,
            slo=self._plan.load.slo,
            space=state.space,
            trials=tuple(state.trials),
            now=state.now,
            rate_per_s=state.rate_per_s,
            stage=stage,
            stage_s=stage_s,
            stage_share=share,
            elapsed_s=clock.elapsed_s,
            left_s=clock.left_s,
            budget_s=self._plan.budget_s,
            result=state.result,
            said=tuple(state.said),
            earlier=max((each.number for each in self._earlier), default=0),
        )

    def say(self, text: str) -> None:
        self._state.said = [*self._state.said, text][-MOST_SAID:]

    async def run(self, stop: asyncio.Event) -> TuneResult:
        """Measure until nothing more can be learned, time is up, or ``stop`` is set.

        In any case the engine is stopped, or restored to its start values.

        Raises:
            UsageError: the engine cannot be tuned with this plan.
            SourceError: there is no engine.
            StorageError: nothing can be recorded.
        """
        self.outcome = "failed"
        try:
            try:
                await self._work(stop)
            except _StoppedError:
                self.outcome = "interrupted"
            finally:
                await asyncio.shield(self._engines.close())
            await self._judge()
        finally:
            self._clock.enter(TuneStage.DONE)
            await self._end()
        assert self._state.result is not None  # noqa: S101 - judged above
        return self._state.result

    # The trials.

    async def _work(self, stop: asyncio.Event) -> None:
        await asyncio.to_thread(self._journal.begin, self._plan)
        await asyncio.to_thread(self._journal.put_away_the_unfinished)
        await self._load_earlier()
        present = await _unless(stop, self._engines.present(self._state.space))
        self._state.space = space_of(self._state.space.variables, present)
        self._plan = msgspec.structs.replace(self._plan, present=present.flags)
        await asyncio.to_thread(self._journal.begin, self._plan)
        while (planned := await self._next_worthwhile()) is not None:
            self._state.now = planned
            await self._measure_point(planned, stop)
            self._state.now = None
            await self._judge()
        more = await self._next(replace(self._rules, left_s=None))
        self.outcome = "done" if more is None else "out of time"

    async def _load_earlier(self) -> None:
        """Load earlier trials whose sessions can still be read."""
        for record in self._earlier:
            numbers = None
            measured_then = record.outcome is TrialOutcome.MEASURED
            if record.session is not None and measured_then:
                try:
                    numbers = await self._read(record.session)
                except (StorageError, UsageError) as error:
                    self.say(f"trial {record.number} cannot be read: {error}")
            if numbers is not None or not measured_then:
                self._state.trials.append(Trial(record=record, numbers=numbers))
        if self._earlier:
            self.say(f"goes on after trial {self._earlier[-1].number}")
            await self._judge()

    @property
    def _rules(self) -> SearchRules:
        """The rules at this moment, as the time left affects them."""
        plan, clock = self._plan, self._clock
        costs = costs_of(self._state.trials, expected_s(plan))
        left_s = None if plan.budget_s is None else plan.budget_s - clock.elapsed_s
        return SearchRules(
            goal=plan.goal,
            repeats=plan.repeats,
            seed=plan.seed,
            trial_s=costs.trial_s,
            start_s=costs.start_s,
            left_s=left_s,
            can_restart=plan.url is None,
        )

    async def _next_worthwhile(self) -> NextTrial | None:
        """The next trial; points that the what-if model rules out are skipped."""
        state, plan = self._state, self._plan
        try:
            ruled_out = await asyncio.to_thread(
                self._parts.left_out,
                self._database,
                state.space,
                self._rules,
                list(state.trials),
                plan.load,
            )
        except (StorageError, UsageError) as error:
            self.say(f"nothing can be predicted: {error}")
            ruled_out = ()
        for each in ruled_out:
            record = TrialRecord(
                number=self._next_number,
                point=each.point,
                repeat=0,
                outcome=TrialOutcome.LEFT_OUT,
                cause=each.cause,
            )
            await asyncio.to_thread(self._journal.keep, record)
            state.trials.append(Trial(record=record))
            self.say(f"{each.point.text} is left out: {each.cause}")
        return await self._next(self._rules)

    @property
    def _next_number(self) -> int:
        return 1 + max((each.record.number for each in self._trials), default=0)

    async def _next(self, rules: SearchRules) -> NextTrial | None:
        state, life = self._state, self._engines.life
        return await asyncio.to_thread(
            next_trial, state.space, rules, list(state.trials), life
        )

    async def _start_for(self, point: Point) -> Point:
        """The setting to start an engine with that will serve this point and others."""
        state = self._state
        start = await asyncio.to_thread(
            life_for, state.space, self._rules, list(state.trials), point
        )
        return point if start in self._never_start else start

    async def _measure_point(self, planned: NextTrial, stop: asyncio.Event) -> None:
        """Measure a point once and store the outcome, even if that fails."""
        began_s = monotonic()
        numbers, record = await self._outcome(planned, stop)
        record = replace(record, took_s=monotonic() - began_s)
        await asyncio.to_thread(self._journal.keep, record)
        self._state.trials.append(Trial(record=record, numbers=numbers))
        if record.cause is not None:
            self.say(f"{record.point.text} {record.outcome.value}: {record.cause}")

    async def _outcome(
        self, planned: NextTrial, stop: asyncio.Event
    ) -> tuple[TrialNumbers | None, TrialRecord]:
        point = planned.point
        record = TrialRecord(
            number=self._next_number,
            point=point,
            repeat=planned.repeat,
            outcome=TrialOutcome.FAILED,
        )
        for last in (*[False] * (TRIES - 1), True):
            try:
                reached = await self._reach(point, stop)
            except PointRefusedError as error:
                not_started = TrialOutcome.NOT_STARTED
                record = replace(record, outcome=not_started, cause=str(error))
                return None, replace(record, point=error.point)
            record = replace(record, live=reached.live, life=reached.life)
            try:
                session, numbers = await self._measure(record, reached, stop)
            except TrialFailedError as error:
                record = replace(record, cause=str(error), session=error.session)
                await self._engines.renew()
                if not last:
                    self.say(f"{point.text}: {error}; it is tried once more")
            else:
                done = TrialOutcome.MEASURED
                return numbers, replace(
                    record, outcome=done, session=session, cause=None
                )
        return None, record

    async def _reach(self, point: Point, stop: asyncio.Event) -> Reached:
        """Give an engine this setting.

        Raises:
            PointRefusedError: this point, or a larger one, did not start.
        """
        start = await self._start_for(point)
        try:
            return await _unless(stop, self._engines.reach(point, start))
        except PointRefusedError as error:
            self._never_start.add(error.point)
            if error.point == point or error.point in self._state.space.points:
                raise
            self.say(f"{error.point.text} did not start: {error}")
        return await _unless(stop, self._engines.reach(point, point))

    async def _measure(
        self, record: TrialRecord, reached: Reached, stop: asyncio.Event
    ) -> tuple[str, TrialNumbers]:
        self._clock.expect_load(expected_s(self._plan))
        self._enter(TuneStage.LOADING)
        task = TrialTask(
            name=f"{self._plan.tune_id} #{record.number} {record.point.text}",
            salt=f"{self._plan.tune_id}-{record.number}",
            plan=self._plan,
            at=reached,
            ask_answers=self._enter_checking if self._asks(record) else None,
            baseline=self._baseline,
            keep_baseline=self._keep if self._is_present(record) else _forget,
            tell_rate=self._try_rate,
        )
        try:
            session = await self._parts.measure(task, self._database, stop)
        finally:
            if stop.is_set():
                raise _StoppedError  # an incomplete trial does not count
        self._enter(TuneStage.JUDGING)
        try:
            return session, await self._read(session)
        except UsageError as error:
            raise TrialFailedError(str(error), session) from error

    def _try_rate(self, rate_per_s: float) -> None:
        self._state.rate_per_s = rate_per_s

    def _enter_checking(self) -> None:
        self._enter(TuneStage.CHECKING)

    def _keep(self, baseline: BaselineAnswers | None) -> None:
        """Keep what the present setting answered, in memory alone."""
        self._baseline = self._baseline or baseline

    def _is_present(self, record: TrialRecord) -> bool:
        return record.point == self._state.space.present

    def _asks(self, record: TrialRecord) -> bool:
        """Whether to send fixed prompts in this trial, to compare the answers.

        They are sent once per setting, twice for the present one.
        """
        times = ASKED_TIMES if self._is_present(record) else 1
        return bool(self._plan.answers) and record.repeat < times

    async def _read(self, session: str) -> TrialNumbers:
        return await asyncio.to_thread(
            self._parts.numbers, self._database, session, self._plan
        )

    async def _judge(self) -> None:
        self._enter(TuneStage.JUDGING)
        state, rules = self._state, self._rules
        trials, life = list(state.trials), self._engines.life
        state.result = await asyncio.to_thread(
            result_of, state.space, rules, trials, self._plan
        )
        if trials:
            more, starts = await asyncio.to_thread(
                trials_left, state.space, rules, trials, life
            )
            self._clock.expect(more * rules.trial_s + starts * rules.start_s)

    async def _end(self) -> None:
        """Store how the tune ended; a storage error was already reported."""
        try:
            await asyncio.to_thread(self._journal.put_away_the_unfinished)
            await asyncio.to_thread(self._journal.end, self.outcome)
        except StorageError as error:
            self.say(str(error))

    def _enter(self, stage: TuneStage) -> None:
        self._state.rate_per_s = None
        self._clock.enter(stage)

    @property
    def _trials(self) -> Sequence[Trial]:
        return self._state.trials


def _forget(_: BaselineAnswers | None) -> None:
    """What a setting other than the present answered is no baseline."""


async def _unless(stop: asyncio.Event, work: Awaitable[Made]) -> Made:
    """Await ``work``, unless ``stop`` is set first."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _StoppedError
        return working.result()
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
