"""Rates, batch, budget and KV over the window."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.readings import (
    BoundBy,
    ClockAnchor,
    Endpoint,
    EngineInfo,
    EngineSettings,
    EventKind,
    GpuInfo,
    Note,
    NoteKind,
    Phase,
    RequestRecord,
    Tick,
    Vantage,
)
from inferwatch.metrics.requests.outcomes import Outcomes, client_id
from inferwatch.metrics.requests.request import Request
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot

See = Callable[..., Snapshot]
Make = Callable[..., Any]
ENGINE = "engine-1"
MS = 1_000_000
S = 1_000 * MS


def info(**fields: Any) -> EngineInfo:
    facts: dict[str, Any] = {
        "source": ENGINE,
        "t_ns": 0,
        "pid": 1,
        "model": "tiny",
        "vllm_version": "0.32.0",
        "num_kv_blocks": 100,
        "kv_block_tokens": 32,
        "max_num_batched_tokens": 100,
    }
    return EngineInfo(**{**facts, **fields})


def test_adapters_are_counted_where_lora_is_on(see: See, make_life: Make) -> None:
    readings: list[Any] = []
    for n, (lora, scheduled) in enumerate(
        [("sql", True), ("sql", True), (None, True), ("sql", False), ("law", False)]
    ):
        _, engine = make_life(1_000, ordinal=n, tokens=9)
        added, begun, *_ = engine
        readings.append(replace(added, lora=lora))
        readings += [begun] if scheduled else []
    lora_on = EngineSettings(source=ENGINE, t_ns=0, settings={"max_loras": 1})

    flow = see([info(), lora_on, *readings], now_ms=1_500).flow
    off = see([info(), *readings], now_ms=1_500).flow

    assert (flow.running, flow.waiting) == (3, 2)
    assert (flow.adapters, flow.adapters_waiting) == (1, 1)
    assert (off.adapters, off.adapters_waiting) == (None, None)


def test_rates_are_over_what_was_watched_of_the_window(
    see: See, make_life: Make
) -> None:
    lives = [make_life(1_000 * n, ordinal=n, tokens=4) for n in range(8)]
    readings = [each for front, engine in lives for each in (*front, *engine)]

    flow = see([info(), *readings], now_ms=8_000).flow
    late = see([info(), *readings], now_ms=10_000, window=Window.TEN_SECONDS).flow

    assert flow.arrivals_per_s == flow.finished_per_s == 1
    assert flow.output_tokens_per_s == 4
    assert (flow.finished, flow.failed, flow.aborted) == (8, 0, 0)
    assert late.arrivals_per_s == 0.7  # the one at 0 s is outside (0 s, 10 s]
    assert flow.tokens_per_s_per_user == pytest.approx(100)
    assert flow.prompt_tokens_p50 == 20


def test_no_rate_is_told_of_less_than_a_second(see: See, make_step: Make) -> None:
    flow = see([make_step(100, {0: 1})], now_ms=1_000).flow

    assert flow.output_tokens_per_s is None
    assert flow.batch_mean == 1


def test_nothing_heard_is_unknown_and_not_zero(see: See) -> None:
    snapshot = see([])

    assert snapshot.covered_ns == 0
    assert snapshot.flow.arrivals_per_s is None
    assert snapshot.flow.running is snapshot.flow.waiting is None
    assert snapshot.flow.kv_usage is snapshot.kv.used_blocks is None
    assert snapshot.steps.batch_mean is snapshot.steps.batch_max is None
    assert snapshot.client is None


def test_what_is_older_than_the_session_was_watched_since_it_began(
    see: See, make_event: Make
) -> None:
    live = make_event(-60_000, EventKind.ADDED, ordinal=0)

    assert see([info(t_ns=-(10**12))], now_ms=5_000).covered_ns == 5 * S
    assert see([live], now_ms=5_000).covered_ns == 5 * S


def test_steps_are_counted_by_their_end(see: See, make_step: Make) -> None:
    outside = make_step(40_000, {0: 1, 1: 1}, bound_by=BoundBy.KV)
    inside = [
        make_step(40_001, {0: 1}, bound_by=BoundBy.SEQS),
        make_step(50_000, {0: 1, 1: 1, 2: 2}, prefill_tokens=9, recomputed_tokens=3),
    ]

    steps = see([outside, *inside], 50_000, Window.TEN_SECONDS).steps

    assert (steps.count, steps.batch_mean, steps.batch_max) == (2, 2, 3)
    assert (steps.output_tokens, steps.prefill_tokens) == (5, 9)
    assert steps.recomputed_tokens == 3
    assert steps.duration_s.p50 == pytest.approx(0.010)


@pytest.mark.parametrize("window", [Window.TEN_SECONDS, Window.SESSION])
def test_what_binds_is_a_share_of_the_steps_time_and_not_of_their_number(
    see: See, make_step: Make, window: Window
) -> None:
    fast = [
        make_step(40_000 + 10 * n, duration_ms=10, bound_by=BoundBy.SEQS)
        for n in range(9)
    ]
    slow = make_step(41_000, duration_ms=30, bound_by=BoundBy.TOKENS)

    steps = see([*fast, slow], 42_000, window).steps

    assert steps.share_by_bound[BoundBy.TOKENS] == 0.25
    assert steps.share_by_bound[BoundBy.SEQS] == 0.75
    assert steps.share_by_bound[BoundBy.KV] == 0
    assert steps.steps_by_bound[BoundBy.TOKENS] == 1
    assert sum(steps.steps_by_bound.values()) == steps.count == 10


@pytest.mark.parametrize("window", [Window.TEN_SECONDS, Window.SESSION])
def test_reasons_of_deferrals_are_shares_of_the_steps_time(
    see: See, make_step: Make, window: Window
) -> None:
    deferred = {"bound_by": BoundBy.DEFERRED, "duration_ms": 10}
    told = [
        make_step(40_000, deferred_by="grammar", **deferred),
        make_step(40_010, deferred_by="grammar", **deferred),
        make_step(40_020, deferred_by="adapter", **deferred),
        make_step(40_030, **deferred),
        make_step(40_040, deferred_by="held prefill", duration_ms=60),  # chunks alone
    ]

    steps = see(told, 42_000, window).steps

    assert steps.share_by_deferral == {"grammar": 0.2, "adapter": 0.1}
    assert steps.share_by_bound[BoundBy.DEFERRED] == 0.4


@pytest.mark.parametrize(
    ("later", "share"),
    [
        ({"index": 1}, 30 / 50),
        ({"index": 1, "produced": {7: 1}}, None),
        ({"index": 2}, None),
        ({"index": 1, "source": "another"}, None),
        ({"index": 1, "start_ms": 95}, None),
    ],
    ids=[
        "the same request goes on",
        "another request came",
        "a step between them was lost",
        "of another engine",
        "they overlap",
    ],
)
def test_time_between_steps_counts_where_there_was_work(
    see: See, make_step: Make, later: dict[str, Any], share: float | None
) -> None:
    produced = later.pop("produced", {1: 1, 2: 1})
    start_ms = later.pop("start_ms", 130)
    first = make_step(100, {2: 1, 1: 1}, index=0)
    second = make_step(140, produced, start_ns=start_ms * MS, **later)

    assert see([first, second]).steps.gap_share == (0 if share is None else share)


def test_time_between_steps_counts_while_anything_waits(
    see: See, make_step: Make
) -> None:
    steps = [
        make_step(100, {1: 1}, index=0, waiting=3),
        make_step(140, {2: 1}, index=1),
    ]

    assert see(steps).steps.gap_share == 30 / 50
    assert see([]).steps.gap_share is None
    deferred = make_step(140, {2: 1}, index=1, deferred_before="grammar")
    assert see([steps[0], deferred]).steps.gap_share == 0


@pytest.mark.parametrize("window", [Window.FIVE_MINUTES, Window.SESSION])
def test_the_session_adds_up_like_a_window(
    see: See, make_step: Make, window: Window
) -> None:
    steps = [make_step(10 * n, {0: 1, 1: 1}) for n in range(1, 101)]

    totals = see(steps, 1_000, window).steps

    assert (totals.count, totals.batch_max, totals.output_tokens) == (100, 2, 200)


def test_the_budget_counts_only_where_it_is_known(see: See, make_step: Make) -> None:
    before = make_step(10, {0: 1}, decode_tokens=90)
    after = make_step(30, {0: 1}, decode_tokens=1, prefill_tokens=39)

    assert see([before]).flow.budget_usage is None
    assert see([before, info(), after]).flow.budget_usage == 0.4
    assert see([info(max_num_batched_tokens=None), after]).flow.budget_usage is None


def test_the_hit_rate_is_of_what_was_looked_up(see: See, make_step: Make) -> None:
    steps = [
        make_step(10, {0: 0}, prefix_queries=100, prefix_hits=64),
        make_step(20, {0: 1}, prefix_queries=100, prefix_hits=0),
        make_step(30, {0: 1}),
    ]

    snapshot = see(steps)

    assert snapshot.flow.prefix_hit_rate == 0.32
    assert (snapshot.kv.prefix_queries, snapshot.kv.prefix_hits) == (200, 64)
    assert see(steps[2:]).flow.prefix_hit_rate is None


def test_kv_is_the_latest_and_the_peak_is_the_sessions(
    see: See, make_step: Make
) -> None:
    steps = [
        make_step(10, {0: 1}, kv_used_blocks=80),
        make_step(
            20_000,
            {0: 1},
            kv_used_blocks=30,
            kv_cached_blocks=50,
            kv_free_blocks=20,
            preempted=[5],
        ),
    ]

    snapshot = see([info(), *steps], 20_000, Window.TEN_SECONDS)

    kv = snapshot.kv
    assert (kv.used_blocks, kv.cached_blocks, kv.free_blocks) == (30, 50, 20)
    assert (kv.total_blocks, kv.block_tokens) == (100, 32)
    assert (kv.peak_used_blocks, kv.preemptions) == (80, 1)
    assert snapshot.flow.kv_usage == 0.3


def test_the_blocks_of_a_step_tell_the_total_before_the_engine_does(
    see: See, make_step: Make
) -> None:
    whole = make_step(
        10, {0: 1}, kv_used_blocks=30, kv_cached_blocks=50, kv_free_blocks=20
    )
    part = make_step(10, {0: 1}, kv_used_blocks=30)

    assert see([whole]).kv.total_blocks == 100
    assert see([part]).kv.total_blocks is None
    assert see([part]).flow.kv_usage is None


def test_the_last_token_is_the_last_step_with_output(see: See, make_step: Make) -> None:
    steps = [make_step(10, {0: 1}), make_step(20, {1: 0}, scheduled=[64])]

    assert see(steps).last_token_ns == 10 * MS
    assert see(steps[1:]).last_token_ns is None


def test_facts_pass_through(see: See) -> None:
    endpoint = Endpoint(source=ENGINE, t_ns=1, pid=2, model="tiny", url="http://x")
    gpu = GpuInfo(t_ns=1, absent_because="no NVIDIA driver")
    notes = [Note(t_ns=n, kind=NoteKind.BOOKMARK, text=str(n)) for n in range(250)]
    anchor = ClockAnchor(t_ns=0, wall_ns=1, uncertainty_ns=1, boot_id="b")

    snapshot = see([anchor, info(), endpoint, gpu, *notes, Tick(t_ns=5)])

    assert snapshot.endpoints == (endpoint,)
    assert snapshot.engines == (info(),)
    assert snapshot.hardware.no_gpu == gpu.absent_because
    assert snapshot.notes == tuple(notes[50:])


def test_every_gpu_is_kept_and_a_missing_one_only_while_there_is_none(
    see: See,
) -> None:
    absent = GpuInfo(t_ns=1, absent_because="no NVIDIA driver")
    gpus = [GpuInfo(t_ns=2, name="NVIDIA H100", uuid=f"GPU-{n}") for n in range(2)]

    alone = see([absent, absent])
    assert (alone.gpus, alone.hardware.no_gpu) == ((), "no NVIDIA driver")
    both = see([absent, *gpus, *gpus, absent])
    assert [each.info for each in both.gpus] == gpus
    assert both.hardware.no_gpu is None


def test_two_ranks_are_an_engine_of_two_whatever_each_takes_itself_for(
    see: See,
) -> None:
    ranks = [info(rank=rank, data_parallel=1) for rank in range(2)]
    other = info(source="engine-2", data_parallel=1)
    unsaid = info(source="engine-3")

    engines = see([*ranks, other, unsaid]).engines

    assert [engine.data_parallel for engine in engines] == [2, 2, 1, None]


# Outcomes.


def test_the_front_end_corrects_how_a_request_ended(
    see: See, make_life: Make, make_event: Make
) -> None:
    front, engine = make_life(100, ordinal=0)
    abort = make_event(
        140, EventKind.FINISHED, "r0", vantage=Vantage.FRONTEND, reason="abort"
    )

    snapshot = see([*engine, *front[:-1], abort])

    assert (snapshot.flow.finished, snapshot.flow.aborted) == (0, 1)
    assert snapshot.requests[0].state is RequestState.ABORTED


def failure(external_id: str, at_ns: int = 100 * MS) -> RequestRecord:
    return RequestRecord(
        source="load",
        index=0,
        external_id=external_id,
        phase=Phase.STEADY,
        intended_ns=at_ns,
        failure="disconnected",
    )


def test_a_failure_seen_by_engine_and_client_counts_once(
    see: See, make_event: Make
) -> None:
    arrived = make_event(100, EventKind.ARRIVED, external_id="cmpl-abc-0")
    error = make_event(200, EventKind.FINISHED, ordinal=0, reason="error")

    assert see([arrived, error, failure("abc")]).flow.failed == 1
    assert see([failure("abc"), arrived, error]).flow.failed == 1
    assert see([arrived, error, failure("xyz")]).flow.failed == 2


def test_what_fails_at_the_client_after_a_loss_is_not_in_the_window_before_it(
    see: See, make_event: Make
) -> None:
    arrived = make_event(100, EventKind.ARRIVED, external_id="cmpl-abc-0")
    lost = Note(t_ns=2_000 * MS, kind=NoteKind.LOST, text="gone")
    refused = [failure(f"x{n}", 3_000 * MS) for n in range(5)]
    readings = [arrived, failure("early"), lost, *refused]
    on = range(10_000, 800_000, 200)
    failing_on = [failure(f"y{at_ms}", at_ms * MS) for at_ms in on]
    arrivals = see(readings, 3_000).flow.arrivals_per_s

    for many in (readings, [*readings, *failing_on]):
        seen = see(many, 900_000)
        assert (seen.flow.failed, seen.flow.arrivals_per_s) == (2, arrivals)
    assert see(readings, 600_000, Window.SESSION).flow.failed == 7


def test_failures_that_only_the_client_saw_are_counted_apart() -> None:
    outcomes = Outcomes()
    outcomes.ended(Request(source=ENGINE, seen_ns=0), RequestState.FAILED, 0)
    for each in ("a", "b"):
        outcomes.client_failed(each, 0, lost=False)

    sums = outcomes.over(0, Window.SESSION).sums
    assert (sums["failed"], sums["failed_unlisted"]) == (3, 2)


@pytest.mark.parametrize(
    ("external_id", "sent"),
    [("cmpl-a-b-0", "a-b"), ("chatcmpl-a-b", "a-b"), ("a-b", "a-b")],
)
def test_the_clients_id_is_inside_the_servers(external_id: str, sent: str) -> None:
    assert client_id(external_id) == sent


def test_failures_are_remembered_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferwatch.metrics.requests.outcomes.REMEMBERED_FAILURES", 3)
    outcomes = Outcomes()
    for number in range(10):
        request = Request(source=ENGINE, seen_ns=0, request_id=str(number))
        outcomes.ended(request, RequestState.FAILED, 0)

    assert len(outcomes._failed) == 3
    assert outcomes.over(0, Window.SESSION).sums["failed"] == 10
