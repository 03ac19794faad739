"""A watch that has ended and its record tell the same of it."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import Step
from inferwatch.cli.running.replay import summary_of
from inferwatch.loadgen.plan.lengths import fixed
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.printing.summary.session import summarise

PLAN = LoadPlan(
    run_id="as-typed",
    model="as-typed",
    url="http://as.typed",
    rate_per_s=50.0,
    warmup_s=0.0,
    prompt_tokens=fixed(12),
    output_tokens=fixed(400),
)


async def test_what_was_cut_off_by_the_end_is_in_both_summaries(
    truth_url: str,
    watching: Callable[..., Any],
    until: Callable[..., Awaitable[None]],
    make_step: Callable[..., Step],
    tmp_path: Path,
) -> None:
    async with watching(truth_url) as run:
        await until(run.watch.live.is_set)
        run.watch._session.take(make_step(monotonic_ns() / 1e6, {1: 1}))
        await run.desk.start(msgspec.structs.replace(PLAN))
        await until(lambda: sent(run) > 5)
    live = summarise(run.watch.whole(), run.watch.record.session_id)

    recorded = summary_of(tmp_path / "sessions.db", "last")

    assert recorded == live
    assert live["window_s"] > 0
    assert live["client"]["aborted"] > 5
    assert live["client"]["failed"] == live["requests"]["failed"] == 0


def sent(run: Any) -> int:
    client = run.watch.snapshot(SnapshotQuery(Window.SESSION, client=True)).client
    running = client.run if client else None
    return running.sent if running else 0
