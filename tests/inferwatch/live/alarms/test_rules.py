"""A rule says what it means, or what could be written instead; it fires on facts."""

from typing import Any

import pytest

from collectors.contract.readings import Step, Vantage
from inferwatch.errors import UsageError
from inferwatch.live.alarms.alarms import CALM, WatchedRule
from inferwatch.live.alarms.rules import rules_of
from inferwatch.metrics.findings.finding import Finding
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.series.window import (
    Bracket,
    Brackets,
    Latency,
    Quantiles,
    Window,
)
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.efficiency import Stall, StallKind
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.health import Health, Verdict

S = 10**9


def picture(second: int = 0, **parts: Any) -> Snapshot:
    verdict = Verdict(health=Health.HEALTHY, sentence="all is well")
    known: dict[str, Any] = {"verdict": verdict, **parts}
    return Snapshot(now_ns=second * S, window=Window.MINUTE, covered_ns=60 * S, **known)


def ttft(second: int = 0, *, weak: tuple[str, ...] = (), **known: Any) -> Snapshot:
    quantiles = Quantiles(n=known.pop("n", 2_000), weak=weak, **known)
    row = Latency(metric="ttft_s", vantage=Vantage.FRONTEND, quantiles=quantiles)
    return picture(second, latencies=(row,))


def test_rules_are_joined_and_each_counts_once() -> None:
    rules = rules_of("slo | preemption|p99( ttft_s ) > 2|waiting>20|slo")

    assert [each.text for each in rules] == [
        "slo",
        "preemption",
        "p99( ttft_s ) > 2",
        "waiting>20",
    ]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "write slo, preemption, stall, lost, finding"),
        ("slo||stall", "write slo, preemption, stall, lost, finding"),
        ("p42(ttft_s)>2", "none of p50, p90, p95, p99, mean, max"),
        ("p99(ttft)>2", "none of ttft_s, queue_s"),
        ("ttft_s>2", "as p99(ttft_s)>2"),
        ("p99(ttft_s)>2x", "'2x' is not a number"),
        ("waiting>nan", "'nan' is not a number"),
        ("waiting>inf", "'inf' is not a number"),
        ("kv>0.9", "kv_usage"),
        ("p99(ttft_s)=2", "p99(ttft_s)>2"),
    ],
)
def test_what_means_nothing_says_what_would(written: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        rules_of(written)

    assert said in str(refused.value)


def test_a_percentile_is_compared_and_told() -> None:
    [rule] = rules_of("p99(ttft_s)>2")

    high, low = rule.look(ttft(p99=2.4)), rule.look(ttft(p99=1.9))

    assert (high.holds, high.sentence) == (True, "p99(ttft_s) 2.40 > 2.00")
    assert low.holds is False


def test_a_percentile_of_too_few_says_nothing_but_why() -> None:
    [rule] = rules_of("p99(ttft_s)>2")

    few, none = rule.look(ttft(p99=9.0, n=30, weak=("p99",))), rule.look(picture())

    assert few.holds is None
    assert "30" in few.why_unknown
    assert "max(ttft_s)" in few.why_unknown
    assert none.holds is None
    assert rules_of("max(ttft_s)>2")[0].look(ttft(max=9.0, n=1, weak=("p99",))).holds


def test_of_a_bucket_the_sure_bound_counts() -> None:
    row = Latency(
        metric="ttft_s",
        vantage=Vantage.SCRAPE,
        quantiles=Quantiles(n=5_000, mean=1.0),
        brackets=Brackets(p99=Bracket(low=1.0, high=2.5)),
    )
    now = picture(latencies=(row,))

    assert rules_of("p99(ttft_s)>0.9")[0].look(now).holds is True
    assert rules_of("p99(ttft_s)>2")[0].look(now).holds is False  # it may, or not
    assert rules_of("p99(ttft_s)<2.6")[0].look(now).holds is True
    assert rules_of("mean(ttft_s)>0.9")[0].look(now).holds is True


def test_numbers_of_the_flow_are_compared_and_unknown_ones_are_not() -> None:
    [waiting, kv] = rules_of("waiting>20|kv_usage<0.1")
    now = picture(flow=Flow(waiting=21))

    assert waiting.look(now).holds is True
    assert kv.look(now).holds is None


def test_preemptions_are_news_only_once() -> None:
    [rule] = rules_of("preemption")
    counts = [3, 3, 5, 4, 4, 0]

    held = [rule.look(picture(flow=Flow(preemptions=n))).holds for n in counts]

    assert held == [False, False, True, False, False, False]


def test_a_stall_is_news_and_so_is_the_verdict() -> None:
    [rule] = rules_of("stall")
    old = Stall(kind=StallKind.GAP, start_ns=1, end_ns=2, evidence="old")
    new = Stall(kind=StallKind.GAP, start_ns=8, end_ns=9, evidence="no step for 1 s")
    stalled = Verdict(health=Health.STALLED, sentence="stalled for 4 s")

    first = rule.look(picture(stalls=(old,)))
    second = rule.look(picture(stalls=(new, old)))
    third = rule.look(picture(stalls=(new, old)))
    fourth = rule.look(picture(verdict=stalled))

    assert [each.holds for each in (first, second, third, fourth)] == [
        False,
        True,
        False,
        True,
    ]
    assert "no step for 1 s" in second.sentence
    assert fourth.sentence == "stalled for 4 s"


@pytest.mark.parametrize("text", ["slo", "failed>0", "max(ttft_s)>1"])
def test_the_numbers_of_a_lost_engine_are_not_judged(text: str) -> None:
    [rule] = rules_of(text)
    lost = Verdict(health=Health.LOST, sentence="the engine died")

    judged = rule.look(picture(verdict=lost))

    assert judged.holds is None
    assert "before the loss" in judged.why_unknown


def test_what_is_lost_is_told() -> None:
    [rule] = rules_of("lost")
    told = "the engine died\nTraceback (most recent call last):\n  File ..."
    lost = Verdict(health=Health.LOST, sentence=told)

    assert rule.look(picture()).holds is False
    assert rule.look(picture(verdict=lost)).sentence == "the engine died"


def test_an_objective_that_is_missed_holds_and_one_not_given_says_so() -> None:
    [rule] = rules_of("slo")
    state: dict[str, Any] = {
        "slo": "ttft_s<1",
        "target": 0.99,
        "vantage": Vantage.FRONTEND,
    }

    missed = rule.look(
        picture(slo=SloState(judged=100, good=90, missed_since_ns=1, **state))
    )
    met = rule.look(picture(slo=SloState(judged=100, good=100, **state)))

    assert missed.holds is True
    assert "90.0% of 100 requests" in missed.sentence
    assert met.holds is False
    assert "--slo" in rule.look(picture()).why_unknown


def test_a_finding_is_news_while_it_is_new() -> None:
    [rule] = rules_of("finding")
    finding = Finding(
        name="kv_bound",
        title="KV bound",
        sentence="the KV cache is full",
        since_ns=1,
        cost=0.1,
        cost_text="10%",
        evidence=(),
    )

    looks = [rule.look(picture(findings=each)) for each in ((), (finding,), (finding,))]

    assert [each.holds for each in looks] == [False, True, False]
    assert looks[1].sentence == "the KV cache is full"


def test_a_threshold_must_be_passed_for_a_while_both_ways() -> None:
    watched = WatchedRule(rules_of("p99(ttft_s)>2")[0], records=True)
    values = [3.0, 3.0, 1.0, 3.0, 3.0, 3.0, 3.0, 1.0, 3.0, *[1.0] * CALM, 3.0, 3.0, 3.0]

    began = [
        second
        for second, value in enumerate(values)
        if watched.look(ttft(second, p99=value))
    ]

    assert began == [5, len(values) - 1]


def test_alerts_of_a_rule_are_limited_and_the_rest_counted() -> None:
    watched = WatchedRule(rules_of("preemption")[0], records=True)

    told = [watched.may_tell(at * S, 60 * S) for at in (0, 10, 59, 60, 61)]

    assert told == [True, False, False, True, False]
    assert (watched.alerts, watched.silent) == (2, 3)


def test_a_batch_is_that_of_the_step_that_ended_last() -> None:
    (rule,) = rules_of("batch>4")
    step = Step(
        index=1,
        start_ns=0,
        end_ns=1,
        duration_ns=1,
        prefill_requests=1,
        decode_requests=4,
    )
    running = picture(latest_step=step, flow=Flow(running=5))

    assert rule.look(running).holds
    assert rule.look(running).sentence == "batch 5.00 > 4.00"
    assert rule.SETTLES == 1
    idle = picture(latest_step=step, flow=Flow(running=0))
    assert rule.look(idle).holds is False
    assert rule.look(picture()).why_unknown == "no probe tells of steps"
    lost = Verdict(health=Health.LOST, sentence="gone")
    assert rule.look(picture(verdict=lost, latest_step=step)).holds is None
