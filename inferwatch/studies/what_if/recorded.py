"""Turns the readings of one engine into a run that can be simulated.

A run that cannot be simulated is refused, with the reason in words.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    EngineInfo,
    LiveLimits,
    LoadEvent,
    LoadKind,
    Step,
    rank_of,
)
from inferwatch.formatting import counted
from inferwatch.metrics.load.plan import PlanFacts, plan_facts
from inferwatch.metrics.steps.live_limits import Values, start_values, values_of
from inferwatch.studies.what_if.heard import (
    CannotTellError,
    ObservedRequest,
    RunReadings,
)
from inferwatch.studies.what_if.past_requests import PastRequest, past_requests
from inferwatch.studies.what_if.recorded_steps import RecordedSteps, recorded_steps
from inferwatch.studies.what_if.setting import SchedulerSetting, setting_of
from inferwatch.studies.what_if.step_cost import FEWEST_STEPS

NEVER_NS = 1 << 62

# Finds the part of a run in which the engine's limits did not change.
#
# A simulation has one setting from beginning to end. So a run is cut where its limits
# were changed: requests before or after do not show how they would have done under
# the others.


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStretch:
    """The consecutive steps of a run under the same limits."""

    values: Values | None
    """The limits; None if nothing can change them."""
    steps: list[Step]
    from_ns: int = -NEVER_NS
    to_ns: int = NEVER_NS
    """When the limits were changed; never, at the start or the end of the run."""
    note: str | None = None
    """Which part of the run this is, in words; None if it is all of it."""

    def setting(self, start: SchedulerSetting) -> SchedulerSetting:
        """The engine's setting at start, with these limits."""
        if self.values is None:
            return start
        seqs, tokens = self.values
        return replace(
            start,
            max_num_seqs=min(start.max_num_seqs, seqs),
            max_num_batched_tokens=min(start.max_num_batched_tokens, tokens),
        )

    def requests(
        self, by_ordinal: Mapping[int, ObservedRequest]
    ) -> dict[int, ObservedRequest]:
        """Requests added in this stretch; those that end later count as not ended."""
        return {
            ordinal: self._in_sight(each)
            for ordinal, each in by_ordinal.items()
            if self.from_ns <= (each.added_ns or self.from_ns) < self.to_ns
        }

    def whole(self, by_ordinal: Mapping[int, ObservedRequest]) -> int:
        """The number of requests added and ended in this stretch."""
        return sum(
            _ended_ns(each) is not None for each in self.requests(by_ordinal).values()
        )

    def _in_sight(self, request: ObservedRequest) -> ObservedRequest:
        ended_ns = _ended_ns(request)
        if ended_ns is None or ended_ns < self.to_ns:
            return request
        return replace(request, engine_finished_ns=None, finished_ns=None)


def _ended_ns(request: ObservedRequest) -> int | None:
    return request.engine_finished_ns or request.finished_ns


def limit_stretch(
    steps: Sequence[Step],
    limits: Iterable[LiveLimits],
    requests: Mapping[int, ObservedRequest],
    *,
    latest: bool,
) -> LimitStretch:
    """The part under constant limits in which most requests ended, or the latest part.

    Raises:
        CannotTellError: there are too few steps to learn their cost.
    """
    stretches = _stretches(steps, limits)
    if len(stretches) == 1:
        return stretches[0]
    stretch = stretches[-1]
    if not latest:
        long = [each for each in stretches if len(each.steps) >= FEWEST_STEPS]
        stretch = max(long or stretches, key=lambda each: each.whole(requests))
    if len(stretch.steps) < FEWEST_STEPS:
        since = "since then" if latest else "between two changes"
        raise CannotTellError(
            f"its limits were changed on the way, and there are only "
            f"{counted(len(stretch.steps), 'step')} {since}: it takes {FEWEST_STEPS} "
            "to say what one costs"
        )
    return replace(stretch, note=_note(stretch, len(stretches)))


def _stretches(
    steps: Sequence[Step], limits: Iterable[LiveLimits]
) -> list[LimitStretch]:
    """The stretches in order of time, without those that have no steps."""
    changes = sorted(limits, key=lambda each: each.t_ns)
    if not changes:
        return [LimitStretch(values=None, steps=list(steps))]
    spans: list[tuple[int, Values]] = [(-NEVER_NS, start_values(changes[0]))]
    for each in changes:
        if values_of(each) != spans[-1][1]:
            spans.append((each.t_ns, values_of(each)))
    ends = [*(from_ns for from_ns, _ in spans[1:]), NEVER_NS]
    stretches = []
    for (from_ns, values), to_ns in zip(spans, ends, strict=True):
        inside = [step for step in steps if from_ns <= step.start_ns < to_ns]
        if inside:
            stretches.append(
                LimitStretch(values=values, steps=inside, from_ns=from_ns, to_ns=to_ns)
            )
    return stretches


def _note(stretch: LimitStretch, of: int) -> str:
    seqs, tokens = stretch.values or (0, 0)
    lasted_ns = stretch.steps[-1].end_ns - stretch.steps[0].start_ns
    begins = stretch.from_ns > -NEVER_NS
    without = "; what was there when it began is left out" if begins else ""
    return (
        f"limits were changed on the way: this is of the {lasted_ns / NS_PER_S:,.0f} s "
        f"under max_num_seqs {seqs:,} and max_num_batched_tokens {tokens:,} alone, one "
        f"of {of} stretches{without}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoop:
    """A load of users who send the next request as soon as they are answered."""

    run_id: str
    users: tuple[tuple[int, int], ...]
    """The number of users, each with the time from which it applies."""
    until_ns: int
    pause_ns: int
    """From the engine's last token of an answer to its next request."""

    def users_at(self, now_ns: int) -> int:
        counts = [count for since_ns, count in self.users if since_ns <= now_ns]
        return counts[-1] if counts and now_ns < self.until_ns else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRun:
    """The recorded run of one engine, or the part of it under constant limits."""

    setting: SchedulerSetting
    engine: EngineInfo
    requests: tuple[PastRequest, ...]
    """In the order in which they reached the engine."""
    steps: RecordedSteps
    loops: tuple[RecordedLoop, ...] = ()
    shared: float = 0.0
    """Share of blocks found in the prefix cache that other requests held at that time.
    """
    bound_share: dict[BoundBy, float] = field(default_factory=dict)
    """Share of step time by what kept the head of the queue waiting."""
    kv_peak_blocks: int | None = None
    preemptions: int = 0
    given: dict[str, int] = field(default_factory=dict)
    """Priorities by name that other settings are asked about."""
    notes: tuple[str, ...] = ()
    """Reasons why a prediction is less sure, in words."""


def recorded_run(
    readings: Iterable[AnyReading], source: str | None = None
) -> RecordedRun:
    """The run of the busiest engine, or of the busiest in ``source``.

    Raises:
        CannotTellError: nothing can be predicted from the readings.
    """
    run_readings = RunReadings()
    for reading in readings:
        run_readings.take(reading)
    return run_of(run_readings, source)


def run_of(
    readings: RunReadings, source: str | None = None, *, latest: bool = False
) -> RecordedRun:
    """The run from readings that are sorted by type.

    If limits were changed, it is the part under constant limits with the most requests,
    or the latest part.

    Raises:
        CannotTellError: nothing can be predicted from the readings.
    """
    (source, rank), steps = _busiest(readings, source)
    engine = _engine(readings, source, rank)
    flags = next(
        (s.settings for s in readings.settings[::-1] if s.source == source), {}
    )
    started = setting_of(engine, flags)
    if started is None:
        raise CannotTellError(
            "the engine did not tell its max_num_seqs and max_num_batched_tokens: "
            "what binds its batch is not known"
        )
    _refuse(steps, engine, flags)
    steps.sort(key=lambda step: step.end_ns)
    limits = [e for e in readings.limits if (e.source, e.rank) == (source, rank)]
    every = {
        each.ordinal: each
        for (of, _), each in readings.requests.items()
        if of == source and each.ordinal is not None and rank_of(each.ordinal) == rank
    }
    stretch = limit_stretch(steps, limits, every, latest=latest)
    steps, setting = stretch.steps, stretch.setting(started)
    mine = stretch.requests(every)
    for each in mine.values():
        each.class_name = readings.class_of(each)
    columns = recorded_steps(
        steps, {ordinal: each.prompt_tokens or 0 for ordinal, each in every.items()}
    )
    plans = [plan for each in readings.plans if (plan := plan_facts(each)) is not None]
    closed = [plan for plan in plans if plan.closed]
    requests = past_requests(
        mine, columns, readings.load, [plan.run_id for plan in closed]
    )
    if not any(request.counts for request in requests):
        raise CannotTellError("no request was seen from its beginning to its end")
    return RecordedRun(
        setting=setting,
        engine=engine,
        requests=tuple(requests),
        steps=columns,
        loops=_loops(closed, readings.load, requests),
        shared=_shared(steps, columns, mine, setting),
        bound_share=_bound_share(steps),
        kv_peak_blocks=max(
            (s.kv_used_blocks for s in steps if s.kv_used_blocks is not None),
            default=None,
        ),
        preemptions=sum(len(step.preempted) for step in steps),
        notes=(*filter(None, [stretch.note]), *_notes(readings, engine)),
    )


def _bound_share(steps: Sequence[Step]) -> dict[BoundBy, float]:
    bound_ns: dict[BoundBy, int] = {}
    for step in steps:
        bound_ns[step.bound_by] = bound_ns.get(step.bound_by, 0) + step.duration_ns
    total_ns = sum(bound_ns.values())
    return {bound: ns / total_ns for bound, ns in bound_ns.items()} if total_ns else {}


def _busiest(
    readings: RunReadings, source: str | None
) -> tuple[tuple[str, int], list[Step]]:
    """The engine with the most steps, in ``source`` if one is given."""
    candidates = {
        key: steps for key, steps in readings.steps.items() if source in {None, key[0]}
    }
    key = max(candidates, key=lambda key: len(candidates[key]), default=None)
    if key is None:
        raise CannotTellError(
            "no steps of an engine were recorded: what a batch costs is told by the "
            "probe alone"
        )
    if len(candidates[key]) < FEWEST_STEPS:
        raise CannotTellError(
            f"only {counted(len(candidates[key]), 'step')} of the engine: it takes "
            f"{FEWEST_STEPS} to say what one costs"
        )
    return key, candidates[key]


def _engine(readings: RunReadings, source: str, rank: int) -> EngineInfo:
    infos = [e for e in readings.engines if e.source == source]
    if not infos:
        raise CannotTellError("the engine did not tell what it is set to")
    return next((e for e in infos[::-1] if e.rank == rank), infos[-1])


def _refuse(
    steps: Sequence[Step], engine: EngineInfo, settings: Mapping[str, Any]
) -> None:
    """Refuse engines with features that the simulated scheduler lacks."""
    if any(step.drafted_tokens for step in steps):
        raise CannotTellError(
            "it decodes speculatively: how many tokens a step brings would change with "
            "the batch, and is not modelled"
        )
    if (engine.pipeline_parallel or 1) > 1:
        raise CannotTellError("it computes in a pipeline, which is not modelled")
    if settings.get("kv_connector"):
        raise CannotTellError("it shares KV blocks with others, which is not modelled")


def _loops(
    closed: Sequence[PlanFacts],
    load: Sequence[LoadEvent],
    requests: Sequence[PastRequest],
) -> tuple[RecordedLoop, ...]:
    loops = []
    for plan in closed:
        own = [each for each in requests if each.run_id == plan.run_id]
        if not own:
            continue
        begun_ns = own[0].due_ns
        events = [e for e in load if e.t_ns >= begun_ns and e.users is not None]
        stops = [
            e.t_ns
            for e in load
            if e.kind in {LoadKind.STOPPED, LoadKind.DRAINING} and e.t_ns > begun_ns
        ]
        until_ns = min(stops, default=own[-1].due_ns + 1)
        changes = [(e.t_ns, e.users) for e in events if e.users and e.t_ns < until_ns]
        users = [(0, plan.concurrency), *changes]
        loops.append(
            RecordedLoop(
                run_id=plan.run_id,
                users=tuple(users),
                until_ns=until_ns,
                pause_ns=_pause(own, plan.concurrency),
            )
        )
    return tuple(loops)


def _pause(own: Sequence[PastRequest], users: int) -> int:
    """Median time from an answer to the next request, paired in order."""
    ends = sorted(each.last_ns for each in own if each.last_ns is not None)
    asks = [each.due_ns for each in own][users:]
    pauses = [ask - end for end, ask in zip(ends, asks, strict=False)]
    return int(max(median(pauses), 0)) if pauses else 0


def _shared(
    steps: Sequence[Step],
    columns: RecordedSteps,
    mine: Mapping[int, ObservedRequest],
    setting: SchedulerSetting,
) -> float:
    """The share of prefix-cache blocks that other requests held at the same time.

    Each member has blocks for its tokens; if fewer are in use, members share them.
    """
    size = setting.block_tokens
    cached_blocks = {
        ordinal: (request.cached_tokens or 0) // size
        for ordinal, request in mine.items()
    }
    if not any(cached_blocks.values()):
        return 0.0
    flat = columns.flat
    own = np.bincount(flat.step, -(-flat.after // size), minlength=len(steps))
    cached = np.array([cached_blocks.get(int(n), 0) for n in flat.member])
    hits = np.bincount(flat.step, cached, minlength=len(steps))
    used = np.array(
        [-1 if s.kv_used_blocks is None else s.kv_used_blocks for s in steps]
    )
    usable = (used >= 0) & (hits > 0)
    # A request that ended in a step has returned its blocks when they are counted.
    usable &= ~columns.ended
    if not usable.any():
        return 0.0
    share = (own[usable] - used[usable]).sum() / hits[usable].sum()
    return float(np.clip(share, 0.0, 1.0))


def _notes(readings: RunReadings, engine: EngineInfo) -> tuple[str, ...]:
    notes = []
    if len(readings.steps) > 1:
        notes.append(f"of {len(readings.steps)} engines, this is of the busiest alone")
    if engine.async_scheduling:
        notes.append(
            "the engine schedules a step ahead; here each step begins when the one "
            "before it has ended"
        )
    return tuple(notes)
