"""A load run while it goes on, as the Load screen shows it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from collectors.contract.readings import (
    AnyReading,
    ClientSample,
    HostSample,
    LoadEvent,
    LoadKind,
    LoadPlanned,
    Phase,
    ProcessUsage,
    RequestRecord,
    TokenTimes,
)
from inferwatch.live.load.running_load import public_plan
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.plan import PlanFacts
from inferwatch.metrics.load.view import LoadRun, RunState
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery

See = Callable[..., Snapshot]
S, MS = 1_000_000_000, 1_000_000
RUN = "load-1"


def planned(**fields: Any) -> LoadPlanned:
    """The plan in the record, as whoever starts a run writes it."""
    facts = {"run_id": RUN, "model": "m", "rate_per_s": 10.0, "warmup_s": 0.0}
    plan = LoadPlan(**{**facts, **fields})
    return LoadPlanned(source=RUN, t_ns=1, plan=public_plan(plan))


def event(at_s: float, kind: LoadKind, source: str = RUN, **fields: Any) -> LoadEvent:
    return LoadEvent(source=source, t_ns=int(at_s * S), kind=kind, **fields)


def rate(at_s: float, rate_per_s: float) -> LoadEvent:
    return event(at_s, LoadKind.RATE, rate_per_s=rate_per_s)


def users(at_s: float, count: int) -> LoadEvent:
    return event(at_s, LoadKind.RATE, users=count)


def second(at_s: float, in_flight: int = 0, **fields: Any) -> ClientSample:
    facts = {"span_ns": S, "transport": "raw", "in_flight": in_flight, "cpu_s": 0.1}
    return ClientSample(source=RUN, t_ns=int(at_s * S), **{**facts, **fields})


def request(index: int, due_s: float, **fields: Any) -> RequestRecord:
    """Sent 1 ms late; five tokens, from 50 to 90 ms after it was due."""
    due_ns = int(due_s * S)
    facts = {
        "phase": Phase.STEADY,
        "sent_ns": due_ns + MS,
        "first_token_ns": due_ns + 50 * MS,
        "last_token_ns": due_ns + 90 * MS,
        "end_ns": due_ns + 91 * MS,
        "output_tokens": 5,
    }
    return RequestRecord(
        source=RUN,
        index=index,
        external_id=f"{RUN}-{index}",
        intended_ns=due_ns,
        **{**facts, **fields},
    )


def chunks(of: RequestRecord, *gaps_ms: int) -> TokenTimes:
    assert of.first_token_ns is not None
    return TokenTimes(
        source=RUN,
        external_id=of.external_id,
        first_ns=of.first_token_ns,
        gaps_ns=[each * MS for each in gaps_ms or (10, 10, 10, 10)],
    )


def failed(index: int, due_s: float, kind: str, said: str) -> RequestRecord:
    """The server said no."""
    return request(
        index,
        due_s,
        failure=kind,
        detail=said,
        first_token_ns=None,
        last_token_ns=None,
        output_tokens=None,
    )


def load(seconds: int, per_s: int = 10, first: int = 0) -> Iterator[AnyReading]:
    """Requests evenly spaced; each second the generator says how it did."""
    for at in range(seconds):
        for number in range(per_s):
            made = request(first + at * per_s + number, 1 + at + number / per_s)
            yield made
            yield chunks(made)
        yield second(2 + at, reads=500, merged_reads=0, recv_lag_p99_ns=40_000)


def begun(*readings: AnyReading, **plan: Any) -> list[AnyReading]:
    return [planned(**plan), event(0.9, LoadKind.STARTED), rate(1, 10.0), *readings]


def view_of(snapshot: Snapshot) -> ClientView:
    assert snapshot.client is not None
    return snapshot.client


def run_of(snapshot: Snapshot) -> LoadRun:
    run = view_of(snapshot).run
    assert run is not None
    return run


def test_the_facts_of_a_plan_have_the_plans_own_defaults() -> None:
    plan = LoadPlan(run_id="a", model="m")
    facts = PlanFacts(run_id="a", model="m")

    for name in PlanFacts.__struct_fields__:
        assert getattr(facts, name) == getattr(plan, name), name


def test_what_was_sent_has_ended_or_is_in_flight(see: See) -> None:
    lost = failed(90, 2.5, "http_5xx", "no")
    aborted = request(91, 2.6, failure="aborted")

    run = run_of(see(begun(*load(1), lost, aborted, second(3, 4)), 3_200))

    assert (run.sent, run.in_flight, run.succeeded) == (16, 4, 10)
    assert (run.failed, run.aborted) == (1, 1)


def test_counts_hold_until_the_generator_speaks_again(see: See) -> None:
    readings = begun(*load(1), second(3, 2), request(50, 2.9))

    run = run_of(see(readings, 3_400))

    assert (run.sent, run.in_flight, run.succeeded) == (12, 2, 10)


def test_while_it_drains_what_lands_is_no_longer_in_flight(see: See) -> None:
    readings = begun(second(2, 3), event(2.1, LoadKind.DRAINING), request(0, 1.9))

    run = run_of(see(readings, 2_500))

    assert run.state is RunState.DRAINING
    assert (run.sent, run.in_flight, run.succeeded) == (3, 2, 1)


def test_warm_up_is_counted_apart_and_its_flights_are_not_the_runs(see: See) -> None:
    warm = request(0, 1, phase=Phase.WARMUP)
    readings = begun(warm, second(2, 5), warmup_s=3.0)

    run = run_of(see(readings, 2_500))

    assert run.state is RunState.WARMING_UP
    assert (run.sent, run.in_flight, run.warmup) == (0, 5, 1)
    assert run.elapsed_s is None


@pytest.mark.parametrize(
    ("readings", "now_ms", "state"),
    [
        pytest.param([event(1, LoadKind.STARTED)], 1_500, "starting", id="started"),
        pytest.param(begun(second(2)), 2_500, "sending", id="sending"),
        pytest.param(
            begun(event(4, LoadKind.WARMUP_ENDED), warmup_s=3.0),
            4_500,
            "sending",
            id="warm",
        ),
        pytest.param(begun(second(2)), 9_000, "silent", id="not heard of"),
        pytest.param(
            begun(event(2, LoadKind.STOPPED)), 60_000, "ended", id="ended long ago"
        ),
    ],
)
def test_a_run_is_somewhere(
    see: See, readings: list[AnyReading], now_ms: int, state: str
) -> None:
    assert run_of(see(readings, now_ms)).state == state


@pytest.mark.parametrize(
    ("plan", "share"),
    [
        pytest.param({"duration_s": 20.0}, 0.1, id="by time"),
        pytest.param({"requests": 40}, 0.5, id="by number"),
        pytest.param({"requests": 40, "duration_s": 4.0}, 0.5, id="by either"),
        pytest.param({}, None, id="without an end"),
    ],
)
def test_progress_is_of_the_plan(
    see: See, plan: dict[str, Any], share: float | None
) -> None:
    run = run_of(see(begun(*load(2), **plan), 3_000))

    assert run.share == (None if share is None else pytest.approx(share))


def test_of_conversations_only_the_first_turn_counts_for_progress(see: See) -> None:
    turns = [request(n, 1 + n / 10, turn=1 + n % 4) for n in range(8)]

    run = run_of(see(begun(*turns, second(2, 1), requests=4), 3_000))

    assert run.share == 0.5
    assert (run.begun, run.sent, run.in_turns) == (2, 9, True)


def test_a_run_that_was_sent_is_done_and_a_stopped_one_is_not(see: See) -> None:
    whole = [event(3, LoadKind.DRAINING), event(4, LoadKind.STOPPED)]
    stopped = [event(3, LoadKind.STOPPED)]

    done = run_of(see(begun(*whole, duration_s=20.0), 50_000))
    cut = run_of(see(begun(*stopped, duration_s=20.0), 50_000))

    assert done.share == 1.0
    assert cut.share == pytest.approx(0.1)
    assert cut.elapsed_s == pytest.approx(2)


def test_failures_are_told_by_kind_with_what_the_first_said(see: See) -> None:
    readings = begun(
        failed(0, 1.1, "timeout", "after 120 s"),
        failed(1, 1.2, "http_5xx", "500 first"),
        failed(2, 1.3, "http_5xx", "500 second"),
    )

    found = run_of(see(readings, 2_000)).failures

    assert [(each.kind, each.count, each.first) for each in found] == [
        ("http_5xx", 2, "500 first"),
        ("timeout", 1, "after 120 s"),
    ]


def test_a_change_of_the_rate_tells_what_was_before_and_when(see: See) -> None:
    run = run_of(see(begun(rate(5, 11.0), second(6)), 6_000))

    assert (run.before, run.rate_per_s, run.changed_ns) == (10.0, 11.0, 5 * S)


def test_users_of_a_closed_loop_are_no_rate(see: See) -> None:
    plan = planned(arrivals=Arrivals.CLOSED, rate_per_s=None, concurrency=8)
    readings = [plan, event(0.9, LoadKind.STARTED), users(1, 8), users(5, 9), second(6)]

    view = view_of(see(readings, 6_000))

    assert view.run is not None
    assert (view.run.users, view.run.before, view.run.rate_per_s) == (9, 8, None)
    assert set(view.timeline.asked_per_s) == {None}


def test_asked_and_sent_stand_on_the_bins_of_the_timeline(see: See) -> None:
    snapshot = see(begun(*load(4), rate(5, 20.0), second(6, 20)), 6_400)

    columns = view_of(snapshot).timeline
    line = snapshot.timeline
    assert (columns.start_ns, columns.bin_ns) == (line.start_ns, line.bin_ns)

    def at(moment_s: float, name: str) -> float | None:
        index = line.index_at(int(moment_s * S))
        assert index is not None
        column: tuple[float | None, ...] = getattr(columns, name)
        assert len(column) == len(line.steps)
        return column[index]

    assert at(0.2, "asked_per_s") is None
    assert at(2.2, "asked_per_s") == 10.0
    assert at(5.2, "asked_per_s") == 20.0
    assert at(2.2, "sent_per_s") == pytest.approx(10)
    assert at(5.2, "sent_per_s") == pytest.approx(20)
    assert at(6.2, "sent_per_s") is None


@pytest.mark.parametrize("window", list(Window), ids=lambda each: each.label)
def test_latencies_stand_where_they_were_measured(see: See, window: Window) -> None:
    slow = request(99, 3.0, first_token_ns=3 * S + 400 * MS, last_token_ns=4 * S)
    readings = begun(*load(2), slow, chunks(slow, 10, 200))

    snapshot = see(readings, 6_000, window)

    columns = view_of(snapshot).timeline

    def bin_of(t_ns: int) -> int:
        return (t_ns - columns.start_ns) // columns.bin_ns

    index = bin_of(3 * S + 400 * MS)
    assert columns.ttft_max_s[index] == pytest.approx(0.4)
    assert columns.itl_max_s[bin_of(3 * S + 610 * MS)] == pytest.approx(0.2)
    early = bin_of(S + 50 * MS)
    if early != index:
        assert columns.ttft_mean_s[early] == pytest.approx(0.05)


def test_a_run_that_is_over_has_columns_from_its_start_to_its_end(see: See) -> None:
    ended = event(5, LoadKind.STOPPED)

    views = [view_of(see(begun(*load(3), ended), 500_000, window)) for window in Window]

    assert all(view == views[0] for view in views)
    columns = views[0].timeline
    assert columns.start_ns <= S
    assert columns.start_ns + columns.bin_ns * len(columns.sent_per_s) >= 5 * S
    assert len(columns.sent_per_s) == 10
    sent = [each for each in columns.sent_per_s if each is not None]
    assert sum(sent) / len(sent) == pytest.approx(10)


def test_the_achieved_rate_is_over_the_time_that_was_sent(see: See) -> None:
    readings = begun(*load(4), event(5.0, LoadKind.STOPPED))

    view = view_of(see(readings, 40_000))

    assert view.achieved_per_s == pytest.approx(10)
    assert view.asked_mean_per_s == 10.0


def test_who_waits_for_the_last_answers_achieves_no_less(see: See) -> None:
    waits = [second(at_s, 1) for at_s in range(6, 20)]
    drains = event(5.0, LoadKind.DRAINING)

    view = view_of(see(begun(*load(4), drains, *waits), 19_000))

    assert view.achieved_per_s == pytest.approx(10, rel=0.05)
    assert view.timeline.sent_per_s[-2] is None
    assert view.timeline.asked_per_s[-2] is None


def test_what_warmed_up_was_not_asked(see: See) -> None:
    ended, faster = event(9, LoadKind.WARMUP_ENDED), rate(12, 30.0)

    snapshot = see(begun(ended, faster, second(13, 5), warmup_s=8.0), 13_000)

    asked = view_of(snapshot).timeline.asked_per_s
    indexes = [snapshot.timeline.index_at(at_s * S) for at_s in (5, 10, 13)]
    told = [asked[index] for index in indexes if index is not None]
    assert told == [None, 10.0, 30.0]


def test_what_warmed_up_is_not_achieved(see: See) -> None:
    warm = [request(n, 1 + n / 40, phase=Phase.WARMUP) for n in range(40)]
    steady = [request(40 + n, 2 + n / 10) for n in range(20)]
    readings = begun(
        *warm,
        second(2.0, 5),
        event(2.0, LoadKind.WARMUP_ENDED),
        *steady[:10],
        second(3.0, 5),
        *steady[10:],
        second(4.0, 5),
        warmup_s=1.0,
    )

    view = view_of(see(readings, 4_000))

    assert view.achieved_per_s == pytest.approx(10.0)


def test_a_new_run_begins_anew_and_late_words_of_the_old_are_not_its(see: See) -> None:
    late = request(70, 4.0)
    other = event(5, LoadKind.STARTED, source="load-2")

    run = run_of(see([*begun(*load(2)), other, late], 6_000))

    assert (run.run_id, run.sent, run.succeeded) == ("load-2", 0, 0)
    assert run.plan is None


def another(*readings: AnyReading, source: str, **plan: Any) -> list[AnyReading]:
    """The same of another run, after the first."""
    facts = {"run_id": source, "model": "m", "rate_per_s": 20.0, "warmup_s": 0.0}
    text = public_plan(LoadPlan(**{**facts, **plan}))
    return [
        LoadPlanned(source=source, t_ns=20 * S, plan=text),
        event(20, LoadKind.STARTED, source=source),
        event(20, LoadKind.RATE, source=source, rate_per_s=20.0),
        *(msgspec.structs.replace(each, source=source) for each in readings),
    ]


ENDED = event(6, LoadKind.STOPPED)


def test_two_loads_on_one_engine_are_never_pooled(see: See) -> None:
    slow = request(7, 21, first_token_ns=24 * S, last_token_ns=25 * S)
    readings = [*begun(*load(3), ENDED), *another(slow, source="load-2")]

    view = view_of(see(readings, 26_000, Window.SESSION))

    first, second = view.runs
    assert [each.run.run_id for each in (first, second) if each.run] == [RUN, "load-2"]
    assert [each.number for each in view.runs] == [1, 2]
    assert [each.latencies[0].quantiles.n for each in view.runs] == [30, 1]
    assert first.latencies[0].quantiles.max == pytest.approx(0.05)
    assert second.latencies[0].quantiles.max == pytest.approx(3)
    assert [len(each.events) for each in view.runs] == [3, 2]
    assert max(filter(None, second.timeline.ttft_max_s)) == pytest.approx(3)
    assert second.others == (first,)


def test_an_earlier_run_is_told_as_it_was_when_it_was_the_latest(see: See) -> None:
    alone = begun(*load(3), ENDED, slo="ttft_s<0.2")

    then = view_of(see(alone, 26_000))
    now = view_of(see([*alone, *another(source="load-2")], 26_000))

    assert now.others == (then,)


def test_two_runs_that_go_on_at_once_are_told_apart(see: See) -> None:
    """One was started here, the other by somebody else."""
    readings = [*begun(*load(1)), *another(source="load-2"), *load(2, first=10)]

    view = view_of(see(readings, 21_000))

    runs = [each.run for each in view.runs if each.run]
    assert [(run.run_id, run.succeeded) for run in runs] == [(RUN, 30), ("load-2", 0)]


def test_of_many_runs_the_latest_are_kept_with_their_numbers() -> None:
    model = Model()
    for number in range(150):
        source = f"load-{number}"
        model.fold(event(number, LoadKind.STARTED, source=source))
        model.fold(event(number + 0.5, LoadKind.STOPPED, source=source))

    runs = view_of(model.snapshot(200 * S, SnapshotQuery(Window.MINUTE))).runs

    assert [each.number for each in runs] == list(range(50, 151))


def test_what_a_checkpoint_keeps_of_an_earlier_run_is_written_once() -> None:
    model = Model()
    for reading in [*begun(*load(60), ENDED), *another(source="load-2")]:
        model.fold(reading)
    before = model.saved()

    model.fold(second(22))

    assert set(before.parts) <= set(model.saved().parts)
    assert len(before.state) < 8_000


def test_rates_of_what_was_done_are_over_the_time_that_it_took(see: See) -> None:
    run = run_of(see(begun(*load(4), event(6.0, LoadKind.STOPPED)), 40_000))

    assert run.done_per_s == pytest.approx(40 / 3.991)
    assert run.tokens_per_s == pytest.approx(200 / 3.991)


def test_tokens_that_the_server_did_not_count_are_no_rate(see: See) -> None:
    uncounted = request(90, 1.5, output_tokens=None)

    run = run_of(see(begun(*load(1), uncounted, second(3, 0)), 3_200))

    assert run.done_per_s is not None
    assert run.tokens_per_s is None


def test_counts_of_a_run_add_up_even_where_reports_were_lost(see: See) -> None:
    final = second(6.0, final=True, sends=43, held_back=5)
    readings = begun(*load(4), final, event(6.0, LoadKind.STOPPED))

    run = run_of(see(readings, 40_000))

    assert (run.sent, run.succeeded, run.unaccounted) == (43, 40, 3)
    assert (run.in_flight, run.held_back) == (0, 5)


def test_of_a_generator_that_died_nobody_knows_what_was_in_flight(see: See) -> None:
    run = run_of(see(begun(*load(1), second(3, 4)), 60_000))

    assert run.state is RunState.SILENT
    assert (run.sent, run.succeeded, run.in_flight, run.unaccounted) == (
        14,
        10,
        None,
        4,
    )


def test_objectives_of_the_plan_judge_each_request(see: See) -> None:
    slow = request(90, 3, first_token_ns=3 * S + 300 * MS, last_token_ns=4 * S)
    jerky = request(91, 3.2)
    readings = begun(
        *load(1),
        slow,
        chunks(slow),
        chunks(jerky, 10, 90),
        jerky,
        failed(92, 3.3, "refused", ""),
        request(93, 3.4, failure="aborted", first_token_ns=None),
        slo="ttft_s<0.2 itl_s<0.05",
    )

    view = view_of(see(readings, 6_000))

    assert view.slo == "ttft_s<0.2 itl_s<0.05"
    assert (view.judged, view.good) == (13, 10)


def test_a_good_client_is_ok_and_tells_its_lags(see: See) -> None:
    view = view_of(see(begun(*load(12)), 13_000))

    assert (view.verdict, view.reasons) == ("OK", ())
    assert view.send_lag_p99_s == pytest.approx(0.001)
    assert view.recv_lag_p99_s == pytest.approx(40e-6)
    assert view.cpu_share == pytest.approx(0.1)
    assert view.merged_share == 0


def test_gaps_within_merged_reads_make_no_itl_of_zero(see: See) -> None:
    def measured(merged_reads: int) -> dict[str, Any]:
        made = request(1, 1)
        told = second(2, reads=500, merged_reads=merged_reads)
        view = view_of(see(begun(made, chunks(made, 0, 0, 0, 40), told), 3_000))
        return {each.metric: each.quantiles for each in view.latencies}

    assert measured(0)["itl_s"].p50 == 0
    merged = measured(100)["itl_s"]
    assert merged.p50 is None
    assert merged.max == pytest.approx(0.04)
    assert merged.mean == pytest.approx(0.01)


def test_a_busy_client_is_the_bottleneck_only_while_it_is_busy(see: See) -> None:
    busy = [second(14 + at, cpu_s=0.95) for at in range(10)]
    calm = [second(24 + at) for at in range(20)]
    requests = [request(500 + n, 14 + n / 10) for n in range(300)]

    then = view_of(see(begun(*load(12), *requests[:100], *busy), 23_500))
    now = view_of(see(begun(*load(12), *busy, *requests, *calm), 43_500))

    assert then.verdict == "CLIENT-BOUND"
    assert "95% of a core" in then.reasons[0]
    assert now.verdict == "OK"


def test_a_verdict_does_not_flip_until_ten_seconds_were_good(see: See) -> None:
    """Every second is judged by the ten before it: bound until 16 s, OK from 26 s."""
    busy = [second(5 + at, cpu_s=0.95) for at in range(10)]
    calm = [second(15 + at) for at in range(20)]
    requests = [request(500 + n, 2 + n / 10) for n in range(300)]
    readings = begun(*requests[:30], *busy, *requests[30:], *calm)

    verdicts = [
        view_of(see(readings[: len(readings) - 20 + n], 15_000 + 1_000 * n)).verdict
        for n in range(21)
    ]

    changes = [n for n in range(20) if verdicts[n] != verdicts[n + 1]]
    assert (verdicts[0], verdicts[-1]) == ("CLIENT-BOUND", "OK")
    assert len(changes) == 1
    assert changes[0] >= 10


def host(t_s: float, busy_s: float, **cpu_s: float) -> HostSample:
    used = [
        ProcessUsage(pid=place, role=role, cpu_s=each, rss_bytes=1)
        for place, (role, each) in enumerate(cpu_s.items())
    ]
    return HostSample(t_ns=int(t_s * S), processes=used, cores=2, busy_s=busy_s)


def test_a_busy_client_names_who_keeps_its_host_busy(see: See) -> None:
    busy = [second(14 + at, reads=99, merged_reads=9) for at in range(10)]
    hosts = [
        host(12, 10, api=1, core=5, load=1),
        host(16, 15.6, api=2, core=9, load=1.8),
    ]

    view = view_of(see(begun(*load(12), *hosts, *busy), 23_500))

    assert view.cause == ("this host: 1.4 of 2 cores busy, engine 1.2, client 0.1")


def test_an_engine_that_leaves_no_core_is_said_beside_the_cause(see: See) -> None:
    busy = [second(14 + at, reads=99, merged_reads=9) for at in range(10)]
    hosts = [
        host(12, 10, api=1, core=5, worker=5, load=1),
        host(16, 17.6, api=1.4, core=8.6, worker=8.2, load=1.4),
    ]

    view = view_of(see(begun(*load(12), *hosts, *busy), 23_500))

    assert view.cause == (
        "this host: 1.9 of 2 cores busy, engine 1.8, client 0.1: "
        "too few cores for the engine and its client"
    )


def test_nobody_is_blamed_where_the_host_is_not_known(see: See) -> None:
    busy = [second(14 + at, cpu_s=0.95) for at in range(10)]

    view = view_of(see(begun(*load(12), *busy), 23_500))

    assert (view.verdict, view.cause) == ("CLIENT-BOUND", None)


def test_a_run_that_has_ended_is_judged_as_a_whole(see: See) -> None:
    """Bound in its last seconds only; the generator summed up a calm minute."""
    busy = [second(14 + at, cpu_s=0.95) for at in range(10)]
    whole = second(24, span_ns=60 * S, cpu_s=15.0, final=True)
    going_on = begun(*load(12), *busy)
    ended = [*going_on, whole, event(24, LoadKind.STOPPED)]

    assert view_of(see(going_on, 24_000)).verdict == "CLIENT-BOUND"
    assert view_of(see(ended, 24_500)).verdict == "OK"


def test_who_is_held_back_by_the_cap_is_not_late(see: See) -> None:
    late = [request(n, 1 + n / 10, sent_ns=int((1.9 + n / 10) * S)) for n in range(100)]
    seconds = [second(2 + at, in_flight=8) for at in range(10)]

    view = view_of(see(begun(*late, *seconds, max_in_flight=8), 11_500))

    assert view.verdict == "UNKNOWN"


def test_what_a_checkpoint_keeps_of_a_load_does_not_grow_with_it() -> None:
    model, sizes = Model(), []
    for reading in begun(*load(240)):
        model.fold(reading)
        if isinstance(reading, ClientSample):
            sizes.append(len(model.saved().state))

    half = len(sizes) // 2  # at two minutes the bins of the session are all there
    assert max(sizes) < 1.5 * max(sizes[:half])


def test_nothing_is_told_before_there_is_a_load(see: See) -> None:
    assert see([planned()], 1_000).client is None


def test_a_plan_that_cannot_be_read_is_no_plan(see: See) -> None:
    strange = LoadPlanned(t_ns=1, plan="{]")

    run = run_of(see([strange, event(1, LoadKind.STARTED), rate(1, 5.0)], 2_000))

    assert run.plan is None
    assert run.state is RunState.SENDING


def test_the_plan_is_told_as_it_was_recorded(see: See) -> None:
    run = run_of(see(begun(duration_s=7.0), 2_000))

    assert run.plan is not None
    assert msgspec.json.decode(run.plan, type=LoadPlan).duration_s == 7.0


def readings_of_a_busy_load() -> Iterable[AnyReading]:
    yield from begun(*load(20), slo="ttft_s<0.2")
    yield rate(21, 30.0)
    for at in range(20):
        for number in range(30):
            made = request(1_000 + at * 30 + number, 21 + at + number / 30)
            yield from (chunks(made), made)
        yield second(22 + at, 3)
    yield event(42, LoadKind.DRAINING)
    yield event(43, LoadKind.STOPPED)


@pytest.mark.parametrize("window", list(Window), ids=lambda each: each.label)
def test_looking_changes_nothing(window: Window) -> None:
    seldom, often = Model(), Model()

    for number, reading in enumerate(readings_of_a_busy_load()):
        seldom.fold(reading)
        often.fold(reading)
        if number % 37 == 0:
            often.snapshot(number * 10 * MS, SnapshotQuery(Window.SESSION))
            often.snapshot(number * 10 * MS, SnapshotQuery(window))

    now_ns = 44 * S
    assert often.snapshot(now_ns, SnapshotQuery(window)) == seldom.snapshot(
        now_ns, SnapshotQuery(window)
    )
    assert seldom.snapshot(now_ns, SnapshotQuery(window, client=False)).client is None
