"""Real vLLM at two settings, sent the same: compare tells which is worse, in what."""

from pathlib import Path

import pytest

from collectors.probe.limit_control import LimitControl
from embedded_engine.engine.launch import Engine
from inferwatch.loadgen.plan.lengths import Range
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.studies.compare.comparison import SessionPair
from inferwatch.studies.compare.reading.span import SpanChoice
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from inferwatch.studies.compare.verdicts import MetricVerdict
from tests.program.compare_runs import (
    Setting,
    record_both,
    record_of,
    short_answers,
)

pytestmark = pytest.mark.engine

ROOMY, TIGHT = 32, 4
SHARE, REQUESTS = 0.25, 560
"""Of the load: it wants more than TIGHT at once now and then, and p99 are judged."""
TRIES = 2
WORSE = {MetricVerdict.WORSE, MetricVerdict.PROBABLY_WORSE}
QUEUE = {"queue_mean_s", "queue_p90_s", "queue_p99_s"}
TTFT = {
    f"{where}ttft_{which}_s" for where in ("", "client.") for which in ("p50", "p99")
}


def compared(
    database: Path, *names: str, choice: SpanChoice | None = None
) -> SessionPair:
    """The second session against the first."""
    choices = () if choice is None else (choice, choice)
    wanted = ComparisonRequest(database=database, sessions=names, choices=choices)
    return run_comparison(wanted).pairs[0]


async def started_and_compared(database: Path, number: int) -> SessionPair:
    """Fewer at once against more."""
    roomy = Setting(name=f"roomy-{number}", at_once=ROOMY)
    tight = Setting(name=f"tight-{number}", at_once=TIGHT)
    await record_both(database, roomy, tight, short_answers(SHARE, REQUESTS))
    return compared(database, roomy.name, tight.name)


def worse(pair: SessionPair) -> set[str]:
    """Metrics, surely or probably."""
    return {each.metric.key for each in pair.results if each.verdict in WORSE}


@pytest.mark.xdist_group("shared engine")
@pytest.mark.soak
async def test_two_at_once_are_worse_in_ttft_and_queue(
    engine: Engine, tmp_path: Path
) -> None:
    """A tenth of what they take is more than any noise: a short run will do."""
    path = tmp_path / "sessions.db"
    many = LoadPlan(
        run_id="",
        model="",
        seed=5,
        rate_per_s=20.0,
        warmup_s=0.0,
        output_tokens=Range(16, 48),
        requests=60,
    )
    await record_of(engine, path, "roomy", many)
    control = await LimitControl.open(engine.engine_id, by="a test")
    await control.set(max_num_seqs=2)
    try:
        await record_of(engine, path, "tight", many)
    finally:
        await control.reset()
        await control.close()

    # The engine is warm: what a busy machine does is not a warm-up, and cuts nothing.
    pair = compared(path, "roomy", "tight", choice=SpanChoice(warmup_s=0.0))

    assert pair.pairing is not None
    assert pair.pairing.requests >= 0.95 * pair.pairing.of
    told = [(e.metric.key, str(e.verdict), e.why) for e in pair.results]
    assert worse(pair) & QUEUE, told
    assert worse(pair) & TTFT, told
    better = {each.metric.key for each in pair.of(MetricVerdict.BETTER)}
    assert not better & (QUEUE | TTFT)


@pytest.mark.soak
@pytest.mark.timing
@pytest.mark.timeout(900)
async def test_fewer_at_once_are_worse_in_ttft_and_queue_and_better_in_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small and busy machine may be too slow for its own load: it is asked twice."""
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    told = []
    for number in range(TRIES):
        pair = await started_and_compared(tmp_path / "sessions.db", number)

        assert pair.pairing is not None
        assert pair.pairing.requests >= 0.95 * pair.pairing.of
        better = pair.of(MetricVerdict.BETTER)
        slower = worse(pair) & {"ttft_p99_s", "client.ttft_p99_s"}
        if worse(pair) & QUEUE and slower and not better:
            return
        told.append([(e.metric.key, str(e.verdict), e.why) for e in pair.results])
    pytest.fail(f"not told: {told}")
