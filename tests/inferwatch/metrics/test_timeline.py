"""Columns over time: aligned, complete, with gaps where nothing was measured."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import strategies as st

from collectors.contract.readings import BoundBy, Note, NoteKind, Step
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from tests.inferwatch.metrics.drawn import drawn

See = Callable[..., Snapshot]
Make = Callable[..., Any]
MS = 1_000_000
S = 1_000 * MS


@pytest.mark.parametrize(
    ("window", "bin_ns", "columns"),
    [
        (Window.TEN_SECONDS, 100 * MS, 100),
        (Window.MINUTE, 500 * MS, 120),
        (Window.FIVE_MINUTES, 2_500 * MS, 120),
    ],
)
def test_a_window_has_its_columns_ending_now(
    see: See, make_step: Make, window: Window, bin_ns: int, columns: int
) -> None:
    timeline = see([make_step(400_050, {0: 1})], 400_060, window).timeline

    assert timeline.bin_ns == bin_ns
    assert timeline.start_ns % bin_ns == 0
    assert len(timeline.steps) == len(timeline.slowest_step) == columns
    assert timeline.index_at(400_060 * MS) == columns - 1
    assert timeline.steps == (0,) * (columns - 1) + (1,)


def test_long_columns_have_short_ones_of_now_beside_them(
    see: See, make_step: Make
) -> None:
    steps = [make_step(400_000 + at, {0: 1}, waiting=9) for at in (100, 900, 1_300)]
    steps.append(make_step(401_800, {0: 1}, waiting=2))

    short = see(steps, 402_060, Window.MINUTE)
    long = see(steps, 402_060, Window.FIVE_MINUTES)

    assert short.latest is None
    assert long.timeline.waiting_max[-1] == 9
    assert long.latest is not None
    assert long.latest.bin_ns == 500 * MS
    assert long.latest.waiting_max[-2] == 2


def test_short_columns_of_now_are_there_only_if_asked_for(make_step: Make) -> None:
    model = Model()
    model.fold(make_step(400_000, {0: 1}))
    query = SnapshotQuery(Window.FIVE_MINUTES)

    assert model.snapshot(400_060 * MS, query).latest is None
    assert model.snapshot(400_060 * MS, replace(query, latest=True)).latest is not None


def test_windows_have_names_to_show() -> None:
    assert [window.label for window in Window] == ["10 s", "60 s", "5 min", "session"]


def test_a_column_keeps_its_place_as_time_goes_on(see: See, make_step: Make) -> None:
    step = make_step(5_000, {0: 1})

    starts = {
        timeline.start_ns + timeline.steps.index(1) * timeline.bin_ns
        for now_ms in (5_010, 5_555, 9_999, 12_345)
        for timeline in [see([step], now_ms, Window.TEN_SECONDS).timeline]
    }

    assert starts == {5 * S}


def test_a_column_says_what_its_steps_did(see: See, make_step: Make) -> None:
    steps = [
        make_step(
            5_010,
            {0: 1, 1: 1, 2: 0},
            scheduled=[1, 1, 30],
            prefill_requests=1,
            decode_requests=2,
            prefill_tokens=30,
            waiting=4,
            bound_by=BoundBy.TOKENS,
            kv_used_blocks=10,
            kv_cached_blocks=2,
            kv_free_blocks=88,
        ),
        make_step(
            5_040,
            {0: 2, 1: 1},
            duration_ms=30,
            waiting=2,
            bound_by=BoundBy.KV,
            preempted=[2],
            kv_used_blocks=9,
            kv_cached_blocks=3,
            kv_free_blocks=88,
        ),
    ]

    timeline = see(steps, 5_099, Window.TEN_SECONDS).timeline

    assert last(timeline) == {
        "ttft_mean_s": None,
        "ttft_max_s": None,
        "itl_mean_s": pytest.approx(0.030),
        "itl_max_s": pytest.approx(0.030),
        "batch_prefill": 0.5,
        "batch_decode": 2.0,
        "batch_max": 3,
        "waiting_max": 4,
        "prefill_tokens": 30,
        "output_tokens": 5,
        "kv_used_blocks": 9,
        "kv_cached_blocks": 3,
        "kv_free_blocks": 88,
        "step_mean_s": pytest.approx(0.020),
        "step_max_s": pytest.approx(0.030),
        "steps": 2,
        "bound_seqs": 0.0,
        "bound_tokens": 0.25,
        "bound_kv": 0.75,
        "bound_deferred": 0.0,
        "bound_other": 0.0,
        "step_heat": ((47, 1), (50, 1)),
        "preemptions": 1,
        "gap_mean_s": 0.0,
        "prefill_share": pytest.approx(10 * 30 / 33 / 40),
        "decode_tokens": 5,
    }


def last(timeline: Timeline) -> dict[str, Any]:
    """The newest of each column, without the step itself."""
    skipped = {"start_ns", "bin_ns", "lost_ns", "slowest_step"}
    names = [each.name for each in fields(Timeline) if each.name not in skipped]
    columns = {name: getattr(timeline, name) for name in names}
    return {name: column[-1] for name, column in columns.items() if column}


def test_no_step_is_a_gap_and_no_zero(see: See, make_step: Make) -> None:
    timeline = see([make_step(5_000, {0: 1})], 9_000, Window.TEN_SECONDS).timeline

    assert {name for name, value in last(timeline).items() if value is not None} == {
        "steps"
    }


def test_a_latency_without_a_step_still_has_its_column(
    see: See, make_life: Make
) -> None:
    front, _ = make_life(5_000, ordinal=0)

    snapshot = see(front, 5_050, Window.TEN_SECONDS)

    assert last(snapshot.timeline)["ttft_mean_s"] == pytest.approx(0.011)
    assert last(snapshot.timeline)["output_tokens"] is None
    trends = {row.metric: row.trend[-1] for row in snapshot.latencies}
    assert trends["e2el_s"] == pytest.approx(0.031)
    assert trends["itl_s"] is None


def test_blocks_are_those_at_the_bins_last_step_in_any_order(
    see: See, make_step: Make
) -> None:
    later = make_step(5_060, {0: 1}, kv_used_blocks=20)
    earlier = make_step(5_050, {0: 1}, kv_used_blocks=10)

    timeline = see([later, earlier], 5_070, Window.TEN_SECONDS).timeline

    assert last(timeline)["kv_used_blocks"] == 20


def test_the_slowest_step_is_kept_without_its_members(
    see: See, make_step: Make
) -> None:
    steps = [
        make_step(5_010, {0: 1}, index=1),
        make_step(5_040, {0: 1}, index=2, duration_ms=30),
        make_step(5_050, {0: 1}, index=3),
    ]

    (slowest,) = filter(None, see(steps, 5_060).timeline.slowest_step)

    assert isinstance(slowest, Step)
    assert (slowest.index, slowest.members, slowest.produced) == (2, [], [])


def test_engines_of_two_ranks_add_up_their_blocks(see: See, make_step: Make) -> None:
    steps = [
        make_step(5_010, {0: 1}, rank=0, kv_used_blocks=10),
        make_step(5_020, {1: 1}, rank=1, kv_used_blocks=5),
    ]

    snapshot = see(steps, 5_030, Window.TEN_SECONDS)

    assert last(snapshot.timeline)["kv_used_blocks"] == 15
    assert (snapshot.kv.used_blocks, snapshot.flow.running) == (15, 2)


@pytest.mark.parametrize(
    ("until_s", "bin_s", "columns"),
    [(10, 0.5, 21), (119, 0.5, 239), (121, 1, 122), (3_600, 16, 226)],
)
def test_session_bins_double_to_stay_below_240_columns(
    see: See, make_step: Make, until_s: int, bin_s: float, columns: int
) -> None:
    steps = [make_step(1_000 * n, {0: 1}) for n in range(until_s + 1)]

    timeline = see(steps, 1_000 * until_s, Window.SESSION).timeline

    assert timeline.bin_ns == bin_s * S
    assert len(timeline.steps) == columns
    assert sum(timeline.steps) == until_s + 1


def test_a_session_gone_quiet_still_reaches_until_now(
    see: See, make_step: Make
) -> None:
    timeline = see([make_step(0, {0: 1})], 3_600_000, Window.SESSION).timeline

    assert timeline.index_at(3_600_000 * MS) == len(timeline.steps) - 1 < 240
    assert timeline.steps[0] == 1


def test_an_empty_session_has_one_empty_column(see: See) -> None:
    assert see([], 100_000, Window.SESSION).timeline.steps == (0,)


def test_steps_from_before_the_session_have_columns(see: See, make_step: Make) -> None:
    steps = [make_step(-20_000, {0: 1}), make_step(1_000, {0: 1})]

    snapshot = see(steps, 1_000, Window.SESSION)

    assert snapshot.timeline.start_ns <= -20 * S
    assert snapshot.covered_ns == 21 * S + 10 * MS


@pytest.mark.soak
def test_the_day_is_kept_in_few_bins(make_step: Make) -> None:
    model = Model()
    for second in range(0, 86_400, 20):
        model.fold(make_step(1_000 * second, {0: 1}))

    history = model._history
    held = [history._whole.bins, *(each.bins for each in history._rolling.values())]
    assert all(len(bins) <= 240 for bins in held)
    timeline = model.snapshot(86_400 * S, SnapshotQuery(Window.SESSION)).timeline
    assert sum(timeline.steps) == 86_400 // 20


@drawn(
    10,
    40,
    ends_ms=st.lists(st.integers(0, 400_000), max_size=60),
    looks=st.sets(st.integers(0, 60)),
    window=st.sampled_from(Window),
)
def test_looking_changes_nothing_and_order_does_not_matter(
    ends_ms: list[int], looks: set[int], window: Window, make_step: Make
) -> None:
    steps = [make_step(end, {0: 1}, duration_ms=1 + end % 7) for end in ends_ms]
    now_ns = max(ends_ms, default=0) * MS
    seldom, often, sorted_ = Model(), Model(), Model()

    for index, step in enumerate(steps):
        seldom.fold(step)
        often.fold(step)
        if index in looks:
            often.snapshot(step.end_ns, SnapshotQuery(window))
    for step in sorted(steps, key=lambda step: step.end_ns):
        sorted_.fold(step)

    rare = seldom.snapshot(now_ns, SnapshotQuery(window))
    assert often.snapshot(now_ns, SnapshotQuery(window)) == rare
    assert (
        sorted_.snapshot(now_ns, SnapshotQuery(window)).timeline.steps
        == rare.timeline.steps
    )
    assert sorted_.snapshot(now_ns, SnapshotQuery(window)).steps == rare.steps


@pytest.mark.parametrize("window", list(Window))
def test_what_led_to_a_loss_stays_in_sight(
    see: See, make_step: Make, window: Window
) -> None:
    steps = [make_step(1_000 + 10 * n, {0: 1}) for n in range(100)]
    lost = Note(t_ns=2 * S, kind=NoteKind.LOST, text="gone")

    at_once = see([*steps, lost], 2_000, window)
    later = see([*steps, lost], 600_000, window)

    assert sum(later.timeline.steps) == 100
    assert later.timeline == at_once.timeline
    assert later.timeline.lost_ns == 2 * S
    assert (later.steps, later.latencies) == (at_once.steps, at_once.latencies)
    assert later.covered_ns == at_once.covered_ns > 0


def test_charts_go_on_when_an_engine_is_up_again(see: See, make_step: Make) -> None:
    lost = Note(t_ns=2 * S, kind=NoteKind.LOST, text="gone")
    again = Note(t_ns=5 * S, kind=NoteKind.RESTARTED, text="again")

    timeline = see([make_step(1_000, {0: 1}), lost, again], 9_000).timeline

    assert timeline.lost_ns is None
    assert timeline.index_at(9 * S) == len(timeline.steps) - 1
