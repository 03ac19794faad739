"""How far a load run is, on stderr."""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from inferwatch.cli.say import say, say_no_more, say_now
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.snapshot import Window
from inferwatch.session.load_session import LoadSession

BAR_CELLS = 24
LIVE_S, LINES_S = 0.25, 5.0
"""One line that changes on a terminal, a line now and then elsewhere."""


@contextmanager
def shown_progress(session: LoadSession, plan: LoadPlan) -> Iterator[None]:
    """For as long as the context lasts."""
    live = sys.stderr.isatty()
    task = asyncio.create_task(_show(session, plan, live=live))
    try:
        yield
    finally:
        task.cancel()
        if live:
            say_no_more()


async def _show(session: LoadSession, plan: LoadPlan, *, live: bool) -> None:
    began_s = time.monotonic()
    while True:
        await asyncio.sleep(LIVE_S if live else LINES_S)
        elapsed_s = time.monotonic() - began_s
        client = session.snapshot(window=Window.SESSION).client
        run = client.run if client else None
        ours = run if run and run.run_id == plan.run_id else None
        counts = (ours.succeeded, ours.failed) if ours else (0, 0)
        text = _line(plan, counts, elapsed_s)
        if live:
            say_now(text)
        else:
            say(text, err=True)


def _line(plan: LoadPlan, ended: tuple[int, int], elapsed_s: float) -> str:
    """A bar where there is an end, then counts: of this run, not of all in a search."""
    counts = "{:,} ok  {:,} failed".format(*ended)
    done = _done(plan, sum(ended), elapsed_s)
    if done is None:
        return f"{elapsed_s:6.0f} s  {counts}"
    filled = round(min(done, 1.0) * BAR_CELLS)
    bar = "━" * filled + "╌" * (BAR_CELLS - filled)
    return f"{bar} {elapsed_s:4.0f} s  {counts}"


def _done(plan: LoadPlan, ended: int, elapsed_s: float) -> float | None:
    if plan.trace or plan.requests is not None:
        asked = len(plan.trace) or (plan.requests or 1) * plan.turns.mean
        return ended / asked
    if plan.duration_s is not None:
        return elapsed_s / (plan.warmup_s + plan.duration_s)
    return None
