"""Runs a load, a search or a sweep, and prints what was measured."""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import msgspec

from collectors.contract.clock import SessionClock
from collectors.contract.readings import NoteKind
from inferwatch.cli.running.chosen_session import session_location
from inferwatch.cli.running.load_answers import (
    Questions,
    ask_beside,
    questions_of,
)
from inferwatch.cli.running.load_plan import (
    LoadOptions,
    complete_plan,
    headers_of,
    plan_fields,
    refuse_odd_searches,
    sweep_points,
)
from inferwatch.cli.running.load_progress import PointPrinter, shown_progress
from inferwatch.cli.running.recording import open_recorder
from inferwatch.cli.running.signals import interrupts
from inferwatch.cli.running.target import target_of
from inferwatch.cli.say import say, say_json
from inferwatch.errors import SourceError, UsageError
from inferwatch.feed import RecordState
from inferwatch.formatting import format_in, format_rate, shared_unit
from inferwatch.live.load.load_points import (
    PointRun,
    at_rate,
    recorded_runs,
    search_json,
)
from inferwatch.live.load.load_session import FollowedPlan, LoadSession, probe_beside
from inferwatch.live.load.priorities import unheeded_priorities
from inferwatch.live.load.running_load import new_run_id, public_plan
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.file import shape
from inferwatch.loadgen.plan.plan import LoadPlan, objectives
from inferwatch.loadgen.rate_search import RateSearch
from inferwatch.loadgen.result_formats import request_lines, vllm_bench
from inferwatch.loadgen.scenarios.scenario import fitted
from inferwatch.loadgen.target_server import TargetServer, refuse_traffic
from inferwatch.loadgen.truth.calibration import beside, stored
from inferwatch.metrics.load.book import error_text
from inferwatch.metrics.load.client_verdict import ClientState
from inferwatch.metrics.load.result import LoadResult, load_result
from inferwatch.metrics.model.model import Model
from inferwatch.printing.summary.latencies import Summary
from inferwatch.printing.summary.load import load_text, summarise_load
from inferwatch.printing.summary.session import summarise
from inferwatch.visible import visible

COLUMNS = 80
CLIENTS = {
    ClientState.OK: "ok",
    ClientState.CLIENT_BOUND: "bound",
    ClientState.UNKNOWN: "–",
}
LEGEND = (
    "good: the share of requests that held every objective; times are those of the "
    "client, from the intended send; client: whether it kept up with what it measures"
)
"""What the columns of the table mean."""
HEADS = ("good", "TTFT p50", "TTFT p99", "TPOT p99", "tokens/s", "client")


class SearchRuns:
    """The runs of a search or sweep, one after the other."""

    def __init__(
        self,
        session: LoadSession,
        plan: LoadPlan,
        stop: asyncio.Event,
    ) -> None:
        self.runs: list[PointRun] = []
        self.fault: SourceError | None = None
        """Why the search ended early; what was measured before counts."""
        self._session = session
        self._plan = plan
        self._objectives = objectives(plan)
        self._stop = stop
        self._curve = PointPrinter()

    async def find(self, options: LoadOptions) -> RateSearch:
        """Search for the highest rate that meets the objectives, unless stopped."""
        self._curve.head(_heading())
        search = RateSearch(self._plan.rate_per_s or 1.0, options.share)
        if options.resume:
            path, name = session_location(options.resume, options.database)
            for earlier in await recorded_runs(path, name, self._plan):
                if not earlier.refused and not earlier.untold(options.share):
                    search.add(earlier.point())
                    self._add(earlier)
        while (rate := search.next_rate()) is not None and not self._over:
            runs = (each.runs for each in search.points if each.rate_per_s == rate)
            plan = at_rate(self._plan, new_run_id(), rate, next(runs, 0))
            run = await self._run(plan)
            if run is None or self.fault is not None:
                continue
            if untold := run.untold(options.share):
                self.fault = SourceError(untold)
            else:
                search.add(run.point())
        return search

    async def sweep(self, what: str, values: Sequence[float]) -> None:
        """Do a run for each value of the plan's field ``what``, in the given order."""
        self._curve.head(_heading())
        for number, value in enumerate(values, 1):
            change: dict[str, Any] = {what: value, "run_id": new_run_id()}
            if self._over:
                return
            plan = msgspec.structs.replace(self._plan, **change)
            await self._run(plan, f"{number} of {len(values)}  ")

    async def _run(self, plan: LoadPlan, which: str = "") -> PointRun | None:
        """Run one plan; return None if it was stopped early: half a run is not a point.

        A run with failed requests is a point: an overloaded server may answer none, and
        do better at a lower rate. But a server that takes no connection is not there.
        """
        try:
            with shown_progress(self._session, plan, which or f"{_load_text(plan)}  "):
                run = await self._session.follow(plan, self._stop)
        except SourceError as error:
            self.fault = error
            return None
        if self._stop.is_set():
            return None
        result = load_result(run.book, *self._objectives)
        point = PointRun(plan=plan, result=result)
        why = why_unanswered(run, result)
        if why and (point.refused or not run.book.records):
            self.fault = SourceError(why)
        return self._add(point) if run.book.records else None

    @property
    def _over(self) -> bool:
        return self.fault is not None or self._stop.is_set()

    def _add(self, run: PointRun) -> PointRun:
        """Keep the result of a run and print it at once."""
        self.runs.append(run)
        self._curve.tell(_line(run), self.runs)
        return run


def why_unanswered(run: FollowedPlan, result: LoadResult) -> str:
    """Return that the server never answered, and why; empty if it did answer."""
    if not result.unanswered and run.status != SourceError.exit_status:
        return ""
    first = next(iter(result.failures.values()), None)
    last = run.book.events[-1].text if run.book.events else "nothing was sent"
    return f"the server never answered: {first.first if first else last}"


async def run_points(options: LoadOptions, points: SearchRuns) -> RateSearch | None:
    """Do all runs of a search or sweep; return the search, None for a sweep."""
    if options.find_rate:
        return await points.find(options)
    await points.sweep(*sweep_points(options.sweep or ""))
    return None


def print_points(
    options: LoadOptions,
    session: LoadSession,
    plan: LoadPlan,
    points: SearchRuns,
    search: RateSearch | None,
) -> int:
    """Print the results of a search or sweep, and return the exit status.

    Raises:
        SourceError: the server or the generator was lost before the end.
    """
    record = session.pipeline.record
    if options.prints_json:
        summary = {
            "session_id": record.session_id if record else None,
            "target": {**_where(session), "model": plan.model},
            "plan": json.loads(public_plan(plan)),
            "slo": plan.slo,
            "find_rate": search_json(search, options.share) if search else None,
            "points": [run.as_json() for run in points.runs],
        }
        say_json(summary)
    else:
        say(_table(points.runs))
        sentences = [
            search.sentence if search else "",
            LEGEND,
            client_sentence(points.runs),
        ]
        say("\n".join("\n".join(wrap(each, COLUMNS)) for each in sentences if each))
        say(record_text(search, record))
    if points.fault is not None:
        raise points.fault
    results = [run.result for run in points.runs]
    if results and all(result.unanswered for result in results):
        raise SourceError("the server never answered, at any point")
    bound = options.strict_client and any(each.client_bound for each in results)
    lost = any(each.unaccounted for each in results)
    nothing = bool(results) and not any(each.succeeded for each in results)
    none_held = search is not None and search.highest_held is None
    return int(none_held or bound or lost or nothing)


def _where(session: LoadSession) -> dict[str, Any]:
    return {"url": session.target.url, "uds": session.target.uds}


def _table(runs: Sequence[PointRun]) -> str:
    lines = [_heading()]
    ordered = sorted(runs, key=lambda r: (r.plan.rate_per_s or 0, r.plan.concurrency))
    for run in ordered:
        lines += [_line(run), *_failed(run)]
    return "\n".join(lines)


def _heading() -> str:
    return "load".ljust(20) + "".join(head.rjust(10) for head in HEADS)


def _load_text(plan: LoadPlan) -> str:
    """Return the rate or the number of users that a plan asks for."""
    if plan.rate_per_s:
        return f"{plan.rate_per_s:.4g}/s"
    return f"{plan.concurrency} users" if plan.concurrency > 1 else "1 user"


def _failed(run: PointRun) -> list[str]:
    """Return a line for each kind of failure in a run: its count and first message."""
    return [
        f"  {each.count:,} × {kind}: {error_text(each.first)}"[:COLUMNS]
        for kind, each in run.result.failures.items()
    ]


def _line(run: PointRun) -> str:
    result, goodput = run.result, run.result.worst
    ttft = result.latencies["ttft_s"].quantiles
    tpot_s = result.latencies["tpot_s"].quantiles.p99
    unit = shared_unit((ttft.p50, ttft.p99, tpot_s))
    cells = (
        "–" if goodput is None or goodput.share is None else f"{goodput.share:.1%}",
        *(format_in(unit, value) for value in (ttft.p50, ttft.p99, tpot_s)),
        format_rate(result.tokens_per_s).strip(),
        CLIENTS[result.verdict.state],
    )
    return f"{_load_text(run.plan):<17}{unit.name:<3}" + "".join(
        cell.rjust(10) for cell in cells
    )


def client_sentence(runs: Sequence[PointRun]) -> str:
    """Return how many runs were client-bound, and why; empty if none was."""
    bound = [run.result.verdict for run in runs if run.result.client_bound]
    if not bound:
        return ""
    which = "Every point" if len(bound) == len(runs) else f"{len(bound)} of {len(runs)}"
    was = "was" if len(bound) in {1, len(runs)} else "were"
    return (
        f"{which} {was} {ClientState.CLIENT_BOUND}: those numbers describe the client, "
        f"not the server. The last of them: {bound[-1].why}."
    )


def record_text(search: RateSearch | None, record: RecordState | None) -> str:
    """Return where the session is recorded, and how to continue a search."""
    if record is None:
        return "not recorded"
    cut = search is not None and search.next_rate() is not None
    goes_on = f"; continue with --resume {record.session_id}" if cut else ""
    return f"session {record.session_id}{goes_on}"


def run_load(options: LoadOptions) -> int:
    """Run the command, and return the exit status.

    Raises:
        InferwatchError: the server never answered, or the options cannot work
            together.
    """
    _refuse_lost_file("--save-requests", options.save_requests)
    _refuse_lost_file("--answers-to", options.answers_to)
    questions = questions_of(options)
    fields = plan_fields(options)
    refuse_odd_searches(options, fields)
    target = asyncio.run(_target(options, fields))
    plan = asyncio.run(_plan(fields, target, options))
    return asyncio.run(_load(options, target, plan, questions))


async def _target(options: LoadOptions, fields: Mapping[str, Any]) -> TargetServer:
    verify, headers = bool(fields.get("verify_tls", True)), headers_of(options.header)
    return await target_of("load", options.url, options.uds, headers, verify_tls=verify)


async def _plan(
    fields: dict[str, Any], target: TargetServer, options: LoadOptions
) -> LoadPlan:
    """Return the plan, after asking the server for its models, and if it is idle."""
    common = {"run_id": new_run_id(), "url": target.url, "uds": target.uds}
    headers = {**fields.get("headers", {}), **target.headers}
    merged = {**fields, **common, "headers": headers}
    complete_plan({**merged, "model": fields.get("model", "")})  # before any traffic
    served = await target.models()
    if "model" not in fields:
        if not served:
            raise UsageError(f"{target.name} lists no models: name one with --model")
        merged["model"] = served[0]
    if "scenario" in merged:
        merged = fitted(merged, await target.longest(merged["model"]))
    if not options.allow_load:
        await refuse_traffic(target, "--allow-load")
    return complete_plan(merged)


async def _load(
    options: LoadOptions,
    target: TargetServer,
    plan: LoadPlan,
    questions: Questions | None,
) -> int:
    clock = SessionClock()
    recorder = open_recorder(
        "load",
        clock,
        database=options.database,
        name=options.name,
        record=not options.no_record,
    )
    pipeline = Pipeline(Model(), recorder)
    session = LoadSession(clock, pipeline, target, probe_beside(target))
    with interrupts() as stop:
        if options.searches:
            points = SearchRuns(session, plan, stop)
            async with session.opened():
                _say_host(session)
                _say_priorities(session, plan)
                search = await run_points(options, points)
            return print_points(options, session, plan, points, search)
        return await _run_once(options, session, plan, stop, questions)


async def _run_once(
    options: LoadOptions,
    session: LoadSession,
    plan: LoadPlan,
    stop: asyncio.Event,
    questions: Questions | None,
) -> int:
    fault, answers = None, None
    async with session.opened():
        _say_host(session)
        _say_priorities(session, plan)
        with shown_progress(session, plan):
            try:
                run = await session.follow(plan, stop)
            except SourceError as error:
                if session.run is None or not session.run.book.records:
                    raise
                run, fault = session.run, error  # print what was measured
        snapshot = session.snapshot()
        if questions is not None and fault is None and not stop.is_set():
            answers = await ask_beside(session, plan.model, questions)
    result = load_result(run.book, *objectives(plan))
    summary = _summary(session, run, result)
    summary["stopped"] = "failed" if fault else "interrupted" if stop.is_set() else None
    summary["server"] = _server(summarise(snapshot, None))
    if answers is not None:
        summary["answers"] = answers.as_json()
    _print(options, session, run, result, summary)
    if answers is not None and not options.prints_json:
        say("\n".join(wrap(answers.sentence, COLUMNS)))
    _save(options.save_requests, run)
    if session.pipeline.record and session.pipeline.record.message:
        say(f"inferwatch: {session.pipeline.record.message}", err=True)
    if fault is not None:
        raise fault
    return _status(options, result, run)


def _say_host(session: LoadSession) -> None:
    """Warn before the load if this host is too small for the server and the load."""
    for note in session.snapshot().notes:
        if note.kind is NoteKind.HOST:
            say(f"inferwatch: {note.text}", err=True)


def _say_priorities(session: LoadSession, plan: LoadPlan) -> None:
    """Warn before the load if the server may ignore the priorities of its classes."""
    why = unheeded_priorities(plan, session.snapshot().settings)
    if why is not None:
        say(f"inferwatch: {visible(why)}", err=True)


def _summary(session: LoadSession, run: FollowedPlan, result: LoadResult) -> Summary:
    record, target, check = session.pipeline.record, session.target, run.cross_check
    calibration = stored(result.sample.transport) if result.sample else None
    return {
        "session_id": record.session_id if record else None,
        "target": {"url": target.url, "uds": target.uds, "model": run.plan.model},
        "load": shape(run.plan),
        "plan": json.loads(public_plan(run.plan)),
        **summarise_load(result),
        "cross_check": check.as_json() if check else None,
        "scenario": run.scenario.as_json() if run.scenario else None,
        "calibration": beside(calibration, result) if calibration else None,
    }


def _server(watched: Summary) -> Summary | None:
    """Return the part of a summary that the server's probe measured; None without."""
    if watched["engine"] is None:
        return None
    return {k: v for k, v in watched.items() if k not in {"client", "session_id"}}


def _print(
    options: LoadOptions,
    session: LoadSession,
    run: FollowedPlan,
    result: LoadResult,
    summary: Summary,
) -> None:
    if options.output_format == "vllm-bench":
        say_json(vllm_bench(run.plan, run.book, result))
    elif options.as_json:
        say_json(summary)
    else:
        session_id = summary["session_id"]
        head = run.plan.model, session.target.name, summary["load"]
        say(" · ".join(map(visible, head)))
        cut = f", {summary['stopped']}" if summary["stopped"] else ""
        say((f"session {session_id}" if session_id else "not recorded") + cut)
        say(load_text(summary))


def _refuse_lost_file(flag: str, path: Path | None) -> None:
    """Refuse a file that cannot be written, before the load starts."""
    if path is None:
        return
    place = path if path.exists() else path.absolute().parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise UsageError(f"{flag}: {path} cannot be written")


def _save(path: Path | None, run: FollowedPlan) -> None:
    if path is None:
        return
    try:
        path.write_text("".join(f"{line}\n" for line in request_lines(run.book)))
    except OSError as error:
        raise UsageError(f"--save-requests: {path}: {error.strerror}") from error


def _status(options: LoadOptions, result: LoadResult, run: FollowedPlan) -> int:
    if why := why_unanswered(run, result):
        raise SourceError(why)
    missed = bool(result.missed(options.share))
    bound = options.strict_client and result.client_bound
    nothing = result.sent > 0 and not result.succeeded and not result.aborted
    return int(missed or bound or nothing or result.unaccounted > 0)
