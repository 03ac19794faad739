"""Runs ``inferwatch load``: asks the server, runs the plan, prints the results."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collectors.contract.clock import SessionClock
from collectors.contract.readings import NoteKind
from collectors.probe.discover import AmbiguousProbeError, probe_at
from embedded_engine.engine.launch import running_engines
from inferwatch.cli.load_options import (
    LoadOptions,
    complete_plan,
    headers_of,
    plan_fields,
    refuse_odd_searches,
)
from inferwatch.cli.load_progress import shown_progress
from inferwatch.cli.load_search import (
    SearchRuns,
    print_points,
    run_points,
    why_unanswered,
)
from inferwatch.cli.recording import open_recorder
from inferwatch.cli.say import say, say_json
from inferwatch.cli.signals import interrupts
from inferwatch.errors import SourceError, UsageError
from inferwatch.live.load.load_session import FollowedPlan, LoadSession
from inferwatch.live.load.running_load import new_run_id, public_plan
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.file import shape
from inferwatch.loadgen.plan.plan import LoadPlan, objectives
from inferwatch.loadgen.result_formats import request_lines, vllm_bench
from inferwatch.loadgen.scenarios.scenario import fitted
from inferwatch.loadgen.target_server import TargetServer, refuse_traffic
from inferwatch.loadgen.truth.calibration import beside, stored
from inferwatch.metrics.load.result import LoadResult, load_result
from inferwatch.metrics.model.model import Model
from inferwatch.printing.summary.load import Summary, load_text, summarise_load
from inferwatch.printing.summary.session import summarise
from inferwatch.visible import visible


def run_load(options: LoadOptions) -> int:
    """Run the command, and return the exit status.

    Raises:
        InferwatchError: the server never answered, or the options cannot work
            together.
    """
    _refuse_lost_requests(options.save_requests)
    fields = plan_fields(options)
    refuse_odd_searches(options, fields)
    target = _target(options, fields)
    plan = asyncio.run(_plan(fields, target, options))
    return asyncio.run(_load(options, target, plan))


def _target(options: LoadOptions, fields: Mapping[str, Any]) -> TargetServer:
    url, uds = options.url, str(options.uds) if options.uds else None
    if url is None and uds is None:
        engines = running_engines()
        if not engines:
            raise UsageError("which server? inferwatch load http://HOST:PORT ...")
        url, uds = engines[-1].url, engines[-1].uds
    verify = bool(fields.get("verify_tls", True))
    headers = headers_of(options.header)
    return TargetServer.at(url or "http://localhost", uds, headers, verify_tls=verify)


async def _plan(
    fields: dict[str, Any], target: TargetServer, options: LoadOptions
) -> LoadPlan:
    """Return the plan, after asking the server for its models, and if it is idle."""
    common = {"run_id": new_run_id(), "url": target.url, "uds": target.uds}
    headers = {**fields.get("headers", {}), **target.headers}
    merged = {**fields, **common, "headers": headers}
    complete_plan({**merged, "model": fields.get("model", "")})  # usage before traffic
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


async def _load(options: LoadOptions, target: TargetServer, plan: LoadPlan) -> int:
    clock = SessionClock()
    recorder = open_recorder(
        "load",
        clock,
        database=options.database,
        name=options.name,
        record=not options.no_record,
    )
    pipeline = Pipeline(Model(), recorder)
    try:
        probe = probe_at(target.url, target.uds)
    except AmbiguousProbeError:
        probe = None  # the load works without it
    session = LoadSession(clock, pipeline, target, probe)
    with interrupts() as stop:
        if options.searches:
            points = SearchRuns(session, plan, stop)
            async with session.opened():
                _say_host(session)
                search = await run_points(options, points)
            return print_points(options, session, plan, points, search)
        return await _one(options, session, plan, stop)


async def _one(
    options: LoadOptions,
    session: LoadSession,
    plan: LoadPlan,
    stop: asyncio.Event,
) -> int:
    fault = None
    async with session.opened():
        _say_host(session)
        with shown_progress(session, plan):
            try:
                run = await session.follow(plan, stop)
            except SourceError as error:
                if session.run is None or not session.run.book.records:
                    raise
                run, fault = session.run, error  # print what was measured
        snapshot = session.snapshot()
    result = load_result(run.book, *objectives(plan))
    summary = _summary(session, run, result)
    summary["stopped"] = "failed" if fault else "interrupted" if stop.is_set() else None
    summary["server"] = _server(summarise(snapshot, None))
    _print(options, session, run, result, summary)
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
    """Return what the server's probe saw, at the vantages engine and frontend."""
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


def _refuse_lost_requests(path: Path | None) -> None:
    """Refuse an unwritable file before the load, not after it."""
    if path is None:
        return
    place = path if path.exists() else path.absolute().parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise UsageError(f"--save-requests: {path} cannot be written")


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
