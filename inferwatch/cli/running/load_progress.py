"""The progress of a load run, and the curve of a search, on stderr."""

import asyncio
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import plotext

from inferwatch.cli.say import say, say_no_more, say_now, say_over
from inferwatch.formatting import format_duration, format_rate
from inferwatch.live.load.load_points import PointRun
from inferwatch.live.load.load_session import LoadSession
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.view import LoadRun, RunState
from inferwatch.metrics.series.window import Window

BAR_CELLS = 16
LIVE_S, LINES_S = 0.25, 5.0
"""Intervals of a changing line on a terminal, and of lines elsewhere."""


@contextmanager
def shown_progress(
    session: LoadSession, plan: LoadPlan, which: str = ""
) -> Iterator[None]:
    """Show a run's progress while the context lasts; ``which`` names the run."""
    live = sys.stderr.isatty()
    task = asyncio.create_task(_show(session, plan, which, live=live))
    try:
        yield
    finally:
        task.cancel()
        if live:
            say_no_more()


async def _show(
    session: LoadSession, plan: LoadPlan, which: str, *, live: bool
) -> None:
    began_s = time.monotonic()
    while True:
        await asyncio.sleep(LIVE_S if live else LINES_S)
        elapsed_s = time.monotonic() - began_s
        client = session.snapshot(window=Window.SESSION).client
        run = client.run if client else None
        ours = client if run and run.run_id == plan.run_id else None
        text = which + progress_line(plan, ours or ClientView(), elapsed_s)
        if live:
            say_now(text)
        else:
            say(text, err=True)


def progress_line(plan: LoadPlan, view: ClientView, elapsed_s: float) -> str:
    """Return a line: a bar if the run has an end, the rate sent, TTFT, and failures."""
    run = view.run or LoadRun(run_id=plan.run_id, state=RunState.STARTING)
    ttft = [row.quantiles for row in view.latencies if row.metric == "ttft_s"]
    waits = format_duration(ttft[0].p50 if ttft else None).strip()
    facts = (
        f"{format_rate(view.achieved_per_s).strip()}/s",
        f"TTFT p50 {waits}",
        f"{run.succeeded:,} done",
        f"{run.failed:,} failed",
    )
    text = "  ".join(facts)
    done = _done(plan, run.succeeded + run.failed, elapsed_s)
    if done is None:
        return f"{elapsed_s:6.0f} s  {text}"
    filled = round(min(done, 1.0) * BAR_CELLS)
    bar = "━" * filled + "╌" * (BAR_CELLS - filled)
    return f"{bar} {elapsed_s:4.0f} s  {text}"


def _done(plan: LoadPlan, ended: int, elapsed_s: float) -> float | None:
    if plan.trace or plan.requests is not None:
        expected = len(plan.trace) or (plan.requests or 1) * plan.turns.mean
        return ended / expected
    if plan.duration_s is not None:
        return elapsed_s / (plan.warmup_s + plan.duration_s)
    return None


# The curve of a search or sweep.

ROWS = 12
LEAST_COLUMNS, MOST_COLUMNS = 50, 100
LEAST_LINES = 20
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class PointPrinter:
    """Prints each point of a search at once, and on a terminal the curve of all."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._rows = 0

    def head(self, line: str) -> None:
        """Print the column headings, before the first point."""
        say(line, err=True)

    def tell(self, line: str, runs: Sequence[PointRun]) -> None:
        """Print the line of a run; on a terminal, redraw the chart of all runs."""
        if not self._live:
            say(line, err=True)
            return
        columns, lines = shutil.get_terminal_size()
        picture = draw(runs, columns) if lines >= LEAST_LINES else []
        say_over(self._rows, "\n".join([line, *picture]))
        self._rows = len(picture)


def draw(runs: Sequence[PointRun], columns: int) -> list[str]:
    """Return a chart of results by load; empty for too few runs or columns."""
    if columns < LEAST_COLUMNS or len({_load_of(run) for run in runs}) < 2:
        return []
    judged = all(run.result.goodput is not None for run in runs)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(min(columns, MOST_COLUMNS), ROWS)
    left = "good requests/s" if judged else "tokens/s"
    _plot(runs, _good_per_s if judged else _tokens_per_s, "o", f"{left} (left)")
    _plot(runs, _ttft_ms, "x", "TTFT p99, ms (right)", yside="right")
    plotext.xlabel("users" if runs[0].plan.rate_per_s is None else "requests/s asked")
    built: str = plotext.build()
    return [row.rstrip() for row in _STYLE.sub("", built).splitlines()]


def _plot(
    runs: Sequence[PointRun],
    value: Callable[[PointRun], float | None],
    marker: str,
    label: str,
    yside: str = "left",
) -> None:
    points = sorted((_load_of(run), y) for run in runs if (y := value(run)) is not None)
    if points:
        loads, values = zip(*points, strict=True)
        plotext.plot(loads, values, marker=marker, label=label, yside=yside)


def _load_of(run: PointRun) -> float:
    rate = run.plan.rate_per_s
    return float(run.plan.concurrency) if rate is None else rate


def _good_per_s(run: PointRun) -> float | None:
    return run.result.goodput.good_per_s if run.result.goodput else None


def _tokens_per_s(run: PointRun) -> float | None:
    return run.result.tokens_per_s


def _ttft_ms(run: PointRun) -> float | None:
    p99 = run.result.latencies["ttft_s"].quantiles.p99
    return None if p99 is None else p99 * 1000
