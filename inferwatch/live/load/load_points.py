"""Load runs at several rates or concurrencies: what a search found, now or before."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from collectors.contract.readings import AnyReading, LoadKind, LoadPlanned
from inferwatch.errors import UsageError
from inferwatch.live.load.load_session import FollowedPlan, new_book
from inferwatch.live.load.running_load import public_plan
from inferwatch.loadgen.plan.plan import LoadPlan, objectives
from inferwatch.loadgen.rate_search import RatePoint, RateSearch
from inferwatch.metrics.load.result import LoadResult, load_result
from inferwatch.printing.summary.load import untold_text
from inferwatch.record.lookup.recorded_readings import RecordedReadings

SHOWN = ("ttft_s", "tpot_s", "itl_s", "e2el_s")
OWN = ("run_id", "seed", "rate_per_s", "concurrency", "headers", "url", "uds", "slo")
"""The plan's fields in which runs of one search may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRun:
    """One run of a search: its plan and its result."""

    plan: LoadPlan
    result: LoadResult
    resumed: bool = False

    @property
    def refused(self) -> bool:
        """Whether every connection was refused, which says nothing about the rate."""
        return self.result.unanswered and set(self.result.failures) == {"refused"}

    def untold(self, share: float) -> str | None:
        """Why that share of good requests cannot be confirmed; None if it can."""
        goodput = self.result.goodput
        if goodput is None or not self.result.untold(share):
            return None
        return untold_text(goodput.untold)

    def point(self) -> RatePoint:
        """Return the run's result for the search, judged by each class's objectives."""
        goodput, rate = self.result.worst, self.plan.rate_per_s
        return RatePoint(
            rate_per_s=rate or 0.0,
            n=goodput.n if goodput else 0,
            good=goodput.good if goodput else 0,
            certain=goodput.certain if goodput else 0.0,
            client_bound=self.result.client_bound,
        )

    def as_json(self) -> dict[str, Any]:
        result, goodput = self.result, self.result.goodput
        return {
            "run_id": result.run_id,
            "resumed": self.resumed,
            "rate_per_s": self.plan.rate_per_s,
            "concurrency": self.plan.concurrency,
            "achieved_per_s": result.rate.achieved,
            "sent": result.sent,
            "succeeded": result.succeeded,
            "failed": result.failed,
            "aborted": result.aborted,
            "unaccounted": result.unaccounted,
            "failures": {
                kind: {"n": each.count, "first": each.first}
                for kind, each in result.failures.items()
            },
            "output_tokens_per_s": result.tokens_per_s,
            **{
                metric: {
                    name: getattr(result.latencies[metric].quantiles, name)
                    for name in ("mean", "p50", "p99")
                }
                for metric in SHOWN
            },
            "share": goodput.share if goodput else None,
            "share_ci95": list(goodput.ci95) if goodput else None,
            "goodput_per_s": goodput.good_per_s if goodput else None,
            "client": result.verdict.state,
            "client_reasons": list(result.verdict.reasons),
            "client_cause": result.verdict.cause,
        }


def at_rate(plan: LoadPlan, run_id: str, rate_per_s: float, repeat: int) -> LoadPlan:
    """Return the plan at another rate, with a seed of its own for each repeat."""
    return msgspec.structs.replace(
        plan, run_id=run_id, rate_per_s=rate_per_s, seed=plan.seed + repeat
    )


def search_json(search: RateSearch, share: float) -> dict[str, Any]:
    best = next((p for p in search.points if p.rate_per_s == search.highest_held), None)
    return {
        "share_asked": share,
        "highest_held_per_s": search.highest_held,
        "highest_held_client_bound": best.client_bound if best else None,
        "client_bound_rates": sum(point.client_bound for point in search.points),
        "lowest_failed_per_s": search.lowest_failed,
        "ended": search.next_rate() is None,
        "rates": [
            {
                "rate_per_s": point.rate_per_s,
                "runs": point.runs,
                "n": point.n,
                "good": point.good,
                "share": point.share,
                "share_ci95": list(point.ci95),
                "holds": search.holds(point),
                "client_bound": point.client_bound,
            }
            for point in search.points
        ],
    }


async def recorded_runs(path: Path, session: str, like: LoadPlan) -> list[PointRun]:
    """Return the complete runs of an earlier session.

    Raises:
        StorageError: no such session.
        UsageError: it has no complete run, or its load was another.
    """
    runs: dict[str, FollowedPlan] = {}
    replay = RecordedReadings(path, session)
    async for batch in replay.batches():
        for reading in batch:
            _take(runs, reading)
    complete = [run for run in runs.values() if _ended(run)]
    for run in complete:
        _refuse_others(run.plan, like)
    if not complete:
        raise UsageError(f"--resume: session {session} has no complete run")
    slo, classes = objectives(like)
    return [
        PointRun(
            plan=run.plan, result=load_result(run.book, slo, classes), resumed=True
        )
        for run in complete
    ]


def _take(runs: dict[str, FollowedPlan], reading: AnyReading) -> None:
    if isinstance(reading, LoadPlanned):
        plan = _plan(reading.plan)
        runs[plan.run_id] = FollowedPlan(plan=plan, book=new_book(plan))
    elif reading.source in runs:
        runs[reading.source].book.fold(reading)


def _plan(text: str) -> LoadPlan:
    try:
        return msgspec.json.decode(text, type=LoadPlan)
    except msgspec.MsgspecError as error:
        raise UsageError(f"--resume: its plan cannot be used: {error}") from error


def _ended(run: FollowedPlan) -> bool:
    """Tell whether everything was sent; an interrupted run does not get that far."""
    return any(event.kind is LoadKind.DRAINING for event in run.book.events)


def _refuse_others(plan: LoadPlan, like: LoadPlan) -> None:
    """Check that the run's load is the same, as only then the runs can be combined."""
    then, now = _compared(plan), _compared(like)
    for name in then.keys() | now.keys():
        if then.get(name) != now.get(name):
            raise UsageError(
                f"--resume: that session had {name} = {then.get(name)}, "
                f"not {now.get(name)}"
            )


def _compared(plan: LoadPlan) -> Mapping[str, Any]:
    """Return the recorded plan without the fields in which runs may differ."""
    plain: dict[str, Any] = msgspec.json.decode(public_plan(plan))
    return {name: value for name, value in plain.items() if name not in OWN}
