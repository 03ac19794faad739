"""``inferwatch demo --json``: the whole program, once, end to end on real vLLM."""

import json
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.readings import Tick
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.sessions.sessions import find
from tests.program.conftest import HeadlessDemo

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("headless demo")]

FEW = 10
"""On a busy machine not many finish in its twelve seconds."""
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2el_s", "queue_s")


@pytest.fixture(scope="module")
def summary(headless_demo: HeadlessDemo) -> dict[str, Any]:
    done = headless_demo.done
    assert done.returncode == 1, done.stderr  # its SLO is missed
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def test_it_prints_one_json_object_and_progress_elsewhere(
    headless_demo: HeadlessDemo, summary: dict[str, Any]
) -> None:
    assert summary["session_id"]
    assert "tok/s" in headless_demo.done.stderr


def test_it_leaves_no_process(headless_demo: HeadlessDemo) -> None:
    assert headless_demo.engines == []


def test_requests_finish_and_none_fails(summary: dict[str, Any]) -> None:
    assert summary["requests"]["finished"] > FEW
    assert summary["requests"]["failed"] == 0


@pytest.mark.parametrize("metric", LATENCIES)
def test_each_latency_has_ordered_percentiles(
    summary: dict[str, Any], metric: str
) -> None:
    row = summary[metric]

    assert row["n"] > FEW
    assert 0 <= row["p50"] <= row["p90"] <= row["p95"] <= row["p99"] <= row["max"]
    assert row["vantage"] in {"frontend", "engine"}


def test_a_percentile_of_too_few_requests_is_called_weak(
    summary: dict[str, Any],
) -> None:
    assert ("p99" in summary["ttft_s"]["weak"]) == (summary["ttft_s"]["n"] < 1000)


def test_nothing_is_lost_and_our_own_cost_is_told(summary: dict[str, Any]) -> None:
    assert summary["dropped_readings"] == 0
    assert summary["unrecorded_readings"] == 0
    assert summary["self_cpu_s"] > 0


def test_shares_by_bound_sum_to_one(summary: dict[str, Any]) -> None:
    assert sum(summary["steps"]["share_by_bound"].values()) == pytest.approx(1)


async def snapshots_of(database: Path, session: str) -> list[Snapshot]:
    """What the screens would show at every tick of a replay."""
    model, seen = Model(), []
    async for batch in RecordedReadings(database, session).batches():
        for reading in batch:
            model.fold(reading)
            if isinstance(reading, Tick):
                seen.append(model.snapshot(reading.t_ns, SnapshotQuery(Window.MINUTE)))
    return seen


async def test_the_recorded_session_shows_the_same_requests(
    headless_demo: HeadlessDemo, summary: dict[str, Any]
) -> None:
    database = headless_demo.home / "sessions.db"
    session = find(database, summary["session_id"])

    *_, last = await snapshots_of(database, session.id)

    finished = [row for row in last.requests if row.reason in {"stop", "length"}]
    assert len(finished) >= summary["requests"]["finished"]
    assert last.engines[0].model
