"""Reads the numbers of a trial from its recorded session.

Settings are ranked by the client's numbers: without warm-up, from the first request
that was due to the last that ended. Numbers from the engine cover the same time.
"""

import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from collectors.contract.readings import RequestRecord
from inferwatch.errors import UsageError
from inferwatch.formatting import counted
from inferwatch.limits.plan import cost_per_million
from inferwatch.live.load.load_points import PointRun
from inferwatch.live.load.load_session import new_book
from inferwatch.loadgen.plan.plan import LoadPlan, PlanObjectives, objectives
from inferwatch.loadgen.rate_search import RateSearch
from inferwatch.loadgen.scenarios.finding import finding_of
from inferwatch.metrics.load.book import LoadBook, told_sum
from inferwatch.metrics.load.goodput import missed_by
from inferwatch.metrics.load.request_latencies import tpot_ns, ttft_ns
from inferwatch.metrics.load.result import LoadResult, load_result
from inferwatch.metrics.load.scenarios.evidence import EngineTrail, ScenarioEvidence
from inferwatch.metrics.requests.slo import DEFAULT_SHARE, Slo
from inferwatch.metrics.series.intervals import ALPHA, FEWEST, stretches
from inferwatch.record.connections import reading
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.load_plans import load_plans
from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.table import SessionPart, SourceNames, readable
from inferwatch.studies.compare.checks.drift import MATTERS
from inferwatch.studies.compare.checks.machine import (
    HELD_TOLERANCE,
    OTHERS_TOLERANCE,
    QUOTA_TOLERANCE,
)
from inferwatch.studies.compare.reading.between_runs import LEAST
from inferwatch.studies.compare.reading.conditions import (
    Conditions,
    GpuClocks,
    HostLoad,
    RecordingGaps,
    conditions,
)
from inferwatch.studies.compare.reading.configuration import engine_gpus
from inferwatch.studies.compare.reading.live_limits import (
    LIMITS,
    limit_text,
    limits_held,
)
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut
from inferwatch.studies.compare.statistics.resampling import BINS
from inferwatch.studies.compare.statistics.trend import trend_of
from inferwatch.studies.tune.answers import kept_answers
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.trial import TrialNumbers
from inferwatch.visible import visible

ENGINE = {SessionPart.REQUESTS, SessionPart.STEPS}


def kept_finding(
    connection: sqlite3.Connection, session: int, plan: LoadPlan, book: LoadBook
) -> str | None:
    """The finding of a stress scenario; None for other loads.

    The server's counters before and after the load are not recorded, so findings that
    need them are missing.
    """
    if plan.scenario is None:
        return None
    trail, known = EngineTrail(), False
    names = SourceNames(connection.execute(SOURCES, (session,)).fetchall())
    for table in every_table():
        if table.part in ENGINE:
            for _, each in readable(table.read(connection, session, names)):
                trail.fold(each)
                known = True
    evidence = ScenarioEvidence(book=book, trail=trail if known else None)
    finding = finding_of(plan.scenario, evidence)
    return finding.sentence if finding is not None else None


STEPS = (
    "SELECT bound_by, sum(duration_ns), sum(preemptions), max(kv_used_blocks) "
    "FROM steps WHERE session = ? AND end_ns >= ? AND end_ns < ? AND NOT memberless "
    "GROUP BY bound_by"
)
DEVICE = (
    "SELECT device, num_kv_blocks FROM engines WHERE session = ? "
    "ORDER BY ordinal DESC LIMIT 1"
)
GPU_MEMORY = (
    "SELECT name, max(memory_used_bytes) FROM gpu_samples "
    "JOIN sources USING (session, source) WHERE session = ? AND t_ns >= ? AND t_ns < ? "
    "AND memory_used_bytes IS NOT NULL GROUP BY name"
)
PROCESS_MEMORY = (
    "SELECT max(bytes) FROM (SELECT sum(rss_bytes) AS bytes FROM host_processes "
    "JOIN host_samples USING (session, ordinal) WHERE session = ? "
    "AND t_ns >= ? AND t_ns < ? AND role IN ('api', 'core', 'worker') "
    "GROUP BY ordinal)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUse:
    """Numbers from the engine; empty if it has no probe."""

    device: str | None = None
    kv_peak_usage: float | None = None
    preemptions: int | None = None
    bound_share: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: int | None = None


def engine_use(
    connection: sqlite3.Connection, session: int, span: ComparedSpan
) -> EngineUse:
    where = session, span.start_ns, span.end_ns
    rows = connection.execute(STEPS, where).fetchall()
    device, blocks = connection.execute(DEVICE, (session,)).fetchone() or (None, None)
    spent_ns = sum(ns for _, ns, _, _ in rows)
    used = max((most for *_, most in rows if most is not None), default=None)
    return EngineUse(
        device=device,
        kv_peak_usage=used / blocks if used is not None and blocks else None,
        preemptions=sum(many for _, _, many, _ in rows) if rows else None,
        bound_share={bound: ns / spent_ns for bound, ns, _, _ in rows if spent_ns},
        memory_bytes=_memory(connection, where),
    )


def _memory(connection: sqlite3.Connection, where: tuple[int, int, int]) -> int | None:
    """Peak memory of the engine's GPUs, or of its processes if there are none."""
    ours = engine_gpus(connection, where[0])
    by_gpu = dict(connection.execute(GPU_MEMORY, where).fetchall())
    sizes = [int(each) for uuid, each in by_gpu.items() if uuid in ours or not ours]
    if sizes:
        return sum(sizes)
    (most,) = connection.execute(PROCESS_MEMORY, where).fetchone()
    return int(most) if most is not None else None


PARTS = 6
GROWS = 1.5
"""Ratio of mean TTFT in the last part to the first, where each part is above the one
before. By chance six parts come in this order once in 720 times.
"""


def doubts_of(
    book: LoadBook,
    result: LoadResult,
    span: ComparedSpan,
    conditions: Conditions,
    limits: Sequence[tuple[int, int]],
    *,
    on_cpu: bool,
) -> tuple[str, ...]:
    """Reasons to doubt a trial, each one sentence without a period."""
    doubts = [
        *_client(result),
        *_clocks(conditions.gpus),
        *(each for host in conditions.hosts for each in _host(host, on_cpu=on_cpu)),
        *_missing(conditions.gaps),
        *_changed_limits(limits),
        *_queue_grew(book),
        *_drift(book, span),
    ]
    return tuple(map(visible, doubts))


def _client(result: LoadResult) -> Iterator[str]:
    if result.client_bound:
        yield f"the client was too slow: {result.verdict.why}"
    if result.unaccounted:
        yield f"the outcome of {counted(result.unaccounted, 'request')} is unknown"


def _clocks(gpus: tuple[GpuClocks, ...]) -> Iterator[str]:
    shares = [(share, why) for gpu in gpus for why, share in gpu.held.items()]
    share, why = max(shares, default=(0.0, ""))
    if share > HELD_TOLERANCE:
        yield f"GPU clocks were held down {share:.0%} of the time ({why})"


def _host(host: HostLoad, *, on_cpu: bool) -> Iterator[str]:
    if (host.others or 0.0) > (LEAST if on_cpu else OTHERS_TOLERANCE):
        yield f"other work took {host.others:.0%} of the host's cores"
    for role, share in host.throttled.items():
        if share > QUOTA_TOLERANCE:
            yield f"a CPU quota held the {role} process for {share:.0%} of the time"


def _missing(gaps: RecordingGaps) -> Iterator[str]:
    if gaps.dropped:
        yield f"{counted(gaps.dropped, 'reading')} were lost"
    yield from gaps.lives
    for stepped_s in gaps.stepped_s:
        yield f"the clock stepped by {stepped_s:+.1f} s"


def _changed_limits(limits: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Warn if the limits were changed during the measurement."""
    if len(limits) > 1:
        moved = (f"{name} {limit_text(limits, name)}" for name in LIMITS)
        yield f"limits were changed while it was measured ({', '.join(moved)})"


def _queue_grew(book: LoadBook) -> Iterator[str]:
    """Warn if TTFT rises throughout, as the load then exceeds the capacity."""
    known = np.array([ns for each in book.records if (ns := ttft_ns(each))], float)
    if len(known) < FEWEST:
        return
    means = stretches(known, PARTS)
    if (np.diff(means) > 0).all() and means[-1] > GROWS * means[0]:
        yield (
            f"TTFT rose throughout, {means[-1] / means[0]:.1f}-fold: the load was more "
            "than this setting serves, so its latencies are of the trial's length"
        )


def _drift(book: LoadBook, span: ComparedSpan) -> Iterator[str]:
    """Warn if TPOT drifts; of all latencies it depends least on how requests arrive."""
    known = [(each.intended_ns, ns) for each in book.records if (ns := tpot_ns(each))]
    if not known:
        return
    at_ns, values_ns = np.array(known, np.int64).T
    place = span.bin_of(at_ns)
    inside = place >= 0
    trend = trend_of(
        np.bincount(place[inside], values_ns[inside], BINS).astype(float),
        np.bincount(place[inside], None, BINS).astype(float),
    )
    if trend is None or trend.p_value > ALPHA:
        return
    if abs(math.log(trend.ratio)) > math.log1p(MATTERS):
        change = trend.ratio - 1
        yield (
            f"TPOT {'rose' if change > 0 else 'fell'} by {abs(change):.0%} from the "
            "first to the last third: the trial did not settle, or the machine drifted"
        )


SHOWN = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
UNENDED = "the search for the knee did not come to its end"
SOURCES = "SELECT source, name FROM sources WHERE session = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadRun:
    """One load run with its plan, its records and its result."""

    plan: LoadPlan
    book: LoadBook
    result: LoadResult


def numbers_of(database: Path, session_id: str, plan: TunePlan) -> TrialNumbers:
    """The numbers of a trial, from its session.

    Raises:
        StorageError: the session does not exist or cannot be read.
        UsageError: the session has no requests of a load.
    """
    slos = objectives(plan.load)
    with reading(database) as connection:
        session = find(database, session_id).session
        runs = _load_runs(connection, session, plan.load, slos)
        if not runs:
            raise UsageError(f"session {session_id} has no requests of a load")
        search = _search(runs) if len(runs) > 1 else None
        knee = search.highest_held if search else None
        run = _representative(runs, knee)
        span = _span_of(run.book)
        engine = engine_use(connection, session, span)
        numbers = _numbers(
            run,
            slos,
            engine,
            knee=knee,
            cost=_cost(run.book, slos, plan, len(engine_gpus(connection, session))),
            doubts=(
                *doubts_of(
                    run.book,
                    run.result,
                    span,
                    conditions(connection, session, span),
                    limits_held(connection, session, _from_first_token(run.book, span)),
                    on_cpu=engine.device == "cpu",
                ),
                *([UNENDED] if search and search.next_rate() is not None else ()),
            ),
        )
        return replace(
            numbers,
            answers=kept_answers(connection, session),
            scenario=kept_finding(connection, session, run.plan, run.book),
        )


def _numbers(
    run: _LoadRun,
    slos: PlanObjectives,
    engine: EngineUse,
    *,
    knee: float | None,
    cost: float | None,
    doubts: tuple[str, ...],
) -> TrialNumbers:
    result, goodput = run.result, run.result.goodput
    judged = goodput is not None and _has_objectives(slos)
    return TrialNumbers(
        requests=result.sent,
        failed=result.failed,
        requests_per_s=result.succeeded / result.span_s if result.span_s else None,
        tokens_per_s=result.tokens_per_s,
        goodput_per_s=goodput.good_per_s if goodput and judged else None,
        good_share=goodput.share if goodput and judged else None,
        knee_per_s=knee,
        cost=cost,
        latencies={name: result.latencies[name] for name in SHOWN},
        kv_peak_usage=engine.kv_peak_usage,
        preemptions=engine.preemptions,
        bound_share=dict(engine.bound_share),
        memory_bytes=engine.memory_bytes,
        doubts=doubts,
    )


def _load_runs(
    connection: sqlite3.Connection, session: int, load: LoadPlan, slos: PlanObjectives
) -> list[_LoadRun]:
    """The load runs of a session that sent requests, in order of their start."""
    plans = _plans(connection, session, load)
    books = {run_id: new_book(each) for run_id, each in plans.items()}
    names = SourceNames(connection.execute(SOURCES, (session,)).fetchall())
    for table in every_table():
        if table.part is SessionPart.CLIENT:
            for _, each in readable(table.read(connection, session, names)):
                if each.source in books:
                    books[each.source].fold(each)
    return [
        _LoadRun(plan=plans[run_id], book=book, result=load_result(book, *slos))
        for run_id, book in books.items()
        if book.records
    ]


def _plans(
    connection: sqlite3.Connection, session: int, load: LoadPlan
) -> dict[str, LoadPlan]:
    """Plans by run; one that this version cannot read is taken from the tune."""
    plans: dict[str, LoadPlan] = {}
    for planned in load_plans(connection, session):
        try:
            each = msgspec.json.decode(planned.plan, type=LoadPlan)
        except msgspec.MsgspecError:
            run_id = msgspec.json.decode(planned.plan).get("run_id", load.run_id)
            each = msgspec.structs.replace(load, run_id=run_id)
        plans[each.run_id] = each
    return plans


def _search(runs: Sequence[_LoadRun]) -> RateSearch:
    search = RateSearch(runs[0].plan.rate_per_s or 1.0, DEFAULT_SHARE)
    for run in runs:
        search.add(PointRun(plan=run.plan, result=run.result).point())
    return search


def _representative(runs: Sequence[_LoadRun], knee: float | None) -> _LoadRun:
    """The run that stands for a rate search: the last one at the knee.

    If no rate met the objectives, the one with the lowest rate.
    """
    at_knee = [run for run in runs if run.plan.rate_per_s == knee]
    if knee is not None and at_knee:
        return at_knee[-1]
    return min(runs, key=lambda run: run.plan.rate_per_s or 0.0)


def _span_of(book: LoadBook) -> ComparedSpan:
    """The span from the first due time to the last end, as :attr:`LoadBook.span_s`."""
    start_ns = book.records[0].intended_ns
    ends = [each.end_ns for each in book.records if each.end_ns is not None]
    return ComparedSpan(
        origin_ns=start_ns,
        start_ns=start_ns,
        end_ns=max(ends, default=start_ns + 1) + 1,
        cut=WarmupCut.GIVEN,
        load_runs=1,
    )


def _from_first_token(book: LoadBook, span: ComparedSpan) -> ComparedSpan:
    """The span from the first token on; changed limits are reported by then."""
    firsts = [e.first_token_ns for e in book.records if e.first_token_ns is not None]
    start_ns = min(firsts, default=span.start_ns)
    return replace(span, start_ns=start_ns)


def _cost(
    book: LoadBook, slos: PlanObjectives, plan: TunePlan, gpus: int
) -> float | None:
    """Price of a million good output tokens; without GPUs, by the host's price."""
    if plan.gpu_hour is None or not book.span_s:
        return None
    good = told_sum(_good_tokens(each, book, slos) for each in book.succeeded)
    if not good:
        return None
    return cost_per_million(plan.gpu_hour, max(gpus, 1), good / book.span_s)


def _good_tokens(
    record: RequestRecord, book: LoadBook, slos: PlanObjectives
) -> int | None:
    """A request's output tokens if it is good, else 0; None if that is unknown."""
    slo = slos.classes.get(record.class_name or "", slos.slo or Slo(()))
    missed = missed_by(record, book.gaps_of(record), slo)
    return 0 if missed else None if missed is None else record.output_tokens


def _has_objectives(slos: PlanObjectives) -> bool:
    return bool((slos.slo and slos.slo.limits) or slos.classes)
