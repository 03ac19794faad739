"""Real vLLM at two settings, sent the same: compare tells which is worse, and in what.

A small and busy machine may be too slow for its own load generator; then it is asked
once more.
"""

from pathlib import Path

import pytest

from inferwatch.compare.comparison import SessionPair
from inferwatch.compare.runs.selection import ComparisonRequest, run_comparison
from inferwatch.compare.verdicts import MetricVerdict
from tests.program.compare_runs import Setting, record_both, short_answers

pytestmark = [pytest.mark.engine, pytest.mark.timing, pytest.mark.timeout(900)]

ROOMY, TIGHT = 32, 4
SHARE, REQUESTS = 0.25, 560
"""Of the load: it wants more than TIGHT at once now and then, and p99 are judged."""
TRIES = 2
WORSE = {MetricVerdict.WORSE, MetricVerdict.PROBABLY_WORSE}
QUEUE = {"queue_mean_s", "queue_p90_s", "queue_p99_s"}
TTFT = {"ttft_p99_s", "client.ttft_p99_s"}


async def compared(database: Path, number: int) -> SessionPair:
    """Fewer at once against more."""
    roomy = Setting(name=f"roomy-{number}", at_once=ROOMY)
    tight = Setting(name=f"tight-{number}", at_once=TIGHT)
    await record_both(database, roomy, tight, short_answers(SHARE, REQUESTS))
    wanted = ComparisonRequest(database=database, sessions=(roomy.name, tight.name))
    return run_comparison(wanted).pairs[0]


def worse(pair: SessionPair) -> set[str]:
    """Metrics, surely or probably."""
    return {each.metric.key for each in pair.results if each.verdict in WORSE}


async def test_fewer_at_once_are_worse_in_ttft_and_queue_and_better_in_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    told = []
    for number in range(TRIES):
        pair = await compared(tmp_path / "sessions.db", number)

        assert pair.pairing is not None
        assert pair.pairing.requests >= 0.95 * pair.pairing.of
        better = pair.of(MetricVerdict.BETTER)
        if worse(pair) & QUEUE and worse(pair) & TTFT and not better:
            return
        told.append([(e.metric.key, str(e.verdict), e.why) for e in pair.results])
    pytest.fail(f"not told: {told}")
