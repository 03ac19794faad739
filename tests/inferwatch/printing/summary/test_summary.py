"""The headless summary: its keys are a contract, its text is for people."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from collectors.contract.readings import (
    AnyReading,
    BoundBy,
    EngineInfo,
    LoadEvent,
    LoadKind,
    Phase,
    RequestRecord,
    ServerInfo,
    Vantage,
    WatchedSlo,
)
from inferwatch.metrics.cache.prefix_cache import PrefixCache
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.speculation import speculation
from inferwatch.printing.summary.session import share, summarise, summary_text
from tests.inferwatch.metrics.scraped_servers import Served, contact
from tests.inferwatch.metrics.scraped_servers import see as see_servers
from tests.inferwatch.metrics.scripted_live_limits import live

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
        "live_limits",
        "requests",
        "refused",
        "stacks",
        "startup",
        "findings",
        "verdict",
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
        "via",
        "servers",
        "advice",
        "prefix_cache",
        "speculation",
        "slowest",
        "slow_requests",
        "request_groups",
        "memory",
        "block_maps",
        "batch_curve",
        "stalls",
        "hardware",
        "gpus",
        "hosts",
        "slo",
        "spending",
        "breakdown",
        "limits",
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
        "share_by_deferral",
        "gap_share",
        "share_by_graph",
        "padded_share",
    }


def test_the_numbers_survive_json(session: Snapshot) -> None:
    summary = json.loads(json.dumps(summarise(session, "s1")))

    assert summary["session_id"] == "s1"
    assert summary["engine"]["model"] == "tiny"
    assert summary["engine"]["engine_id"] == "engine-1"
    assert summary["requests"] == {
        "finished": 20,
        "finished_as_sent": 20,
        "failed": 0,
        "refused": None,
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


def test_limits_of_ours_are_told(see: See) -> None:
    lowered = live(5, max_num_seqs=4)

    summary = json.loads(json.dumps(summarise(see([INFO, lowered], 9), "s1")))

    assert summary["live_limits"] == [
        {
            "engine_id": "engine-1",
            "rank": 0,
            "version": 1,
            "change": "set",
            "max_num_seqs": 4,
            "max_num_batched_tokens": 512,
            "start_max_num_seqs": 12,
            "start_max_num_batched_tokens": 512,
            "in_force": True,
            "by": "ada (pid 4)",
            "kept": False,
            "fixed": {},
            "since_s": 5e-9,
        }
    ]
    assert summary["engine"]["max_num_seqs"] == 4
    text = summary_text(summary)
    assert "limits       max_num_seqs 4 of 12, by ada (pid 4)\n" in text
    as_started = summary_text(summarise(see([INFO, live(5)], 9), "s1"))
    assert "limits  " not in as_started


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
        "bound by     KV blocks 20% of the time",
        "KV peak       75%    150 blocks      0 preemptions",
        "slowest      64% of the slowest TTFT is prefill of its own prompt",
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
    assert "bound by     –" in text
    assert "client clock" not in text


def test_a_share_of_the_unknown_is_unknown() -> None:
    assert share(None, 5) is share(5, None) is None
    assert share(0, 5) == 0


@pytest.fixture
def scraped() -> Snapshot:
    """Ten seconds of two servers that are only scraped."""
    servers = [Served("a:1"), Served("b:1")]
    readings: list[AnyReading] = [WatchedSlo(t_ns=0, slo="ttft_s<0.3")]
    for each in servers:
        info = ServerInfo(
            source=each.source,
            t_ns=0,
            name=each.source,
            family="vllm",
            version="0.32.0",
            models=["tiny"],
            advice=["exact percentiles: start it with a flag"],
        )
        readings += [info, contact(0, each.source)]
    for second in range(11):
        for server in servers:
            readings.append(server.at(second, running=2, kv_usage=0.5))
            server.request(ttft_s=0.26, itl_s=0.003, tokens=5)
    readings.append(contact(10, "b:1", answers=False, why="timed out"))
    return see_servers(readings, 10, Window.SESSION)


def test_scraped_latencies_are_told_as_brackets(scraped: Snapshot) -> None:
    summary = json.loads(json.dumps(summarise(scraped, None)))

    ttft = summary["ttft_s"]
    assert (ttft["n"], ttft["vantage"]) == (20, "scrape")
    assert ttft["mean"] == pytest.approx(0.26)
    assert ttft["p50"] is ttft["p99"] is None
    assert ttft["brackets"]["p50"] == [0.25, 0.5]
    assert ttft["brackets"]["max"] == [0.25, 0.5]
    assert (ttft["objective_s"], ttft["met"]) == (0.3, [0.0, 1.0])
    assert "met" not in summary["itl_s"]
    assert summary["engine"] is None
    assert summary["via"] == "scrape"
    assert summary["kv_peak_usage"] == 0.5


def test_what_only_a_server_counts_is_there_where_one_counts_it(
    scraped: Snapshot,
) -> None:
    counts = ServerCounts(
        pools=(("KV full", 0.4), ("KV window", 0.9)),
        hit_rates=(("external prefix cache", 0.25, 200),),
        block_lifetime_s=next(
            each for each in scraped.latencies if each.metric == "ttft_s"
        ),
    )

    without = summarise(scraped, None)
    summary = summarise(replace(scraped, server_counts=counts), None)

    assert "server_counts" not in without
    told = json.loads(json.dumps(summary))["server_counts"]
    assert told["pools"] == {"KV full": 0.4, "KV window": 0.9}
    assert told["hit_rates"]["external prefix cache"]["queries"] == 200
    assert told["ttft_s"]["vantage"] == "scrape"


def test_each_server_has_a_row_with_its_own_numbers(scraped: Snapshot) -> None:
    one, other = json.loads(json.dumps(summarise(scraped, None)))["servers"]

    assert (one["source"], one["via"], one["answers"]) == ("a:1", "scrape", True)
    assert (one["family"], one["version"], one["models"]) == (
        "vllm",
        "0.32.0",
        ["tiny"],
    )
    assert one["running"] == 2
    assert one["output_tokens_per_s"] == pytest.approx(5)
    assert one["ttft_s"]["n"] == 10
    assert one["ttft_s"]["brackets"]["p99"] == [0.25, 0.5]
    assert (other["answers"], other["why"]) == (False, "timed out")
    assert other["age_s"] == 0


def test_the_text_tells_brackets_and_who_does_not_answer(scraped: Snapshot) -> None:
    text = summary_text(summarise(scraped, None)).splitlines()

    assert text[0] == "2 servers of tiny"
    assert max(map(len, text)) <= 80
    at = next(n for n, line in enumerate(text) if line.startswith("by buckets"))
    assert text[at].split()[2:] == ["mean", "p50", "p95", "p99", "n", "met"]
    assert text[at + 1 : at + 5] == [
        (
            "TTFT      ms       260    250–500   ~250–500   ~250–500      20"
            "  0–100% < 300 ms"
        ),
        "ITL       ms      3.00       0–10      ~0–10      ~0–10      80",
        "E2EL      ms       272      0–300     ~0–300     ~0–300      20",
        "queue     ms      1.00      0–300     ~0–300     ~0–300      20",
    ]
    assert "a:1                      2 running  0 waiting  KV 50%  5.00 tok/s" in text
    assert "b:1                      no answer: timed out" in text
    assert "→ exact percentiles: start it with a flag" in text
    assert not [line for line in text if line.startswith("server clock")]


def test_what_cache_events_tell_is_summed_up(session: Snapshot) -> None:
    assert summarise(session, "s1")["prefix_cache"] is None
    assert "KV events" not in summary_text(summarise(session, "s1"))

    cache = PrefixCache(blocks=7, stored=12, evicted=5, stored_again=2, deepest=3)
    summary = summarise(replace(session, prefix_cache=cache), "s1")

    told = json.loads(json.dumps(summary))["prefix_cache"]
    assert (told["blocks"], told["deepest"], told["partial"]) == (7, 3, False)
    assert told["lifetime_s"]["n"] == 0
    (line,) = [x for x in summary_text(summary).splitlines() if "KV events" in x]
    said = "7 blocks cached 12 stored 5 evicted 2 stored again"
    assert line.split()[2:] == said.split()


def test_speculation_is_one_object_and_one_line_where_it_is_on(
    session: Snapshot,
) -> None:
    told = speculation(
        vantage=Vantage.ENGINE,
        drafts=10,
        drafted_tokens=40,
        accepted_tokens=16,
        accepted_by_position=(8, 5, 3, 0),
        method="ngram",
        num_speculative_tokens=4,
    )

    summary = summarise(replace(session, speculation=told), "s1")

    assert json.loads(json.dumps(summary["speculation"])) == {
        "vantage": "engine",
        "method": "ngram",
        "num_speculative_tokens": 4,
        "drafts": 10,
        "drafted_tokens": 40,
        "accepted_tokens": 16,
        "wasted_tokens": 24,
        "acceptance": 0.4,
        "acceptance_length": 2.6,
        "accepted_by_position": [8, 5, 3, 0],
        "acceptance_by_position": [0.8, 0.5, 0.3, 0.0],
    }
    line = "40 tokens, 40% accepted, acceptance length 2.60, by position 80% 50% 30% 0%"
    assert line in summary_text(summary)
    assert "acceptance" not in summary_text(summarise(session, "s1"))
