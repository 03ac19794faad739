"""Runs ``inferwatch load --find-rate`` and ``--sweep``: several runs, one session."""

import asyncio
import json
from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import msgspec

from inferwatch.cli.load_options import LoadOptions, sweep_points
from inferwatch.cli.load_progress import PointPrinter, shown_progress
from inferwatch.cli.say import say, say_json
from inferwatch.errors import SourceError
from inferwatch.feed import RecordState
from inferwatch.formatting import format_in, format_rate, shared_unit
from inferwatch.live.load.load_points import (
    PointRun,
    at_rate,
    recorded_runs,
    search_json,
)
from inferwatch.live.load.load_session import FollowedPlan, LoadSession
from inferwatch.live.load.running_load import new_run_id, public_plan
from inferwatch.loadgen.plan.plan import LoadPlan, objectives
from inferwatch.loadgen.rate_search import RateSearch
from inferwatch.metrics.load.client_verdict import ClientState
from inferwatch.metrics.load.error_text import error_text
from inferwatch.metrics.load.result import LoadResult, load_result
from inferwatch.record.file.location import default_database

COLUMNS = 80
CLIENTS = {
    ClientState.OK: "ok",
    ClientState.CLIENT_BOUND: "bound",
    ClientState.UNKNOWN: "–",
}
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
        """Search until the rate is found, or the search is stopped."""
        self._curve.head(_heading())
        search = RateSearch(self._plan.rate_per_s or 1.0, options.share)
        if options.resume:
            path = options.database or default_database()
            for earlier in await recorded_runs(path, options.resume, self._plan):
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
        """Do one run for each value, in the given order."""
        self._curve.head(_heading())
        for number, value in enumerate(values, 1):
            change: dict[str, Any] = {what: value, "run_id": new_run_id()}
            if self._over:
                return
            plan = msgspec.structs.replace(self._plan, **change)
            await self._run(plan, f"{number} of {len(values)}  ")

    async def _run(self, plan: LoadPlan, which: str = "") -> PointRun | None:
        """Run one plan; return None if it was stopped early: half a run is no point.

        A run with failed requests is a point: an overloaded server may answer none, and
        do better at a lower rate. But a server that takes no connection is not there.
        """
        try:
            with shown_progress(self._session, plan, which or f"{_load(plan)}  "):
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
        """Keep a point and print it at once."""
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


async def run_points(options: LoadOptions, points: SearchRuns) -> dict[str, Any] | None:
    """Run all points; return the result of a search, or None for a sweep."""
    if options.find_rate:
        return search_json(await points.find(options), options.share)
    await points.sweep(*sweep_points(options.sweep or ""))
    return None


def print_points(
    options: LoadOptions,
    session: LoadSession,
    plan: LoadPlan,
    points: SearchRuns,
    search: dict[str, Any] | None,
) -> int:
    """Print the results, and return the exit status.

    Raises:
        SourceError: the server or the generator was lost before the end.
    """
    record = session.pipeline.record
    best = search["highest_held_per_s"] if search else None
    if options.prints_json:
        summary = {
            "session_id": record.session_id if record else None,
            "target": {**_where(session), "model": plan.model},
            "plan": json.loads(public_plan(plan)),
            "slo": plan.slo,
            "find_rate": search,
            "points": [run.as_json() for run in points.runs],
        }
        say_json(summary)
    else:
        say(_table(points.runs))
        sentences = [sentence(search) if search else "", client_sentence(points.runs)]
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
    return int((search is not None and best is None) or bound or lost or nothing)


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


def _load(plan: LoadPlan) -> str:
    """Return the rate or the number of users that a plan asks for."""
    if plan.rate_per_s:
        return f"{plan.rate_per_s:.4g}/s"
    return f"{plan.concurrency} users" if plan.concurrency > 1 else "1 user"


def _failed(run: PointRun) -> list[str]:
    """Return, for below the point, the first message of each kind of failure."""
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
    return f"{_load(run.plan):<17}{unit.name:<3}" + "".join(
        cell.rjust(10) for cell in cells
    )


def sentence(search: dict[str, Any]) -> str:
    """Return what the tried rates show, as a sentence."""
    best, failed = search["highest_held_per_s"], search["lowest_failed_per_s"]
    share = f"{search['share_asked']:.0%} of requests"
    if best is None and failed is None and not search["ended"]:
        return "interrupted before any rate could be judged"
    if best is None:
        return f"no rate met the objectives for {share}"
    upto = f"; {failed:.4g}/s does not" if failed is not None else ""
    bound = search["highest_held_client_bound"]
    doubt = "; but there the client was too slow to be sure of it" if bound else ""
    return f"{best:.4g}/s meets the objectives for {share}{upto}{doubt}"


def client_sentence(runs: Sequence[PointRun]) -> str:
    """Return how many points were client-bound, and why; empty if none was."""
    bound = [run.result.verdict for run in runs if run.result.client_bound]
    if not bound:
        return ""
    which = "Every point" if len(bound) == len(runs) else f"{len(bound)} of {len(runs)}"
    was = "was" if len(bound) in {1, len(runs)} else "were"
    return (
        f"{which} {was} {ClientState.CLIENT_BOUND}: those numbers describe the client, "
        f"not the server. The last of them: {bound[-1].why}."
    )


def record_text(search: dict[str, Any] | None, record: RecordState | None) -> str:
    """Return where the session is recorded, and how to continue a search."""
    if record is None:
        return "not recorded"
    cut = search is not None and not search["ended"]
    goes_on = f"; continue with --resume {record.session_id}" if cut else ""
    return f"session {record.session_id}{goes_on}"
