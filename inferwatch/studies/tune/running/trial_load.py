"""Applies the load of one trial, recorded as a session of its own.

Every trial sends the same requests at the same times, as the plan's seed decides. Each
has its own cache salt: without one, a trial would find the previous trial's prompts in
the prefix cache, and whichever came first would look slow.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from collectors.contract.clock import SessionClock, monotonic_ns
from collectors.contract.readings import Note, NoteKind
from inferwatch.errors import SourceError, StorageError
from inferwatch.live.load.load_points import PointRun, at_rate
from inferwatch.live.load.load_session import FollowedPlan, LoadSession, probe_beside
from inferwatch.live.load.running_load import new_run_id
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan, objectives
from inferwatch.loadgen.rate_search import RateSearch
from inferwatch.loadgen.scenarios.scenario import fitted_plan
from inferwatch.metrics.load.result import load_result
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.slo import DEFAULT_SHARE
from inferwatch.record.sessions.housekeeping import fitting_name
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.answers.asking import (
    BaselineAnswers,
    answer_prompts,
    ask_answers,
)
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.running.engines import Reached
from inferwatch.watchdog import before_the_end

COMMAND = "tune"
"""The command name in the sessions of trials."""
STARTS_S = 1.5
"""Time that probe, generator and recorder need around a load."""


class TrialFailedError(Exception):
    """A trial measured nothing; the message says why."""

    def __init__(self, message: str, session: str | None = None) -> None:
        super().__init__(message)
        self.session = session


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTask:
    """What to measure, and on which engine."""

    name: str
    """The name of the trial's session."""
    salt: str
    """The cache salt, which keeps other trials' prompts out of the prefix cache."""
    plan: TunePlan
    at: Reached
    longest: int | None = None
    """The engine's maximum of prompt and output tokens, if known."""
    ask_answers: Callable[[], None] | None = None
    """Called before fixed prompts are sent after the load; None sends none."""
    baseline: BaselineAnswers | None = None
    """What the present setting answered, to score; None before it was asked."""
    keep_baseline: Callable[[BaselineAnswers | None], None] = lambda _: None
    """Called with what this setting answered, as long as there is no baseline."""
    tell_rate: Callable[[float], None] | None = None
    """Called with each request rate that a rate search tries."""

    @property
    def load(self) -> LoadPlan:
        load = fitted_plan(self.plan.load, self.longest)
        return msgspec.structs.replace(
            load,
            run_id=new_run_id(),
            model=self.at.model,
            url=self.at.target.url,
            uds=self.at.target.uds,
            headers={**load.headers, **self.at.target.headers},
            extra_body={**load.extra_body, "cache_salt": self.salt},
        )


MeasureTrial = Callable[[TrialTask, Path, asyncio.Event], Awaitable[str]]
"""Apply the load and record it; returns the session's id."""


async def measured(task: TrialTask, database: Path, stop: asyncio.Event) -> str:
    """Run a trial's load to its end or until ``stop``; returns the session's id.

    Raises:
        TrialFailedError: the engine died, or no request was answered.
        StorageError: nothing can be recorded.
    """
    clock = SessionClock()
    recorder = Recorder.open(
        database, clock=clock, name=fitting_name(task.name), command=COMMAND
    )
    before_the_end(recorder.close)
    if not recorder.session_id:
        recorder.close()
        raise StorageError(recorder.health.message or "nothing can be recorded")
    probe = await asyncio.to_thread(probe_beside, task.at.target)
    task = replace(task, longest=await task.at.target.longest(task.at.model))
    session = LoadSession(
        clock, Pipeline(Model(), recorder), task.at.target, probe, task.at.engine
    )
    failure: str | None = None
    async with session.opened():
        try:
            failure = await _unless_it_dies(_load_and_ask(session, task, stop), task.at)
        except SourceError as error:
            failure = str(error)
    if failure is not None:
        raise TrialFailedError(failure, recorder.session_id)
    return recorder.session_id


async def _unless_it_dies(loading: Awaitable[str | None], at: Reached) -> str | None:
    """Await the load; returns why it measured nothing, or None if it did."""
    load = asyncio.ensure_future(loading)
    if at.engine is None:
        return await load
    death = asyncio.ensure_future(at.engine.wait())
    try:
        await asyncio.wait({load, death}, return_when=asyncio.FIRST_COMPLETED)
        if death.done():
            return death.result().split("\n", 1)[0]
        return await load
    finally:
        for each in (load, death):
            each.cancel()
        await asyncio.gather(load, death, return_exceptions=True)


async def _load_and_ask(
    session: LoadSession, task: TrialTask, stop: asyncio.Event
) -> str | None:
    """Apply the load, then send the fixed prompts if wanted.

    Returns why nothing was measured, or None.
    """
    failure = await _load(session, task, stop)
    if failure is None and task.ask_answers is not None and not stop.is_set():
        task.ask_answers()
        prompts = answer_prompts(task.plan.answers, task.plan.load.token_ids)
        try:
            asked = await ask_answers(
                task.at.target, task.at.model, prompts, baseline=task.baseline
            )
        except SourceError as error:  # the measurement remains valid
            session.take(
                Note(t_ns=monotonic_ns(), kind=NoteKind.CANARY, text=str(error))
            )
        else:
            session.take(asked.hashes)
            task.keep_baseline(asked.baseline)
    return failure


async def _load(
    session: LoadSession, task: TrialTask, stop: asyncio.Event
) -> str | None:
    if task.plan.goal is Goal.KNEE:
        return await _find_knee(session, task, stop)
    run = await session.follow(task.load, stop)
    return None if stop.is_set() else _fault(run)


async def _find_knee(
    session: LoadSession, task: TrialTask, stop: asyncio.Event
) -> str | None:
    """Search the highest rate that meets the objectives, all within one session.

    Returns why nothing was measured, or None.
    """
    load = task.load
    search = RateSearch(load.rate_per_s or 1.0, DEFAULT_SHARE)
    while (rate := search.next_rate()) is not None and not stop.is_set():
        runs = (each.runs for each in search.points if each.rate_per_s == rate)
        plan = at_rate(load, new_run_id(), rate, next(runs, 0))
        if task.tell_rate is not None:
            task.tell_rate(rate)
        run = await session.follow(plan, stop)
        if stop.is_set():
            break
        point = PointRun(plan=plan, result=load_result(run.book, *objectives(plan)))
        if point.refused or not run.book.records:
            return _fault(run) or "nothing was sent"
        if untold := point.untold(DEFAULT_SHARE):
            return untold
        search.add(point.point())
    return None


def _fault(run: FollowedPlan) -> str | None:
    """Why a run says nothing about the engine; None if it does.

    If nothing failed and nothing was completed, the engine is just slow.
    """
    failures = run.book.failures()
    if run.book.succeeded or (run.book.records and not failures):
        return None
    first = next(iter(failures.values()), None)
    text = first.first if first else "nothing was sent"
    return f"no request was answered: {text}"


def expected_s(plan: TunePlan) -> float | None:
    """Expected length of a trial's load; None for a rate search."""
    load = plan.load
    if plan.goal is Goal.KNEE:
        return None
    lasts: list[float] = []
    if load.duration_s is not None:
        lasts.append(load.duration_s)
    if load.requests is not None and load.rate_per_s:
        lasts.append(load.requests / load.rate_per_s)
    if load.arrivals is Arrivals.TRACE and load.trace:
        lasts.append(load.trace[-1].offset_s / load.speed)
    return load.warmup_s + min(lasts) + STARTS_S if lasts else None
