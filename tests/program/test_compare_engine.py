"""Real vLLM at two settings, sent the same: compare tells which is worse, in what.

And what a load is told by an engine that tells nothing but its counters.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from collectors.probe.limit_control import LimitControl
from embedded_engine.config import demo_config
from embedded_engine.launch import Engine
from embedded_engine.probe_settings import ProbeSettings
from inferwatch.cli.main import inferwatch
from inferwatch.compare.comparison import SessionPair
from inferwatch.compare.runs.selection import ComparisonRequest, run_comparison
from inferwatch.compare.verdicts import MetricVerdict
from inferwatch.loadgen.plan.lengths import Range
from inferwatch.loadgen.plan.plan import LoadPlan
from tests.conftest import living_in
from tests.program.compare_runs import (
    Setting,
    record_both,
    record_of,
    short_answers,
    the_same,
)

pytestmark = pytest.mark.engine

FRESH = pytest.mark.xdist_group("fresh engine")
ROOMY, TIGHT = 32, 4
SHARE, REQUESTS = 0.25, 560
"""Of the load: it wants more than TIGHT at once now and then, and p99 are judged."""
TRIES = 2
WORSE = {MetricVerdict.WORSE, MetricVerdict.PROBABLY_WORSE}
QUEUE = {"queue_mean_s", "queue_p90_s", "queue_p99_s"}
TTFT = {
    f"{where}ttft_{which}_s" for where in ("", "client.") for which in ("p50", "p99")
}


def compared(database: Path, *names: str) -> SessionPair:
    """The second session against the first."""
    wanted = ComparisonRequest(database=database, sessions=names)
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


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fresh engine's."""
    return tmp_path_factory.mktemp("fresh")


@pytest.fixture(scope="module")
def fresh_engine(home: Path) -> Iterator[Engine]:
    """What a session adopts it is told the past of, and the trace of that is all of it.

    So this is not the shared one, which many have asked before.
    """
    with living_in(home):
        config = demo_config(ProbeSettings(control=True))
        engine = asyncio.run(Engine.start(config, lambda _: None))
        engine.file.write()
    yield engine
    with living_in(home):
        asyncio.run(engine.stop())


@FRESH
async def test_two_at_once_are_worse_in_ttft_and_queue(
    fresh_engine: Engine, home: Path, tmp_path: Path
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
    with living_in(home):
        await record_of(fresh_engine, path, "roomy", many)
        control = await LimitControl.open(fresh_engine.engine_id, by="a test")
        await control.set(max_num_seqs=2)
        try:
            await record_of(fresh_engine, path, "tight", the_same(path, "roomy"))
        finally:
            await control.reset()
            await control.close()

    pair = compared(path, "roomy", "tight")

    assert pair.pairing is not None
    assert pair.pairing.requests >= 0.95 * pair.pairing.of
    told = [(e.metric.key, str(e.verdict), e.why) for e in pair.results]
    assert worse(pair) & QUEUE, told
    assert worse(pair) & TTFT, told
    better = {each.metric.key for each in pair.of(MetricVerdict.BETTER)}
    assert not better & (QUEUE | TTFT)


@FRESH
def test_a_server_that_tells_nothing_else_is_checked_by_its_counters(
    fresh_engine: Engine,
) -> None:
    flags = ("--concurrency", "1", "--requests", "20", "--output-tokens", "16")

    run = CliRunner().invoke(
        inferwatch, ["load", str(fresh_engine.url), "--json", "--no-record", *flags]
    )

    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    check = found["cross_check"]
    assert found["server"] is None  # its probe is not to be seen from here
    assert (check["source"], check["n"]) == ("metrics", 20)
    assert check["parts"]["prefill_s"] > 0
    assert 0 < check["unexplained_s"] < found["ttft_s"]["mean"]
    share = check["unexplained_s"] / found["ttft_s"]["mean"]
    assert bool(check["disagreements"]) == (share > 0.02)


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
