"""Measures the error of the load generator on this host."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from collectors.contract.clock import SessionClock
from inferwatch.cli.running.load_progress import shown_progress
from inferwatch.cli.running.signals import interrupts
from inferwatch.cli.say import say, say_json
from inferwatch.errors import SourceError
from inferwatch.formatting import counted, format_durations
from inferwatch.live.load.load_session import FollowedPlan, LoadSession
from inferwatch.live.load.running_load import new_run_id
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.file import make_plan, shape
from inferwatch.loadgen.target_server import TargetServer
from inferwatch.loadgen.truth.calibration import (
    Calibration,
    Deviation,
    StampComparison,
    calibration,
    store,
    truth_log,
    truth_server,
)
from inferwatch.loadgen.truth.script import DEFAULT_MODEL
from inferwatch.metrics.load.client_verdict import client_words
from inferwatch.metrics.load.result import load_result
from inferwatch.metrics.model.model import Model

TOKENS = 100
PROMPT_TOKENS = 32


def run_calibration(fields: Mapping[str, Any], *, as_json: bool) -> int:
    """Measure, save and print the calibration, and return the exit status.

    Raises:
        SourceError: no request was answered in full.
    """
    result = asyncio.run(_measure(fields))
    path = store(result)
    if as_json:
        say_json(result.as_json())
        return 0
    say(_table(result))
    say(f"saved in {path}; `inferwatch load` reports it with its results")
    return 0


async def _measure(fields: Mapping[str, Any]) -> Calibration:
    clock = SessionClock()
    async with truth_server() as url:
        plan = make_plan(
            {
                "warmup_s": 0.0,
                "prompt_tokens": PROMPT_TOKENS,
                "output_tokens": TOKENS,
                **fields,
                "run_id": new_run_id(),
                "model": DEFAULT_MODEL,
                "url": url,
            }
        )
        target = TargetServer.at(url, None, {})
        session = LoadSession(clock, Pipeline(Model()), target)
        with interrupts() as stop:
            async with session.opened():
                with shown_progress(session, plan):
                    run = await session.follow(plan, stop)
        truth = await truth_log(url, plan.run_id)
    return _compare(run, truth, clock)


def _compare(
    run: FollowedPlan, truth: Mapping[str, Mapping[str, Any]], clock: SessionClock
) -> Calibration:
    result = load_result(run.book)
    if not result.succeeded:
        raise SourceError("the reference server answered no request: try a lower rate")
    return calibration(
        StampComparison(run.book, truth, clock.start_ns),
        result,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        load=shape(run.plan),
    )


def _table(result: Calibration) -> str:
    counts = f"{counted(result.requests, 'request')}, {counted(result.tokens, 'token')}"
    heads = ("true mean", "reported", "error", "true p99", "reported", "error")
    lines = [
        (
            f"{result.load} · {result.transport} · {counts} · "
            f"{client_words(result.verdict)}"
        ),
        "",
        f"{'':<6}" + "".join(head.rjust(12) for head in heads),
        _row("TTFT", result.ttft),
        _row("ITL", result.itl),
        "",
        f"{'':<28}{'p50':>12}{'p99':>12}{'max':>12}",
    ]
    for name, lag in (
        ("token sent to stamped", result.stamp_lag),
        ("request due to received", result.send_lag),
    ):
        lines.append(f"{name:<28}{_cells(lag.p50, lag.p99, lag.max)}")
    return "\n".join(lines)


def _row(name: str, deviation: Deviation) -> str:
    return f"{name:<6}" + _cells(
        deviation.truth_mean,
        deviation.reported_mean,
        deviation.error_mean,
        deviation.truth_p99,
        deviation.reported_p99,
        deviation.error_p99,
    )


def _cells(*values_s: float | None) -> str:
    """Format durations in one unit, as cells of a table; errors may be negative."""
    texts = format_durations(None if each is None else abs(each) for each in values_s)
    return "".join(
        f"{'-' if value is not None and value < 0 else ''}{text.strip()}".rjust(12)
        for value, text in zip(values_s, texts, strict=True)
    )
