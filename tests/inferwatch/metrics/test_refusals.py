"""Refused requests: added up over processes and windows, from probes and scrapes."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    EngineSample,
    Histogram,
    Phase,
    Refusal,
    RefusalReason,
    Refusals,
    RequestRecord,
    ServerInfo,
    Tick,
    Vantage,
    WatchedSlo,
)
from inferwatch.live.outlets.exact import ExactNumbers
from inferwatch.metrics.findings.facts import Facts
from inferwatch.metrics.findings.finding import Effort, Subject
from inferwatch.metrics.findings.queue import Deferred
from inferwatch.metrics.findings.refused import RefusedRequests
from inferwatch.metrics.findings.traffic import Failures
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.refusals import (
    RefusalLog,
    RefusedGroup,
    SavedRefusals,
)
from inferwatch.metrics.series.samples import CounterTotals
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from inferwatch.metrics.steps.health import Health

S = 1_000_000_000
ROUTE = "/v1/completions"
LONG = RefusedGroup(
    route=ROUTE,
    method="POST",
    status="400",
    reason=RefusalReason.TOO_LONG,
    count=9,
    asked_tokens=3_100,
    allowed_tokens=2_048,
)


def told(
    t_s: float,
    count: int,
    *,
    new: int | None = None,
    pid: int = 1,
    route: str = ROUTE,
    reason: RefusalReason = RefusalReason.INVALID,
) -> Refusals:
    refusal = Refusal(
        route=route,
        method="POST",
        status=400,
        reason=reason,
        count=count,
        new=count if new is None else new,
    )
    refused = [refusal] if count else []
    return Refusals(source="e", t_ns=round(t_s * S), pid=pid, refused=refused)


def see(
    readings: list[AnyReading], at_s: float, window: Window = Window.SESSION
) -> Snapshot:
    model = Model()
    for each in readings:
        model.fold(each)
    return model.snapshot(round(at_s * S), SnapshotQuery(window))


def test_api_servers_of_an_engine_add_up_and_none_counts_twice() -> None:
    readings: list[AnyReading] = [
        told(0, 0),
        told(1, 2, pid=1),
        told(2, 3, pid=2),
        told(3, 5, new=3, pid=1),
        told(3, 5, new=3, pid=1),  # again, to who joined late
        told(2, 4, new=2, pid=1),  # out of order
        told(4, 6, new=1, pid=1),
    ]

    assert see(readings, 5).flow.refused == 9
    assert see(readings, 62.5, Window.MINUTE).flow.refused == 4


def test_who_joins_late_does_not_count_what_was_before() -> None:
    assert see([told(5, 100, new=1), told(6, 102, new=2)], 7).flow.refused == 3


def test_lost_reports_are_made_up_for_by_the_next() -> None:
    assert see([told(0, 0), told(9, 12, new=1)], 10).flow.refused == 12


def test_a_report_of_some_kinds_says_nothing_of_the_others() -> None:
    other = RefusalReason.TOO_LONG
    long = [told(t_s, count, new=1, reason=other) for t_s, count in ((2, 50), (4, 51))]
    some = [told(1, 100, new=1), *long[:1], told(3, 101, new=1), *long[1:]]
    late = [structs.replace(each, whole=False) for each in some]

    assert see([*late], 5).flow.refused == 4
    assert see([told(0, 0), *late], 5).flow.refused == 152


def test_unknown_is_not_none_and_none_is_not_unknown() -> None:
    assert see([], 1).flow.refused is None
    assert see([told(0, 0)], 1).flow.refused == 0


def test_other_paths_are_listed_and_in_no_share() -> None:
    snapshot = see([told(0, 3), told(1, 9, pid=2, route="other")], 2)

    assert snapshot.flow.refused == 3
    assert [(each.route, each.count) for each in snapshot.refused] == [
        ("other", 9),
        (ROUTE, 3),
    ]


def test_what_is_restored_goes_on_as_if_it_had_not_been_saved() -> None:
    log, again = RefusalLog(), RefusalLog()
    for each in (told(1, 2), told(2, 3, pid=2)):
        log.take(each)
    saved = msgspec.msgpack.encode(log.saved())
    again.restore(msgspec.msgpack.decode(saved, type=SavedRefusals))

    assert again.take(told(3, 5, new=1)) == log.take(told(3, 5, new=1)) == 3
    for window in Window:
        assert again.over(12 * S, window) == log.over(12 * S, window)


@pytest.mark.parametrize(
    ("slo", "judged", "missed"),
    [
        ("ttft_s<1", 4, {"refused": 4}),
        ("ttft_s<1; refused=left out", 0, {}),
        ("chat: ttft_s<1", 0, {}),
    ],
)
def test_a_refused_request_is_not_good_unless_it_is_left_out(
    slo: str, judged: int, missed: dict[str, int]
) -> None:
    objectives = WatchedSlo(t_ns=0, slo=slo)

    state = see([objectives, told(1, 4)], 2).slo

    assert state is not None
    assert (state.judged, state.good, state.missed) == (judged, 0, missed)


def test_an_outlet_that_joins_late_does_not_count_what_was_before() -> None:
    numbers = ExactNumbers()
    for each in (told(5, 100, new=1), told(6, 102, new=2)):
        numbers.fold(each)

    assert numbers.servers["e"].counts["requests_refused"] == {"invalid parameter": 3}


def test_an_outlet_counts_them_by_reason() -> None:
    numbers = ExactNumbers()
    for each in (told(1, 2), told(2, 3, pid=2), told(3, 5, new=3), told(3, 5, new=3)):
        numbers.fold(each)

    assert numbers.servers["e"].counts["requests_refused"] == {"invalid parameter": 8}


# The finding.


def facts(*groups: RefusedGroup, arrived: int = 66) -> Facts:
    return Facts(
        now_ns=60 * S,
        refused=groups,
        outcomes=CounterTotals(arrived, {"arrived": arrived}, {}),
    )


def test_a_finding_says_why_and_what_to_do() -> None:
    unknown = replace(LONG, status="404", reason=RefusalReason.UNKNOWN_MODEL, count=2)
    n = replace(LONG, reason=RefusalReason.INVALID, parameter="n", count=3)
    several = facts(LONG, n, unknown)
    alone = facts(LONG)

    assert RefusedRequests().sentence(alone) == (
        "12% of requests are refused: max_model_len 2,048 is too short for prompts up "
        "to 3,100 tokens"
    )
    assert (
        RefusedRequests()
        .sentence(several)
        .endswith("(9 requests); also 3 invalid parameter (n), 2 unknown model")
    )
    assert RefusedRequests().subject(several) is Subject.TRAFFIC
    first, *_, last = RefusedRequests().knobs(several)
    assert first.effort == (Effort.NOW,)
    assert last.flag == "--max-model-len"
    assert "3,100" in last.text


@pytest.mark.parametrize("reason", RefusalReason)
def test_every_reason_has_a_sentence_and_a_knob(reason: RefusalReason) -> None:
    of_one = facts(replace(LONG, reason=reason, asked_tokens=None, allowed_tokens=None))

    assert "{" not in RefusedRequests().sentence(of_one)
    (knob,) = RefusedRequests().knobs(of_one)
    assert knob.expected


def test_few_are_no_finding() -> None:
    assert RefusedRequests().holds(facts(replace(LONG, count=2), arrived=0)) is None
    assert RefusedRequests().holds(facts(LONG, arrived=1_000)) is None
    assert RefusedRequests().holds(facts(replace(LONG, route="other"))) is None


def test_what_was_refused_did_not_fail_as_well() -> None:
    """A load generator calls what the server refused a failure."""
    sums = {"finished": 60, "failed": 9, "failed_unlisted": 9, "arrived": 60}
    failed = replace(facts(), outcomes=CounterTotals(60, sums, {}))

    assert Failures().holds(failed) is not None
    assert Failures().holds(replace(failed, refused=(LONG,))) is None


def test_what_our_own_load_was_refused_is_not_in_the_flow_twice() -> None:
    failed = [
        RequestRecord(
            source="load",
            index=index,
            external_id=f"x{index}",
            phase=Phase.STEADY,
            intended_ns=S,
            end_ns=S,
            failure="http",
        )
        for index in range(5)
    ]

    flow = see([*failed, told(2, 3)], 3).flow

    assert (flow.failed, flow.refused) == (2, 3)


def test_what_the_server_cannot_do_is_its_own_trouble() -> None:
    full = replace(LONG, status="503", reason=RefusalReason.QUEUE_FULL)

    assert RefusedRequests().subject(facts(full)) is Subject.ENGINE


# Scrapes.


def scrapes(
    refused: dict[str, int], seconds: int = 4, failed: int = 0
) -> Iterator[AnyReading]:
    """Of a server that ends ten requests a second, and refuses some from 2 s on."""
    yield ServerInfo(source="s", t_ns=0, name="s", family="vllm")
    for second in range(seconds):
        kinds = {f"refused{{{kind}}}": float(n) for kind, n in refused.items()}
        yield EngineSample(
            source="s",
            t_ns=second * S,
            running=1,
            waiting=0,
            output_tokens=1_000 + 100 * second,
            finished={"stop": 10 * second, "error": failed if second >= 2 else 0},
            others={"refused{queue full}": 0.0} | (kinds if second >= 2 else {}),
        )
        yield Tick(t_ns=second * S)


def test_a_scrape_tells_them_by_route_and_status() -> None:
    counts = {f"{ROUTE} 4xx": 3, f"{ROUTE} 5xx": 5, "queue full": 4}

    snapshot = see([*scrapes(counts)], 3, Window.MINUTE)

    assert snapshot.flow.refused == 8  # what a full queue turned away is in 5xx, too
    assert [
        (each.route, each.status, each.reason, each.count) for each in snapshot.refused
    ] == [
        (None, None, RefusalReason.QUEUE_FULL, 4),
        (ROUTE, "4xx", None, 3),
        (ROUTE, "5xx", None, 1),
    ]
    assert {each.vantage for each in snapshot.refused} == {Vantage.SCRAPE}
    assert snapshot.servers[0].refused == 8
    assert snapshot.verdict.health is Health.DEGRADED
    assert snapshot.verdict.sentence.startswith(
        "21% of the last minute's requests were refused (queue full)"
    )


def test_what_a_server_counts_becomes_a_finding_and_ends() -> None:
    counts = {f"{ROUTE} 4xx": 3, f"{ROUTE} 5xx": 20, "queue full": 15}
    snapshot = see([*scrapes(counts, 20)], 20, Window.MINUTE)

    (finding,) = snapshot.findings
    assert finding.name == RefusedRequests.NAME
    assert finding.sentence == (
        "11% of requests are refused: the queue is as full as it may be (15 requests); "
        f"also 8 {ROUTE} 4xx, {ROUTE} 5xx"
    )
    assert finding.evidence[0].text == (
        f"15 × queue full, 5 × {ROUTE} 5xx, 3 × {ROUTE} 4xx in the last minute; 5xx "
        "may include requests that failed in the engine"
    )
    assert finding.subject is Subject.ENGINE
    assert [each.flag for each in finding.knobs] == [
        None,
        "--max-num-queued-reqs",
        None,
    ]
    assert "where it runs" in finding.knobs[0].text
    assert "INFERWATCH_PROBE=1" in finding.knobs[-1].text

    later = see([*scrapes(counts, 90)], 90, Window.MINUTE)
    assert later.findings == ()
    assert [each.name for each in later.past_findings] == [RefusedRequests.NAME]


@pytest.mark.parametrize("kind", [f"{ROUTE} 4xx", "queue full"])
def test_only_5xx_may_have_failed_in_the_engine(kind: str) -> None:
    (finding,) = see([*scrapes({kind: 30}, 20)], 20).findings
    assert "failed" not in finding.evidence[0].text


def test_several_servers_are_judged_beside_those_with_a_probe() -> None:
    probed = [
        EngineInfo(source=name, t_ns=0, pid=7, model="m", vllm_version="0.32.0")
        for name in ("e", "f")
    ]
    (finding,) = see([*probed, *scrapes({f"{ROUTE} 4xx": 30}, 20)], 20).findings
    assert finding.sentence.startswith("14% of requests are refused: answered with")


def deferred(waiting: int, deferred: int, seconds: int = 20) -> Iterator[AnyReading]:
    """Of a server that runs four requests."""
    reason = "num_requests_waiting_by_reason"
    for second in range(seconds):
        yield EngineSample(
            source="s",
            t_ns=second * S,
            running=4,
            waiting=waiting,
            output_tokens=100 * second,
            others={
                f"{reason}{{deferred}}": float(deferred),
                f"{reason}{{capacity}}": float(waiting - deferred),
            },
        )
        yield Tick(t_ns=second * S)


def test_what_a_server_counts_as_deferred_becomes_a_finding() -> None:
    (finding,) = see([*deferred(6, 5)], 20).findings
    assert finding.name == Deferred.NAME
    assert finding.sentence.startswith("5 wait for a grammar, a KV transfer, ")
    assert finding.cost == pytest.approx(0.5)
    assert finding.evidence[0].text.startswith("5 of 6 waiting requests are deferred")

    again = see([*deferred(6, 5), *deferred(0, 0, 60)][40:], 60)
    assert again.findings == ()


@pytest.mark.parametrize("counts", [(6, 2), (0, 0), (6, 0)])
def test_a_queue_for_room_is_not_deferred(counts: tuple[int, int]) -> None:
    assert see([*deferred(*counts)], 20).findings == ()


def test_what_failed_in_the_engine_was_not_refused_as_well() -> None:
    counts = {f"{ROUTE} 4xx": 3, f"{ROUTE} 5xx": 5, "queue full": 1}

    snapshot = see([*scrapes(counts, failed=2)], 3, Window.MINUTE)

    assert snapshot.flow.failed == 2
    assert [(each.place, each.count) for each in snapshot.refused] == [
        (f"{ROUTE} 4xx", 3),
        (f"{ROUTE} 5xx", 2),
        ("queue full", 1),
    ]


def test_an_outlet_counts_what_a_server_counts_since_the_first_scrape() -> None:
    numbers = ExactNumbers()
    kinds = {f"{ROUTE} 4xx": 3, f"{ROUTE} 5xx": 5, "queue full": 1}
    for each in scrapes(kinds, failed=2):
        numbers.fold(each)
    refused = numbers.servers["s"].counts["requests_refused"]
    assert refused == {"other": 5, "queue full": 1}

    for each in scrapes({}, 1):  # it restarted, and has refused none since
        numbers.fold(each)
    assert refused == {"other": 5, "queue full": 1}
    for each in scrapes({f"{ROUTE} 4xx": 1}):
        numbers.fold(each)
    assert refused == {"other": 6, "queue full": 1}


def test_what_was_refused_before_the_first_scrape_is_not_counted() -> None:
    numbers = ExactNumbers()
    for each in [*scrapes({f"{ROUTE} 4xx": 30}, 4)][5:]:
        numbers.fold(each)
    assert not numbers.servers["s"].counts["requests_refused"]


@pytest.mark.parametrize(
    ("more", "missed"), [("", True), ("; refused=left out", False)]
)
def test_a_refused_request_held_no_objective(more: str, *, missed: bool) -> None:
    """Nine in ten that were answered held it, but not of those that were sent."""
    objectives = WatchedSlo(t_ns=0, slo=f"ttft_s<1; target=0.88{more}")
    readings = [
        structs.replace(
            each,
            histograms={
                "ttft_s": Histogram(
                    bounds=[1.0],
                    counts=[9 * each.finished["stop"] // 10, each.finished["stop"]],
                    sum=1.0,
                )
            },
        )
        if isinstance(each, EngineSample)
        else each
        for each in scrapes({f"{ROUTE} 4xx": 4}, 10)
    ]
    sentence = see([objectives, *readings], 9, Window.MINUTE).verdict.sentence
    assert ("at most 86% of the last minute's requests" in sentence) is missed


def test_a_server_that_refuses_none_is_well() -> None:
    snapshot = see([*scrapes({})], 3, Window.MINUTE)

    assert snapshot.flow.refused == 0
    assert snapshot.refused == ()
    assert snapshot.verdict.health is Health.HEALTHY


def test_to_refuse_is_no_progress() -> None:
    readings = [
        EngineSample(
            source="s",
            t_ns=second * S,
            running=1,
            output_tokens=100,
            others={f"refused{{{ROUTE} 4xx}}": float(second)},
        )
        for second in range(20)
    ]

    assert see([*readings], 20).verdict.health is Health.STALLED


def test_of_probe_and_scrape_the_probe_is_shown_and_never_the_sum() -> None:
    engine = EngineInfo(source="s", t_ns=0, pid=7, model="m", vllm_version="0.32.0")
    probed = structs.replace(told(2, 3), source="s")
    readings: list[AnyReading] = [engine, *scrapes({f"{ROUTE} 4xx": 50}), probed]

    snapshot = see(readings, 3)

    assert snapshot.flow.refused == 3
    assert [each.vantage for each in snapshot.refused] == [Vantage.FRONTEND]
    assert snapshot.servers[0].refused == 3
