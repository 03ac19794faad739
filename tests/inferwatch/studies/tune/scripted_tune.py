"""A tune without engine or load: settings score what they are told to score."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.contract.clock import SessionClock
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.progress import TuneStage
from inferwatch.studies.tune.running.engines import (
    EngineNews,
    PointRefusedError,
    Reached,
)
from inferwatch.studies.tune.running.run import TuneParts, TuneRun
from inferwatch.studies.tune.running.trial_load import TrialFailedError, TrialTask
from inferwatch.studies.tune.search.pruning import LeftOut
from inferwatch.studies.tune.search.race import EngineLife
from inferwatch.studies.tune.search.standings import SearchRules
from inferwatch.studies.tune.space import Point, Space
from inferwatch.studies.tune.trial import Trial, TrialNumbers

PRESENT = "32"


class KilledError(BaseException):
    """What happens to a process that is killed: nothing more."""


def seqs(value: int | str) -> Point:
    """A setting."""
    return Point(flags=(("max-num-seqs", str(value)),))


def plan_of(*values: int, **asked: Any) -> TunePlan:
    """A tune over these."""
    common: dict[str, Any] = {"rate_per_s": 10.0, "duration_s": 3.0, "warmup_s": 1.0}
    common |= {"run_id": "", "model": "", "slo": "ttft_s<0.5"}
    return TunePlan(
        tune_id="t1",
        model="demo",
        vary=(("max-num-seqs", tuple(map(str, values))),),
        load=LoadPlan(**common),
        **asked,
    )


@dataclass
class Bench:
    """What settings score, and what happens on the way."""

    database: Path
    scores: Mapping[str, float]
    """By the value of max-num-seqs."""
    refused: dict[str, str] = field(default_factory=dict)
    """Values with which no engine starts, and why."""
    failures: dict[str, list[str]] = field(default_factory=dict)
    """What goes wrong at a value, one after the other."""
    on_load: Callable[[int, asyncio.Event], None] = lambda *_: None
    """Hears of each load before its end: how many there were before."""
    ruled_out: dict[str, str] = field(default_factory=dict)
    """Values that cannot win, by the first trial of all, and why."""
    loads: list[TrialTask] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)
    """By session: the value that was measured."""
    reached: list[Point] = field(default_factory=list)
    renewed: int = 0
    closed: int = 0
    life: EngineLife | None = None
    lives: int = 0

    @property
    def parts(self) -> TuneParts:
        """For a run."""
        return TuneParts(
            engines=self._engines,
            measure=self._measure,
            numbers=self._numbers,
            left_out=self._left_out,
        )

    def run(self, plan: TunePlan) -> TuneRun:
        """A tune from its beginning."""
        return TuneRun(plan, self.database, parts=self.parts)

    def resumed(self, tune_id: str = "t1", **asked: Any) -> TuneRun:
        """The same tune once more."""
        return TuneRun.resumed(self.database, tune_id, parts=self.parts, **asked)

    # Its engines.

    def _engines(self, _: TunePlan, news: EngineNews) -> "Bench":
        self._news = news
        return self

    async def present(self, space: Space) -> Point:
        """As people said, or the default."""
        return space.present if space.present.flags else seqs(PRESENT)

    async def reach(self, point: Point, start: Point) -> Reached:
        """At once."""
        assert int(start.flags[0][1]) >= int(point.flags[0][1])
        self._news.stage(TuneStage.STARTING)
        self.reached.append(point)
        if self.life is None or not self.life.reaches(point):
            if why := self.refused.get(start.flags[0][1]):
                raise PointRefusedError(why, start)
            self.lives += 1
            self.life = EngineLife(start=start, number=self.lives)
        return Reached(
            target=TargetServer(url="http://localhost:1"),
            model="tiny",
            live=point != self.life.start,
            life=self.lives,
        )

    async def renew(self) -> None:
        """The next one is another."""
        self.renewed += 1
        self.life = None

    async def close(self) -> None:
        """Noted."""
        self.closed += 1

    # Its loads, and what they come to.

    async def _measure(
        self, task: TrialTask, database: Path, stop: asyncio.Event
    ) -> str:
        value = self.reached[-1].flags[0][1]
        recorder = Recorder.open(
            database, clock=SessionClock(), name=task.name, command="tune"
        )
        try:
            self.loads.append(task)
            self.told[recorder.session_id] = value
            self.on_load(len(self.loads), stop)
            if waiting := self.failures.get(value):
                raise TrialFailedError(waiting.pop(0), recorder.session_id)
        finally:
            await asyncio.to_thread(recorder.close)
        return recorder.session_id

    def _numbers(self, _: Path, session: str, plan: TunePlan) -> TrialNumbers:
        assert plan.tune_id == "t1"
        score = self.scores[self.told[session]]
        return TrialNumbers(requests=30, goodput_per_s=score)

    def _left_out(
        self,
        _: Path,
        space: Space,
        rules: SearchRules,
        trials: Sequence[Trial],
        *__: Any,
    ) -> list[LeftOut]:
        assert rules.goal is Goal.GOODPUT
        tried = {each.point for each in trials}
        return [
            LeftOut(point=seqs(value), cause=cause)
            for value, cause in self.ruled_out.items()
            if trials and seqs(value) in set(space.points) - tried
        ]
