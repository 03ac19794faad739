"""A server that is only scraped: what holds of a window, and what nobody can know."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    EngineSample,
    Histogram,
    Note,
    NoteKind,
    ServerInfo,
    Vantage,
    WatchedSlo,
)
from collectors.servers.exposition import Exposition
from collectors.servers.families.sglang import SGLANG
from collectors.servers.families.vllm import VLLM
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Bracket, Window
from inferwatch.metrics.servers.counted import Counted
from inferwatch.metrics.servers.server_state import Via
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.health import Health
from tests.collectors.http_server import SCRAPES
from tests.inferwatch.metrics.scraped_servers import (
    NAME,
    SECONDS,
    S,
    Served,
    contact,
    model_of,
    row,
    see,
    state_of,
)


def scrape(version: str, *, blank: bool, t_ns: int) -> EngineSample:
    """A recorded scrape of vLLM; blank: as if nothing had happened yet."""
    text = SCRAPES.joinpath(f"vllm_{version}.txt").read_text("utf-8")
    if blank:
        text = re.sub(r"^(vllm:.*) \S+$", r"\1 0.0", text, flags=re.MULTILINE)
    (sample,) = Exposition(VLLM).read(text, t_ns=t_ns, source=NAME).samples
    return sample


def test_a_real_vllm_counts_the_lives_of_its_blocks() -> None:
    then, now = (
        scrape("0.32.0", blank=True, t_ns=S),
        scrape("0.32.0", blank=False, t_ns=2 * S),
    )

    caches = see([then, now], 2).server_counts

    assert caches.block_lifetime_s is not None
    assert caches.block_lifetime_s.vantage is Vantage.SCRAPE
    assert caches.block_lifetime_s.quantiles.n == 18
    assert caches.block_idle_s is not None
    assert dict(caches.means)["prompt tokens computed"] == 626 / 24
    assert dict(caches.means)["preemptions"] == 0
    assert caches.hit_rates == ()  # nothing was looked up in other caches


def test_adapters_of_servers_are_told_as_the_engine_tells_them() -> None:
    readings = [
        msgspec.structs.replace(Served(source=source).at(t_s), others=others)
        for t_s in (1, 2)
        for source, others in (
            ("a", {"adapters": 2.0, "adapters_waiting": 1.0}),
            ("b", {"adapters": 1.0, "adapters_waiting": 0.0}),
            ("c", {}),
        )
    ]

    flow, plain = see(readings, 2).flow, see([Served().at(1)], 1).flow

    assert (flow.adapters, flow.adapters_waiting) == (3, 1)
    assert plain.adapters is None


def test_hits_of_other_caches_are_told_where_they_were_asked() -> None:
    readings = [
        msgspec.structs.replace(
            Served().at(t_s),
            others={
                "external_prefix_cache_queries": 100.0 * t_s,
                "external_prefix_cache_hits": 25.0 * t_s,
                "mm_cache_queries": 7.0,
                "mm_cache_hits": 7.0,
            },
        )
        for t_s in (1, 2, 3)
    ]

    caches = see(readings, 3).server_counts

    assert caches.hit_rates == (("external prefix cache", 0.25, 200),)


# Windows.


def test_what_was_counted_before_we_came_is_never_shown() -> None:
    server = Served()
    for _ in range(1_000):
        server.request(ttft_s=4.0)
    readings: list[AnyReading] = [server.at(1)]
    for _ in range(3):
        server.request(ttft_s=0.03)
    readings.append(server.at(2))

    for window in Window:
        seen = see(readings, 2, window)
        assert row(seen, "ttft_s").quantiles.n == seen.flow.finished == 3
        assert row(seen, "ttft_s").quantiles.mean == pytest.approx(0.03)
        assert row(seen, "ttft_s").vantage is Vantage.SCRAPE


def test_an_idle_window_shows_nothing_and_not_the_lifetime() -> None:
    server = Served()
    for _ in range(100):
        server.request(ttft_s=4.0)
    readings = [server.at(t_s) for t_s in range(30)]

    seen = see(readings, 29, Window.TEN_SECONDS)

    assert row(seen, "ttft_s").quantiles.n == 0
    assert row(seen, "ttft_s").quantiles.mean is None
    assert row(seen, "ttft_s").brackets.p99 is None  # type: ignore[union-attr]
    assert seen.flow.output_tokens_per_s == 0
    assert seen.verdict.health is Health.IDLE


def test_a_bad_moment_is_over_when_its_window_is() -> None:
    server, readings, shown = Served(), [], []
    model = Model()
    for second in range(60):
        if second in {11, 21, 51}:
            server.request(ttft_s=5.05 if second == 11 else 0.05)
        readings.append(server.at(second))
        model.fold(readings[-1])
        ttft = row(
            model.snapshot(second * S, SnapshotQuery(Window.TEN_SECONDS)), "ttft_s"
        ).quantiles
        shown.append(ttft.mean and round(ttft.mean, 3))

    assert shown[15] == 5.05
    assert shown[25] == 0.05
    assert shown[40] is None
    assert shown[55] == 0.05


@pytest.mark.parametrize("every_s", [1, 2, 5, 15])
def test_rates_are_over_what_was_watched_at_any_pace(every_s: int) -> None:
    server, readings = Served(), []
    for second in range(0, 121, every_s):
        readings.append(server.at(second, running=1))
        for _ in range(every_s):
            server.request(tokens=10)

    for window in Window:
        seen = see(readings, 120, window)
        assert seen.flow.output_tokens_per_s == pytest.approx(10)
        assert seen.flow.finished_per_s == pytest.approx(1)
        assert seen.flow.tokens_per_s_per_user == pytest.approx(100)
        assert seen.flow.prefix_hit_rate == pytest.approx(0.25)
        assert seen.flow.prefill_tokens_per_s == pytest.approx(75)  # of 100 asked
        assert 0 < seen.covered_ns <= 120 * S
        assert seen.covered_ns / S % every_s == 0


def test_one_sample_tells_gauges_and_no_rate() -> None:
    server = Served()
    server.request()

    seen = see([server.at(3, running=4, waiting=2, kv_usage=0.5)], 3)

    assert (seen.flow.running, seen.flow.waiting, seen.flow.kv_usage) == (4, 2, 0.5)
    assert seen.flow.output_tokens_per_s is None
    assert row(seen, "ttft_s").quantiles.n == 0


def test_an_answer_that_comes_late_changes_nothing() -> None:
    server = Served()
    samples = []
    for second in range(10):
        server.request()
        samples.append(server.at(second))
    late = [*samples[:6], samples[7], samples[6], *samples[8:]]
    without = [*samples[:6], *samples[7:]]

    assert see(late, 9) == see(without, 9)


def test_who_came_is_who_ended_and_who_is_there_more() -> None:
    server = Served()
    first = server.at(0, running=2, waiting=0)
    for _ in range(7):
        server.request()

    seen = see([first, server.at(10, running=4, waiting=1)], 10)

    assert seen.flow.arrivals_per_s == pytest.approx(1.0)  # 7 ended, 3 more are there


# The mistakes of others.


def test_gaps_of_three_and_of_six_milliseconds_do_not_look_alike() -> None:
    shown = []
    for gaps_ms in [(3.0, 3.1, 3.2, 3.3), (6.0, 6.2, 6.4, 6.6)]:
        server = Served()
        first = server.at(0)
        server.observe("itl_s", *[each / 1e3 for each in gaps_ms * 500])
        shown.append(row(see([first, server.at(1)], 1), "itl_s"))

    three, six = shown
    assert three.quantiles.mean == pytest.approx(0.00315)
    assert six.quantiles.mean == pytest.approx(0.0063)
    for each in shown:
        assert each.brackets is not None
        assert each.brackets.p50 == each.brackets.p99 == Bracket(low=0.0, high=0.01)
        assert each.quantiles.p50 is each.quantiles.p99 is None


def test_a_queue_of_a_millisecond_is_not_one_of_150() -> None:
    server = Served()
    first = server.at(0)
    for step in range(100):
        server.observe("queue_s", 0.0005 + step * 0.000025)

    shown = row(see([first, server.at(1)], 1), "queue_s")

    assert shown.quantiles.mean == pytest.approx(0.00174, abs=1e-5)
    assert shown.brackets is not None
    assert shown.brackets.p50 == Bracket(low=0.0, high=0.3)
    assert shown.brackets.p50.coarse
    assert shown.brackets.interpolated["p50"] == pytest.approx(0.15)


# Restarts and losses.


@pytest.mark.parametrize("told", [True, False], ids=["told", "seen"])
def test_a_restart_begins_anew_and_nothing_is_negative(told: bool) -> None:
    server = Served()
    readings: list[AnyReading] = []
    for second in range(20):
        if second == 10:
            server.restart()
            for _ in range(50):
                server.request(ttft_s=4.0)  # nobody knows when
            if told:
                readings.append(contact(10, restarted=True))
        server.request(ttft_s=0.05, tokens=10)
        readings.append(server.at(second))
    for window in Window:
        seen = see(readings, 19, window)
        ttft = row(seen, "ttft_s").quantiles
        assert (
            ttft.n
            == seen.flow.finished
            == (18 if window is not Window.TEN_SECONDS else 9)
        )
        assert ttft.mean == pytest.approx(0.05)
        assert seen.flow.output_tokens_per_s == pytest.approx(10)
        assert state_of(seen).restarted_ns == 10 * S
        assert seen.timeline.restarts_ns == (10 * S,)

    line = see(readings, 19, Window.MINUTE).timeline
    at = line.index_at(int(9.5 * S)) or 0
    assert line.output_tokens[at - 2] is not None
    assert line.output_tokens[at] is None
    assert line.output_tokens[at + 2] is not None


def test_a_restart_with_other_buckets_is_pooled_with_what_was() -> None:
    server = Served()
    readings: list[AnyReading] = [server.at(0)]
    server.request(ttft_s=0.03)
    readings.append(server.at(1))
    server.bounds["ttft_s"] = (0.05, 0.3)
    server.restart()
    readings.append(server.at(5))
    server.request(ttft_s=0.2)
    readings.append(server.at(6))

    shown = row(see(readings, 6), "ttft_s")

    assert shown.quantiles.n == 2
    assert shown.quantiles.mean == pytest.approx(0.115)
    assert shown.brackets is not None
    assert shown.brackets.p50 == Bracket(low=0.02, high=0.04)
    assert shown.brackets.max == Bracket(low=0.05, high=0.3)


def test_what_happened_while_it_did_not_answer_is_a_gap_and_is_not_lost() -> None:
    server = Served()
    readings: list[AnyReading] = [contact(0), server.at(0), server.at(1)]
    readings.append(contact(2, answers=False, why="connection refused"))
    for _ in range(8):
        server.request(tokens=10)
    readings += [contact(9), server.at(9), server.at(10)]

    seen = see(readings, 10)

    assert row(seen, "ttft_s").quantiles.n == 8
    middle = seen.timeline.index_at(5 * S) or 0
    assert seen.timeline.output_tokens[middle] is None
    assert seen.timeline.running_max[middle] is None


def test_a_server_that_is_lost_says_why_and_since_when() -> None:
    server = Served()
    readings: list[AnyReading] = [contact(0), server.at(0, running=3), server.at(1)]
    readings.append(contact(4, answers=False, why="connection refused"))

    seen = see(readings, 9)

    assert seen.verdict.health is Health.LOST
    assert seen.verdict.since_ns == seen.timeline.lost_ns == 4 * S
    assert "connection refused" in seen.verdict.sentence
    assert seen.flow.running is None
    assert state_of(seen).answers is False
    assert state_of(seen).last_ns == 1 * S
    assert state_of(seen).running == 3  # as of then


def test_the_window_of_a_lost_server_ends_with_its_last_reading() -> None:
    server, other = Served("a:1"), Served("b:1")
    readings: list[AnyReading] = [contact(0, "a:1"), server.at(0)]
    for second in range(1, 5):
        server.request(tokens=10)
        readings.append(server.at(second))
    readings.append(contact(5, "a:1", answers=False, why="connection refused"))

    alone = see(readings, 600, Window.TEN_SECONDS)
    beside = see([*readings, other.at(599)], 600, Window.TEN_SECONDS)

    assert row(alone, "ttft_s").quantiles.n == 4
    assert alone.flow.finished == 4
    assert beside.flow.finished == 0
    state = next(each for each in beside.servers if each.source == "a:1")
    assert next(n for n in state.latencies if n.metric == "ttft_s").quantiles.n == 4


def test_one_of_several_that_is_lost_stops_none_of_the_others() -> None:
    ours, gone = Served("a:1"), Served("b:1")
    readings: list[AnyReading] = []
    for second in range(20):
        ours.request(tokens=10)
        readings.append(ours.at(second, running=2))
        if second < 10:
            gone.request(tokens=10)
            readings.append(gone.at(second, running=5))
        if second == 10:
            readings.append(contact(10, "b:1", answers=False, why="timed out"))
            note = Note(source="b:1", t_ns=10 * S, kind=NoteKind.STOPPED, text="b")
            readings.append(note)

    seen = see(readings, 19, Window.TEN_SECONDS)

    assert seen.verdict.health is Health.HEALTHY
    assert "no answer from b:1" in seen.verdict.sentence
    assert seen.flow.running == 2
    assert seen.timeline.lost_ns is None
    assert seen.timeline.output_tokens[-12] is not None
    assert seen.flow.output_tokens_per_s == pytest.approx(10)
    readings.append(contact(20, "a:1", answers=False, why="timed out"))
    assert see(readings, 21).verdict.health is Health.LOST


# The verdict.


def busy(server: Served, seconds: range, **gauges: Any) -> list[AnyReading]:
    return [server.at(second, **gauges) for second in seconds]


def test_work_and_no_token_is_a_stall() -> None:
    server = Served()
    readings: list[AnyReading] = []
    for second in range(5):
        server.request(tokens=10)
        readings.append(server.at(second, running=4, waiting=2))
    readings += busy(server, range(5, 12))

    verdict = see(readings, 11).verdict

    assert verdict.health is Health.STALLED
    assert verdict.since_ns == 4 * S
    assert "no token for 7.0 s" in verdict.sentence


@pytest.mark.parametrize(
    "name",
    [
        "scheduler_stage_seconds{idle}",
        "mm_cache_queries",
        "per_stage_req_latency_seconds_sum{tokenize}",
    ],
)
def test_what_grows_without_a_token_hides_no_stall(name: str) -> None:
    server = Served()
    readings: list[AnyReading] = []
    for second in range(12):
        if second < 5:
            server.request(tokens=10)
        sample = server.at(second, running=4, waiting=2)
        others = {name: float(second)}
        readings.append(msgspec.structs.replace(sample, others=others))

    assert see(readings, 11).verdict.health is Health.STALLED


def test_a_queue_that_lasts_is_told_with_what_kv_holds() -> None:
    server = Served()
    readings: list[AnyReading] = []
    for second in range(5):
        server.request()
        waiting = 6 if second >= 2 else 0
        readings.append(server.at(second, running=4, waiting=waiting, kv_usage=0.97))

    verdict = see(readings, 4).verdict

    assert verdict.health is Health.QUEUEING
    assert verdict.sentence == (
        "50% of the last 4 s, mostly KV blocks; now 6 waiting, KV 97% used; "
        "TTFT p99 of the minute ≤ 60 ms"
    )
    assert verdict.since_ns == 2 * S


@pytest.mark.parametrize(
    ("usage", "preemptions", "reasons", "cause"),
    [
        (0.97, 0, {"capacity": 6, "deferred": 0}, ", mostly KV blocks;"),
        (0.7, 1, {"capacity": 6, "deferred": 0}, ", mostly KV blocks;"),
        (0.97, 1, {"capacity": 2, "deferred": 4}, ", mostly deferred;"),
        (
            0.3,
            0,
            {"capacity": 6, "deferred": 0},
            ", mostly max_num_seqs or max_num_batched_tokens;",
        ),
        (None, 0, {"capacity": 6, "deferred": 0}, ";"),
        (0.3, 0, {}, ";"),
    ],
    ids=["full", "preempts", "deferred", "room", "usage unknown", "nothing told"],
)
def test_a_queue_is_told_with_its_cause_as_far_as_gauges_tell_it(
    usage: float | None, preemptions: int, reasons: dict[str, int], cause: str
) -> None:
    server = Served()
    others = {f"num_requests_waiting_by_reason{{{k}}}": n for k, n in reasons.items()}
    readings: list[AnyReading] = []
    for second in range(5):
        server.request(ttft_s=7)
        server.preemptions += preemptions
        gauges = {"running": 4, "waiting": 6, "kv_usage": usage, "others": others}
        readings.append(server.at(second, **gauges))

    sentence = see(readings, 4).verdict.sentence

    assert sentence.startswith(f"100% of the last 4 s{cause} now 6 waiting")
    assert sentence.endswith("; TTFT p99 of the minute > 5 s")


def test_a_past_queue_keeps_its_cause_whatever_comes_after_it() -> None:
    server = Served()
    others = {"num_requests_waiting_by_reason{capacity}": 6}
    readings: list[AnyReading] = []
    for second in range(61):
        server.request()
        server.preemptions += second == 30
        queue = {"waiting": 6, "kv_usage": 0.3, "others": others}
        later = {"waiting": 0, "kv_usage": 0.96}
        readings.append(server.at(second, running=4, **queue if second < 40 else later))

    sentence = see(readings, 60).verdict.sentence

    assert ", mostly max_num_seqs or max_num_batched_tokens; now 0 waiting" in sentence


def test_a_full_rank_without_a_queue_is_no_cause_of_another_rank_s() -> None:
    queueing, full = Served(rank="0"), Served(rank="1")
    readings: list[AnyReading] = []
    for second in range(5):
        queueing.request()
        full.request()
        readings.append(queueing.at(second, running=4, waiting=6, kv_usage=0.3))
        readings.append(full.at(second, running=4, waiting=0, kv_usage=0.97))

    assert "mostly" not in see(readings, 4).verdict.sentence


@pytest.mark.parametrize(
    ("window", "waiting"),
    [(Window.MINUTE, 6), (Window.TEN_SECONDS, 0)],
    ids=["queue of the minute shown", "no queue"],
)
def test_the_verdict_computes_no_increase_beside_the_window_s(
    window: Window, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, model = Served(), Model()
    computed, between = [], Counted._between

    def counted(*args: Any) -> Any:
        computed.append(args)
        return between(*args)

    monkeypatch.setattr(Counted, "_between", counted)
    for scrape in range(100):
        server.request()
        sample = server.at(scrape * 0.7, running=4, waiting=waiting)
        model.fold(sample)
        if scrape >= 90:
            model.snapshot(sample.t_ns + 6 * S // 10, SnapshotQuery(window))

    assert len(computed) == 2 * 10  # of the window and of now


@pytest.mark.parametrize(
    ("preemptions", "ttft_s", "word"),
    [(2, 2.0, Health.DEGRADED), (2, 0.7, Health.HEALTHY), (0, 2.0, Health.HEALTHY)],
    ids=["both", "quick", "none preempted"],
)
def test_a_server_that_preempts_and_is_slow_is_not_well(
    preemptions: int, ttft_s: float, word: Health
) -> None:
    server = Served()
    readings: list[AnyReading] = []
    for second in range(5):
        server.request(ttft_s=ttft_s)
        server.preemptions += preemptions
        readings.append(server.at(second, running=4))

    verdict = see(readings, 4).verdict

    assert verdict.health is word
    if word is Health.DEGRADED:
        assert verdict.sentence == (
            "8 preemptions in the last 4 s: KV blocks are short; "
            "TTFT p99 of the minute ≤ 2.5 s"
        )
        assert verdict.at_present is Health.HEALTHY


def test_a_queue_is_told_until_none_of_it_is_in_the_minute() -> None:
    server = Served()
    readings: list[AnyReading] = []
    words = []
    for second in range(90):
        server.request()
        waiting = 6 if second in range(10, 14) else 0
        readings.append(server.at(second, running=4, waiting=waiting))
        words.append(see(readings, second).verdict.health)

    assert words[:11] == [Health.HEALTHY] * 11
    assert words[11:73] == [Health.QUEUEING] * 62
    assert words[73:] == [Health.HEALTHY] * 17


def test_a_queue_keeps_its_beginning_for_as_long_as_it_is_told() -> None:
    server, model, since = Served(), Model(), set()
    for second in range(200):
        server.request()
        waiting = 6 if second >= 10 and second % 30 < 20 else 0
        model.fold(server.at(second, running=4, waiting=waiting))
        if second >= 15:
            shown = model.snapshot(second * S, SnapshotQuery(Window.MINUTE))
            since.add(shown.verdict.since_ns)

    assert since == {10 * S}


def test_a_few_that_wait_for_a_moment_are_no_queue() -> None:
    server = Served()
    readings: list[AnyReading] = []
    words = []
    for second in range(10):
        server.request()
        waiting = 2 if 2 <= second <= 7 else 0
        readings.append(server.at(second, running=4, waiting=waiting))
        words.append(see(readings, second).verdict.health)

    assert words[:5] == [Health.HEALTHY] * 5
    assert words[5:] == [Health.QUEUEING] * 5  # from 3 s of a queue on


@pytest.mark.parametrize("told", [True, False])
def test_what_queued_before_a_restart_is_not_told_after_it(told: bool) -> None:
    server = Served()
    readings: list[AnyReading] = []
    for second in range(8):
        server.request()
        readings.append(server.at(second, running=4, waiting=6))
    server.restart()
    if told:
        readings.append(contact(8, restarted=True))
    readings += busy(server, range(8, 10), running=1, waiting=0)

    assert see(readings[:8], 7).verdict.health is Health.QUEUEING
    assert see(readings, 9).verdict.health is Health.HEALTHY


def test_of_several_servers_the_one_in_trouble_is_named() -> None:
    well, queueing = Served("a:1"), Served("b:1")
    readings: list[AnyReading] = []
    for second in range(5):
        for server, waiting in ((well, 0), (queueing, 7)):
            server.request()
            readings.append(server.at(second, running=2, waiting=waiting))

    assert see(readings, 4).verdict.sentence.startswith("b:1: 100% of the last 4 s")
    assert see(readings, 4, source="a:1").verdict.health is Health.HEALTHY


def test_a_server_that_tells_no_numbers_is_well_as_long_as_it_answers() -> None:
    info = ServerInfo(source=NAME, t_ns=0, name=NAME, family="openai")

    seen = see([contact(0), info], 9)

    assert seen.verdict.health is Health.HEALTHY
    assert seen.latencies == ()
    assert (seen.flow.running, seen.flow.output_tokens_per_s) == (None, None)
    assert see([info], 9).verdict.health is Health.STARTING


def test_what_a_family_does_not_offer_is_absent_and_not_zero() -> None:
    full = Served()
    bare = [
        msgspec.structs.replace(
            full.at(second),
            histograms={},
            finished={},
            prefix_queries=None,
            prefix_hits=None,
            kv_usage=None,
        )
        for second in range(3)
    ]

    seen = see(bare, 2)

    assert seen.latencies == ()
    assert seen.flow.prefix_hit_rate is seen.flow.kv_usage is None
    assert seen.flow.finished_per_s is None
    assert seen.flow.output_tokens_per_s == 0
    assert set(seen.timeline.ttft_mean_s) == {None}


# Several servers.


def test_percentiles_of_several_are_of_their_buckets_and_never_averaged() -> None:
    fast, slow = Served("a:1"), Served("b:1", bounds={"ttft_s": (0.3, 0.6, 5.0)})
    readings = [fast.at(0), slow.at(0)]
    times = [0.03] * 90 + [4.0] * 10
    for ttft_s in times[:90]:
        fast.request(ttft_s=ttft_s)
    for ttft_s in times[90:]:
        slow.request(ttft_s=ttft_s)

    shown = row(see([*readings, fast.at(1), slow.at(1)], 1), "ttft_s")

    assert shown.quantiles.n == 100
    assert shown.quantiles.mean == pytest.approx(sum(times) / 100)
    assert shown.brackets is not None
    assert shown.brackets.p50 == Bracket(low=0.02, high=0.04)
    assert shown.brackets.p99 == Bracket(low=0.6, high=5.0)


def test_each_server_and_rank_is_a_row_and_can_be_shown_alone() -> None:
    parts = [Served("a:1", "0"), Served("a:1", "1"), Served("b:1")]
    readings: list[AnyReading] = []
    for second in range(4):
        for place, server in enumerate(parts, 1):
            for _ in range(place):
                server.request(tokens=10)
            readings.append(server.at(second, running=place))

    seen = see(readings, 3)
    alone = see(readings, 3, source="a:1")

    assert [(each.source, each.rank) for each in seen.servers] == [
        ("a:1", "0"),
        ("a:1", "1"),
        ("b:1", "0"),
    ]
    assert [each.output_tokens_per_s for each in seen.servers] == [10.0, 20.0, 30.0]
    assert [
        row(replace(seen, latencies=s.latencies), "ttft_s").quantiles.n
        for s in seen.servers
    ] == [3, 6, 9]
    assert seen.flow.output_tokens_per_s == pytest.approx(60)
    assert (alone.flow.running, alone.shown_source) == (3, "a:1")
    assert alone.flow.output_tokens_per_s == pytest.approx(30)
    assert alone.servers == seen.servers


# Objectives.


def test_an_objective_between_two_bounds_is_met_by_a_range() -> None:
    server = Served()
    readings: list[AnyReading] = [WatchedSlo(t_ns=0, slo="ttft_s<0.3 itl_s<25ms")]
    readings.append(server.at(0))
    for ttft_s in [0.03] * 6 + [0.26, 0.4, 0.45, 4.0]:
        server.request(ttft_s=ttft_s)

    seen = see([*readings, server.at(1)], 1)

    assert row(seen, "ttft_s").objective_s == 0.3
    assert row(seen, "ttft_s").met == (0.6, 0.9)  # in truth 0.7
    assert row(seen, "itl_s").met == (1.0, 1.0)
    assert row(seen, "e2el_s").objective_s is None


@pytest.mark.parametrize("window", [Window.TEN_SECONDS, Window.SESSION])
@pytest.mark.parametrize(
    ("slo", "word"),
    [
        ("ttft_s<0.3", Health.DEGRADED),
        ("ttft_s<0.3; target=0.5", Health.HEALTHY),
        ("ttft_s<5", Health.HEALTHY),
    ],
)
def test_no_server_is_called_healthy_while_its_objective_is_missed(
    slo: str, word: Health, window: Window
) -> None:
    server = Served()
    readings: list[AnyReading] = [WatchedSlo(t_ns=0, slo=slo)]
    readings.append(server.at(0, running=1))
    for ttft_s in [0.03] * 6 + [0.4, 0.45, 0.4, 4.0]:
        server.request(ttft_s=ttft_s)
    readings += busy_with(server, range(1, 80))

    verdict = see(readings[:40], 38, window).verdict
    assert verdict.health is word
    if word is Health.DEGRADED:
        assert verdict.now is Health.HEALTHY
        told = "at most 90% of the last minute's requests had TTFT within 300 ms; 1 "
        assert verdict.sentence.startswith(told)
    assert see(readings, 79, window).verdict.health is Health.HEALTHY


def busy_with(server: Served, seconds: range) -> list[AnyReading]:
    """Steps of one long request."""
    readings: list[AnyReading] = []
    for second in seconds:
        server.tokens += 1
        readings.append(server.at(second))
    return readings


# Charts.


@pytest.mark.parametrize("window", list(Window), ids=str)
def test_charts_lose_no_token_between_bins(window: Window) -> None:
    server, readings = Served(), []
    for step in range(9):
        readings.append(server.at(0.3 + step * 1.1, running=step))
        server.request(tokens=7)

    line = see(readings, 9.9, window).timeline

    assert sum(each or 0 for each in line.output_tokens) == 8 * 7
    assert max(each or 0 for each in line.running_max) == 8
    means = {round(each, 9) for each in line.ttft_mean_s if each is not None}
    assert means == {0.05}


def test_a_long_session_keeps_its_shape_in_little_room() -> None:
    server, model = Served(), Model()
    for second in range(5_000):
        server.request(tokens=2 if second < 2_500 else 4)
        model.fold(server.at(second, running=9 if second == 1_234 else 1))

    seen = model.snapshot(4_999 * S, SnapshotQuery(Window.SESSION))
    saved = model.saved()

    line = seen.timeline
    per_bin = line.bin_ns // S
    assert line.output_tokens[10] == 2 * per_bin
    assert line.output_tokens[-10] == 4 * per_bin
    assert sum(each or 0 for each in line.output_tokens) == server.tokens - 2
    assert line.running_max[line.index_at(1_234 * S) or 0] == 9
    assert row(seen, "ttft_s").quantiles.n == 4_999
    assert len(saved.state) + sum(map(len, saved.parts)) < 300_000


# Beside a probe.


def test_with_a_probe_everything_is_as_it_is_without_scrapes(traffic: Any) -> None:
    plain = [*traffic.start(), *traffic.run(5)]
    served = Served("engine-1")
    scraped = [served.at(second, running=77, kv_usage=0.9) for second in range(5)]
    both = sorted(
        [*plain, *scraped],
        key=lambda each: getattr(each, "t_ns", getattr(each, "end_ns", 0)),
    )
    ordered = [each for each in both if each not in scraped]

    def without_servers(seen: Snapshot) -> Snapshot:
        return replace(seen, servers=(), via=None, shown_source=None)

    for window in Window:
        seen, expected = see(both, 5, window), see(ordered, 5, window)
        assert without_servers(seen) == expected
        assert [each.via for each in seen.servers] == [Via.PROBE]
        assert seen.via is Via.PROBE


def test_a_probe_that_is_lost_stops_none_of_the_others(
    traffic_of: Callable[..., Any],
) -> None:
    first, second = traffic_of(seed=1, slots=3), traffic_of(seed=2, slots=3)
    one = [*first.start(), *first.run(3)]
    other = [of_server("engine-2", each) for each in (*second.start(), *second.run(9))]
    lost = Note(source="engine-1", t_ns=3 * S, kind=NoteKind.LOST, text="gone")
    model = model_of([contact(0, "engine-1"), contact(0, "engine-2"), *one])
    for reading in [*other[: len(other) // 3], lost]:
        model.fold(reading)
    model.fold(contact(3, "engine-1", answers=False, why="gone"))
    for reading in other[len(other) // 3 :]:
        model.fold(reading)

    seen = model.snapshot(9 * S, SnapshotQuery(Window.TEN_SECONDS))

    assert seen.verdict.health is not Health.LOST
    assert seen.timeline.lost_ns is None
    assert seen.via is Via.PROBE
    assert seen.timeline.output_tokens[-10] is not None
    assert [each.answers for each in seen.servers] == [False, True]
    assert model.snapshot(
        9 * S, SnapshotQuery(Window.MINUTE, source="engine-1")
    ).verdict.health is (Health.LOST)


def of_server(source: str, reading: AnyReading) -> AnyReading:
    if reading.source != "engine-1":
        return reading
    return msgspec.structs.replace(reading, source=source)


def test_what_makes_no_sense_hurts_nobody() -> None:
    served = Served()
    nonsense = msgspec.structs.replace(
        served.at(1),
        output_tokens=-5,
        kv_usage=math.inf,
        histograms={
            "ttft_s": Histogram(bounds=[1.0, 0.5], counts=[1, 2, 3], sum=1.0),
            "itl_s": Histogram(bounds=[0.1], counts=[], sum=math.nan),
        },
    )
    model = model_of([served.at(0), nonsense, served.at(2), nonsense, served.at(3)])

    for window in Window:
        assert model.snapshot(
            3 * S, SnapshotQuery(window)
        ).flow.output_tokens_per_s in {0, None}


# What only SGLang counts.


def sglang(t_s: int, lines: str) -> EngineSample:
    """One rank, with these lines beside the usual."""
    labels = 'dp_rank="0",model_name="tiny",tp_rank="0"'
    text = "".join(
        f"sglang:{name}{{{labels}{extra}}} {value}\n"
        for name, extra, value in (line.split("|") for line in lines.split())
    )
    (sample,) = Exposition(SGLANG).read(text, t_ns=t_s * S, source=NAME).samples
    return sample


def test_each_pool_of_a_hybrid_model_is_told_where_kv_usage_is_unknown() -> None:
    pools = "full_token_usage||0.4 swa_token_usage||0.9 mamba_usage||0.1"
    hybrid = f"num_running_reqs||1 token_usage||0.9 {pools}"

    seen = see([sglang(1, hybrid), sglang(2, hybrid)], 2)

    assert seen.flow.kv_usage is None
    assert seen.server_counts.pools == (
        ("KV full", 0.4),
        ("KV window", 0.9),
        ("Mamba", 0.1),
    )


def test_the_only_pool_is_the_kv_cache_and_told_as_that() -> None:
    pools = "token_usage||0.9 full_token_usage||0.9 swa_token_usage||0 mamba_usage||0"

    seen = see([sglang(1, pools), sglang(2, pools)], 2)

    assert seen.flow.kv_usage == 0.9
    assert seen.server_counts.pools == ()


def test_stages_are_means_and_the_time_of_a_scheduler_is_split() -> None:
    def lines(requests: int) -> str:
        stage = ',stage="prefill_forward"'
        return " ".join(
            [
                f"per_stage_req_latency_seconds_sum|{stage}|{requests * 0.02}",
                f"per_stage_req_latency_seconds_count|{stage}|{requests}",
                f'per_stage_req_latency_seconds_bucket|{stage},le="1"|{requests}',
                f"grammar_compilation_time_seconds_sum||{requests * 1.5}",
                f"grammar_compilation_time_seconds_count||{requests}",
                f'scheduler_stage_seconds_total|,category="run_batch"|{requests * 3}',
                f'scheduler_stage_seconds_total|,category="idle"|{requests}',
                f"num_aborted_requests_total||{requests}",
            ]
        )

    counts = see([sglang(1, lines(10)), sglang(2, lines(14))], 2)

    told = dict(counts.server_counts.times_s)
    assert told == {
        "prefill forward": pytest.approx(0.02),
        "grammar compilation": pytest.approx(1.5),
    }
    assert counts.server_counts.scheduler == (("run batch", 0.75), ("idle", 0.25))
    assert counts.server_counts.phases_s == ()  # how long it queued is not told
    assert counts.flow.aborted == 4


PHASES = ("API", "queue", "prefill", "decode")


def phases_of(*samples: EngineSample) -> dict[str, float]:
    return dict(see(samples, 2).server_counts.phases_s)


def test_the_phases_of_vllm_add_up_to_the_mean_request() -> None:
    server = Served(bounds={"prefill_s": SECONDS, "decode_s": SECONDS})
    server.observe("prefill_s", 100.0)  # before the window
    first = server.at(1)
    for queue_s in (0.1, 0.3):
        server.request(0.5, 0.1, tokens=11, queue_s=queue_s)
        server.observe("prefill_s", 0.2)
        server.observe("decode_s", 1.0)

    phases = phases_of(first, server.at(2))

    assert tuple(phases) == PHASES
    assert [*phases.values()] == pytest.approx([0.1, 0.2, 0.2, 1.0])
    assert phases_of(first, first) == {}


def test_the_phases_of_sglang_are_those_of_its_stages() -> None:
    stage = "per_stage_req_latency_seconds"

    def sample(server: Served, t_s: int, count: int) -> EngineSample:
        others = {
            f"{stage}_sum{{prefill_forward}}": 0.15 * count,
            f"{stage}_count{{prefill_forward}}": float(count),
            f"{stage}_sum{{prefill_transfer_kv_cache}}": 9.0 * count,
            f"{stage}_count{{prefill_transfer_kv_cache}}": float(count),
        }
        return msgspec.structs.replace(server.at(t_s), others=others)

    server = Served()
    first = sample(server, 1, 4)
    server.request(0.5, 0.1, tokens=11, queue_s=0.3)
    phases = phases_of(first, sample(server, 2, 5))

    assert tuple(phases) == PHASES
    assert [*phases.values()] == pytest.approx([0.05, 0.3, 0.15, 1.0])
    without = msgspec.structs.replace(sample(server, 2, 5), others={})
    assert phases_of(first, without) == {}
