"""What a trial came to, read from its recorded session.

Numbers are the client's, as everything that settings are ranked by must be: warm-up
left out, from the first request that was due to the last that ended. What the engine's
own readings add is of the same time.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from collectors.contract.readings import RequestRecord
from inferwatch.errors import UsageError
from inferwatch.limits.price import cost_per_million
from inferwatch.live.load.load_points import PointRun
from inferwatch.live.load.load_session import new_book
from inferwatch.loadgen.plan.plan import LoadPlan, PlanObjectives, objectives
from inferwatch.loadgen.rate_search import RateSearch
from inferwatch.metrics.load.book import LoadBook, told_sum
from inferwatch.metrics.load.goodput import missed_by
from inferwatch.metrics.load.result import LoadResult, load_result
from inferwatch.metrics.requests.slo import DEFAULT_SHARE, Slo
from inferwatch.record.connections import reading
from inferwatch.record.sessions.sessions import find
from inferwatch.record.tables.load_plans import load_plans
from inferwatch.record.tables.reading_tables import every_table
from inferwatch.record.tables.table import SessionPart, SourceNames, readable
from inferwatch.studies.compare.reading.conditions import conditions
from inferwatch.studies.compare.reading.configuration import engine_gpus
from inferwatch.studies.compare.reading.live_limits import limits_held
from inferwatch.studies.compare.reading.span import ComparedSpan, WarmupCut
from inferwatch.studies.tune.answers import kept_answers
from inferwatch.studies.tune.plan import TunePlan
from inferwatch.studies.tune.reading.doubts import doubts_of
from inferwatch.studies.tune.reading.engine_use import EngineUse, engine_use
from inferwatch.studies.tune.reading.stress import kept_finding
from inferwatch.studies.tune.trial import TrialNumbers

SHOWN = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
UNENDED = "the search for the knee did not come to its end"
SOURCES = "SELECT source, name FROM sources WHERE session = ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadRun:
    """One run of the load: what it did, and what that came to."""

    plan: LoadPlan
    book: LoadBook
    result: LoadResult


def numbers_of(database: Path, session_id: str, plan: TunePlan) -> TrialNumbers:
    """What the session of a trial says.

    Raises:
        StorageError: there is no such session, or it cannot be read.
        UsageError: no request of a load is in it.
    """
    asked = objectives(plan.load)
    with reading(database) as connection:
        session = find(database, session_id).session
        runs = _load_runs(connection, session, plan.load, asked)
        if not runs:
            raise UsageError(f"session {session_id} has no requests of a load")
        search = _search(runs) if len(runs) > 1 else None
        knee = search.highest_held if search else None
        run = _told_of(runs, knee)
        span = _span_of(run.book)
        engine = engine_use(connection, session, span)
        found = _numbers(
            run,
            asked,
            engine,
            knee=knee,
            cost=_cost(run.book, asked, plan, len(engine_gpus(connection, session))),
            doubts=(
                *doubts_of(
                    run.book,
                    run.result,
                    span,
                    conditions(connection, session, span),
                    limits_held(connection, session, _answered(run.book, span)),
                    on_cpu=engine.device == "cpu",
                ),
                *([UNENDED] if search and search.next_rate() is not None else ()),
            ),
        )
        return replace(
            found,
            answers=kept_answers(connection, session),
            scenario=kept_finding(connection, session, run.plan, run.book),
        )


def _numbers(
    run: _LoadRun,
    asked: PlanObjectives,
    engine: EngineUse,
    *,
    knee: float | None,
    cost: float | None,
    doubts: tuple[str, ...],
) -> TrialNumbers:
    result, goodput = run.result, run.result.goodput
    judged = goodput is not None and _is_asked(asked)
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
    connection: sqlite3.Connection, session: int, load: LoadPlan, asked: PlanObjectives
) -> list[_LoadRun]:
    """The runs of a session in which something was sent, in order of their start."""
    plans = _plans(connection, session, load)
    books = {run_id: new_book(each) for run_id, each in plans.items()}
    names = SourceNames(connection.execute(SOURCES, (session,)).fetchall())
    for table in every_table():
        if table.part is SessionPart.CLIENT:
            for _, each in readable(table.read(connection, session, names)):
                if each.source in books:
                    books[each.source].fold(each)
    return [
        _LoadRun(plan=plans[run_id], book=book, result=load_result(book, *asked))
        for run_id, book in books.items()
        if book.records
    ]


def _plans(
    connection: sqlite3.Connection, session: int, load: LoadPlan
) -> dict[str, LoadPlan]:
    """By run; one that a later inferwatch wrote is taken for what was asked for."""
    found: dict[str, LoadPlan] = {}
    for planned in load_plans(connection, session):
        try:
            each = msgspec.json.decode(planned.plan, type=LoadPlan)
        except msgspec.MsgspecError:
            run_id = msgspec.json.decode(planned.plan).get("run_id", load.run_id)
            each = msgspec.structs.replace(load, run_id=run_id)
        found[each.run_id] = each
    return found


def _search(runs: Sequence[_LoadRun]) -> RateSearch:
    """That of which these are the runs."""
    search = RateSearch(runs[0].plan.rate_per_s or 1.0, DEFAULT_SHARE)
    for run in runs:
        search.add(PointRun(plan=run.plan, result=run.result).point())
    return search


def _told_of(runs: Sequence[_LoadRun], knee: float | None) -> _LoadRun:
    """The run of a search that all else is told of: the last at the knee.

    Where no rate held, the one at the lowest.
    """
    at_knee = [run for run in runs if run.plan.rate_per_s == knee]
    if knee is not None and at_knee:
        return at_knee[-1]
    return min(runs, key=lambda run: run.plan.rate_per_s or 0.0)


def _span_of(book: LoadBook) -> ComparedSpan:
    """As :attr:`LoadBook.span_s` has it."""
    start_ns = book.records[0].intended_ns
    ends = [each.end_ns for each in book.records if each.end_ns is not None]
    return ComparedSpan(
        origin_ns=start_ns,
        start_ns=start_ns,
        end_ns=max(ends, default=start_ns + 1) + 1,
        cut=WarmupCut.GIVEN,
        load_runs=1,
    )


def _answered(book: LoadBook, span: ComparedSpan) -> ComparedSpan:
    """From the first token on: limits turned before are told by the first step."""
    firsts = [e.first_token_ns for e in book.records if e.first_token_ns is not None]
    start_ns = min(firsts, default=span.start_ns)
    return replace(span, start_ns=start_ns)


def _cost(
    book: LoadBook, asked: PlanObjectives, plan: TunePlan, gpus: int
) -> float | None:
    """Of a million output tokens of good requests; without a GPU the host's price."""
    if plan.gpu_hour is None or not book.span_s:
        return None
    good = told_sum(_good_tokens(each, book, asked) for each in book.succeeded)
    if not good:
        return None
    return cost_per_million(plan.gpu_hour, max(gpus, 1), good / book.span_s)


def _good_tokens(
    record: RequestRecord, book: LoadBook, asked: PlanObjectives
) -> int | None:
    """None where they were not counted, or nobody can tell whether it is good."""
    slo = asked.classes.get(record.class_name or "", asked.slo or Slo(()))
    missed = missed_by(record, book.gaps_of(record), slo)
    return 0 if missed else None if missed is None else record.output_tokens


def _is_asked(asked: PlanObjectives) -> bool:
    """Somebody said what good is."""
    return bool((asked.slo and asked.slo.limits) or asked.classes)
