"""The headless summary: its keys are a contract, its text is for people."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from collectors.readings import (
    BoundBy,
    EngineInfo,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
)
from inferwatch.metrics.snapshot import Snapshot, Window
from inferwatch.reports.summary import share, summarise, summary_text

See = Callable[..., Snapshot]
Make = Callable[..., Any]
MS = 1_000_000

INFO = EngineInfo(
    source="engine-1",
    t_ns=0,
    pid=1,
    model="tiny",
    vllm_version="0.32.0",
    device="cpu",
    num_kv_blocks=200,
)


@pytest.fixture
def session(see: See, make_life: Make, make_step: Make) -> Snapshot:
    """Twenty requests, one after the other, then some waiting for blocks."""
    lives = [make_life(100 * n, ordinal=n, tokens=4) for n in range(20)]
    readings = [each for front, engine in lives for each in (*front, *engine)]
    bound = [
        make_step(
            2_000 + 10 * n, {99: 1}, waiting=1, bound_by=BoundBy.KV, kv_used_blocks=150
        )
        for n in range(20)
    ]
    sent = RequestRecord(
        source="load",
        index=0,
        external_id="a",
        phase=Phase.STEADY,
        intended_ns=0,
        sent_ns=0,
        first_token_ns=12 * MS,
        last_token_ns=42 * MS,
        end_ns=43 * MS,
        output_tokens=4,
    )
    return see([INFO, *readings, *bound, sent], 4_000, Window.SESSION)


def test_the_keys_are_those_of_the_contract(session: Snapshot) -> None:
    summary = summarise(session, "s1")

    assert summary.keys() == {
        "session_id",
        "window_s",
        "engine",
        "requests",
        "ttft_s",
        "tpot_s",
        "itl_s",
        "e2el_s",
        "queue_s",
        "steps",
        "output_tokens_per_s",
        "prompt_tokens_per_s",
        "kv_peak_usage",
        "kv_peak_blocks",
        "preemptions",
        "dropped_readings",
        "unrecorded_readings",
        "self_cpu_s",
        "client",
        "load_runs",
    }
    assert summary["itl_s"].keys() == {
        "n",
        "mean",
        "p50",
        "p90",
        "p95",
        "p99",
        "max",
        "vantage",
        "weak",
    }
    assert summary["steps"].keys() == {
        "count",
        "batch_mean",
        "batch_max",
        "duration_s",
        "share_by_bound",
        "steps_by_bound",
    }


def test_the_numbers_survive_json(session: Snapshot) -> None:
    summary = json.loads(json.dumps(summarise(session, "s1")))

    assert summary["session_id"] == "s1"
    assert summary["engine"]["model"] == "tiny"
    assert summary["engine"]["engine_id"] == "engine-1"
    assert summary["requests"] == {
        "finished": 20,
        "failed": 0,
        "aborted": 0,
        "running": 1,
        "waiting": 1,
    }
    assert summary["ttft_s"]["mean"] == pytest.approx(0.011)
    assert summary["ttft_s"]["vantage"] == "frontend"
    assert summary["ttft_s"]["weak"] == ["p90", "p95", "p99"]
    assert summary["steps"]["share_by_bound"]["kv"] == pytest.approx(0.2)
    assert summary["steps"]["steps_by_bound"]["kv"] == 20
    assert summary["output_tokens_per_s"] == pytest.approx(25)
    assert (summary["kv_peak_blocks"], summary["kv_peak_usage"]) == (150, 0.75)
    assert summary["client"]["ttft_s"]["mean"] == pytest.approx(0.012)
    assert summary["client"]["ttft_s"]["vantage"] == "client"
    assert summary["window_s"] == 4


def test_each_load_run_has_rows_of_its_own(see: See) -> None:
    def record(source: str, ttft_ms: int) -> RequestRecord:
        return RequestRecord(
            source=source,
            index=0,
            external_id=f"{source}-0",
            phase=Phase.STEADY,
            intended_ns=0,
            sent_ns=0,
            first_token_ns=ttft_ms * MS,
            last_token_ns=(ttft_ms + 5) * MS,
            end_ns=(ttft_ms + 5) * MS,
            output_tokens=2,
        )

    def started(source: str) -> LoadEvent:
        return LoadEvent(source=source, t_ns=1, kind=LoadKind.STARTED)

    readings = [started("a"), record("a", 10), started("b"), record("b", 90)]

    summary = summarise(see(readings, 4_000, Window.SESSION), "s1")

    runs = summary["load_runs"]
    assert [run["run_id"] for run in runs] == ["a", "b"]
    assert [run["ttft_s"]["n"] for run in runs] == [1, 1]
    assert [run["ttft_s"]["p50"] for run in runs] == pytest.approx([0.01, 0.09])
    assert [run["sent"] for run in runs] == [1, 1]
    assert summary["client"]["ttft_s"] == runs[1]["ttft_s"]
    text = summary_text(summary)
    assert "load 1, a: 1 sent, 1 done" in text
    assert text.count("client clock") == 2


def test_the_recorder_knows_best_what_it_missed(session: Snapshot) -> None:
    @dataclass
    class Record:
        unrecorded: int = 3

    assert summarise(session, "s1")["unrecorded_readings"] == 0
    assert summarise(session, "s1", Record())["unrecorded_readings"] == 3


def test_the_text_is_a_table_for_people(session: Snapshot) -> None:
    assert summary_text(summarise(session, "s1")).splitlines() == [
        "tiny · vLLM 0.32.0 · cpu",
        "4.0 s watched · session s1",
        "",
        "requests       20 finished      0 failed      0 aborted",
        "tokens/s     25.0 out   0.00 prompt",
        "steps         100    1.00 batch, mean      1 at most",
        "bound by     kv 20% of the time",
        "KV peak       75%    150 blocks      0 preemptions",
        "",
        "server clock      mean      p50      p90      p95      p99      max        n",
        "TTFT      ms      11.0     11.0    ~11.0    ~11.0    ~11.0     11.0       20",
        "TPOT      ms      10.0     10.0    ~10.0    ~10.0    ~10.0     10.0       20",
        "ITL       ms      10.0     10.0    ~10.0    ~10.0    ~10.0     10.0       79",
        "E2EL      ms      41.0     41.0    ~41.0    ~41.0    ~41.0     41.0       20",
        "queue     ms      2.00     2.00    ~2.00    ~2.00    ~2.00     2.00       20",
        "step      ms      10.0     10.0     10.0    ~10.0    ~10.0     10.0      100",
        "",
        "client clock      mean      p50      p90      p95      p99      max        n",
        "TTFT      ms      12.0    ~12.0    ~12.0    ~12.0    ~12.0     12.0        1",
        "TPOT      ms      10.0    ~10.0    ~10.0    ~10.0    ~10.0     10.0        1",
        "ITL                  –        –        –        –        –        –        0",
        "E2EL      ms      42.0    ~42.0    ~42.0    ~42.0    ~42.0     42.0        1",
        "",
        "client not judged",
        "",
        "0 readings lost, 0 unrecorded · inferwatch used – CPU",
        "~ fewer samples than the percentile needs: 10/(1-p)",
    ]


def test_the_text_of_nothing_says_so(see: See) -> None:
    text = summary_text(summarise(see([], 0, Window.SESSION), None))

    assert text.startswith("no engine\n0.0 s watched · not recorded\n")
    assert "bound by     nothing" in text
    assert "client clock" not in text


def test_a_share_of_the_unknown_is_unknown() -> None:
    assert share(None, 5) is share(5, None) is None
    assert share(0, 5) == 0
