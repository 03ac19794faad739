"""The request table: live ones first of all, bounded, rebuilt only where changed."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from collectors.contract.readings import EventKind, Note, NoteKind, Vantage
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests import request_index as requests
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery

See = Callable[..., Snapshot]
Make = Callable[..., Any]
ENGINE = "engine-1"
MS = 1_000_000


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_ROWS", 5)


def ids(snapshot: Snapshot) -> list[str]:
    return [row.request_id for row in snapshot.requests]


def dropped(t_ms: float) -> Note:
    return Note(source=ENGINE, t_ns=round(t_ms * MS), kind=NoteKind.DROPPED, text="")


def test_a_row_tells_all_that_is_known(see: See, make_life: Make) -> None:
    front, engine = make_life(100, ordinal=7, tokens=4)

    (row,) = see([*front, *engine]).requests

    assert (row.key, row.request_id, row.ordinal) == ("engine-1/r7", "r7", 7)
    assert (row.state, row.reason) == (RequestState.FINISHED, "stop")
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (20, 0, 4)
    assert row.arrived_ns == 100 * MS
    assert (row.queue_s, row.prefill_s, row.ttft_s) == (0.002, 0.007, 0.011)
    assert (row.tpot_s, row.itl_last_s, row.itl_max_s) == (0.010, 0.010, 0.010)
    assert (row.decode_s, row.e2el_s) == (0.030, 0.041)


def test_unknown_stays_unknown(see: See, make_event: Make) -> None:
    (row,) = see([make_event(1, EventKind.ARRIVED)]).requests

    assert row.state is RequestState.ARRIVED
    assert row.ttft_s is row.queue_s is row.prefill_s is row.decode_s is None
    assert row.itl_last_s is row.itl_max_s is row.tpot_s is row.e2el_s is None


@pytest.mark.parametrize(
    ("heard", "state"),
    [
        (1, RequestState.QUEUED),
        (2, RequestState.PREFILL),
        (3, RequestState.DECODE),
    ],
)
def test_the_state_follows_the_engine(
    see: See, make_life: Make, heard: int, state: RequestState
) -> None:
    front, engine = make_life(100, ordinal=0)

    assert see([front[0], *engine[:heard]]).requests[0].state is state
    assert see([*engine[:heard], front[0]]).requests[0].state is state


def test_a_chunk_of_prefill_is_prefill(
    see: See, make_life: Make, make_step: Make
) -> None:
    _, engine = make_life(100, ordinal=0)
    chunk = make_step(108, {0: 0}, scheduled=[10])

    snapshot = see([*engine[:2], chunk])

    assert snapshot.requests[0].state is RequestState.PREFILL
    assert snapshot.flow.running == 1


def test_a_step_that_brings_a_decoding_request_no_token_is_no_prefill(
    see: See, make_life: Make, make_step: Make
) -> None:
    _, engine = make_life(100, ordinal=0)

    (row,) = see([*engine[:-1], make_step(200, {0: 0})]).requests

    assert (row.state, row.output_tokens) == (RequestState.DECODE, 3)


def test_a_preempted_request_waits_and_says_so(
    see: See, make_life: Make, make_step: Make
) -> None:
    _, engine = make_life(100, ordinal=0)

    snapshot = see([*engine[:-1], make_step(200, preempted=[0, 99], waiting=1)], 500)

    assert snapshot.requests[0].state is RequestState.PREEMPTED
    assert (snapshot.flow.running, snapshot.flow.waiting) == (0, 1)
    assert snapshot.flow.oldest_wait_s == pytest.approx(0.310)


def test_preemption_of_what_has_ended_changes_nothing(
    see: See, make_life: Make, make_step: Make
) -> None:
    _, engine = make_life(100, ordinal=0)

    snapshot = see([*engine, make_step(200, preempted=[0])])

    assert snapshot.requests[0].state is RequestState.FINISHED


def test_without_engine_events_the_front_end_tells_of_decoding(
    see: See, make_life: Make
) -> None:
    front, _ = make_life(100, ordinal=0)

    assert see(front[:2]).requests[0].state is RequestState.DECODE


def test_an_abort_at_the_front_end_ends_a_request_at_once(
    see: See, make_life: Make, make_event: Make
) -> None:
    front, engine = make_life(100, ordinal=0, tokens=3)
    abort = make_event(
        125, EventKind.FINISHED, "r0", vantage=Vantage.FRONTEND, reason="abort"
    )

    snapshot = see([*front[:2], *engine[:-2], abort, engine[-2]], now_ms=500)

    (row,) = snapshot.requests
    assert (row.state, row.output_tokens) == (RequestState.ABORTED, 3)
    assert (snapshot.flow.running, snapshot.flow.aborted) == (0, 1)
    assert snapshot.steps.output_tokens == 3


def test_rows_are_newest_arrival_first(see: See, make_life: Make) -> None:
    lives = [make_life(100 * n, ordinal=n) for n in range(3)]

    assert ids(see([each for front, _ in lives for each in front])) == [
        "r2",
        "r1",
        "r0",
    ]


@pytest.mark.usefixtures("few_rows")
def test_live_requests_are_never_evicted_before_ended_ones(
    see: See, make_life: Make, make_event: Make
) -> None:
    live = [make_event(n, EventKind.ARRIVED, f"live{n}") for n in range(3)]
    ended = [make_life(100 * n, ordinal=n) for n in range(1, 9)]
    readings = [each for front, engine in ended for each in (*front, *engine)]

    snapshot = see([*live, *readings])

    assert ids(snapshot) == ["r8", "r7", "live2", "live1", "live0"]
    assert snapshot.requests_evicted == 6


@pytest.mark.usefixtures("few_rows")
def test_more_live_requests_than_rows_show_the_newest(
    see: See, make_event: Make
) -> None:
    live = [make_event(n, EventKind.ARRIVED, f"live{n}") for n in range(9)]

    snapshot = see(live)

    assert ids(snapshot) == ["live8", "live7", "live6", "live5", "live4"]
    assert snapshot.requests_evicted == 4


@pytest.mark.usefixtures("few_rows")
def test_ended_requests_leave_nothing_behind(make_life: Make) -> None:
    model = Model()
    for ordinal in range(100):
        front, engine = make_life(100 * ordinal, ordinal)
        for reading in (*front, *engine):
            model.fold(reading)

    held = model._requests
    assert len(held._by_id) == len(held.members(ENGINE)) == len(held._ended) == 5
    assert not held.live
    assert not held.running
    assert not held.waiting


def counted(readings: Iterable[Any]) -> tuple[int, int, int, int]:
    """Arrived, finished, aborted, and prompts counted, of a whole session."""
    model = Model()
    for reading in readings:
        model.fold(reading)
    sums = model._outcomes.over(0, Window.SESSION).sums
    prompts = model._outcomes.prompts.quantiles(0, Window.SESSION).n
    return sums["arrived"], sums["finished"], sums["aborted"], prompts


@pytest.mark.parametrize("first", ["front end", "engine"])
def test_a_request_counts_once_however_far_apart_its_two_streams_are(
    make_life: Make, first: str
) -> None:
    lives = [make_life(10 * n, ordinal=n, tokens=1) for n in range(3_000)]
    streams = [[each for life in lives for each in life[end]] for end in range(2)]

    front, engine = streams if first == "front end" else reversed(streams)

    assert counted([*front, *engine]) == (3_000, 3_000, 0, 3_000)


def test_many_that_are_aborted_at_once_count_once(make_event: Make) -> None:
    names = [f"r{n}" for n in range(5_000)]
    prompt = {"prompt_tokens": 20}
    abort = {"reason": "abort", "output_tokens": 0}
    readings = [
        *(make_event(1, EventKind.ARRIVED, name, **prompt) for name in names),
        *(make_event(2, EventKind.ADDED, name, **prompt) for name in names),
        *(
            make_event(3, EventKind.FINISHED, name, vantage=vantage, **abort)
            for vantage in (Vantage.FRONTEND, Vantage.ENGINE)
            for name in names
        ),
    ]

    assert counted(readings) == (5_000, 0, 5_000, 5_000)


@pytest.mark.usefixtures("few_rows")
def test_of_what_one_vantage_alone_ends_only_so_much_is_remembered(
    make_life: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MOST_REMEMBERED", 20)
    model = Model()
    for ordinal in range(100):
        for reading in make_life(100 * ordinal, ordinal)[1]:
            model.fold(reading)

    held = model._requests
    assert len(held._by_id) == len(held.members(ENGINE)) == 5 + 20
    assert model.snapshot(0, SnapshotQuery(Window.SESSION)).requests_evicted == 95


@pytest.mark.usefixtures("few_rows")
def test_the_loss_of_an_engine_ends_all_waiting_for_its_word(
    make_life: Make,
) -> None:
    model = Model()
    for ordinal in range(100):
        for reading in make_life(100 * ordinal, ordinal)[0]:
            model.fold(reading)
    model.fold(Note(source=ENGINE, t_ns=1, kind=NoteKind.LOST, text="gone"))

    assert len(model._requests._by_id) == 5


def test_a_request_that_was_on_its_way_at_a_loss_counts_once(
    make_life: Make, make_step: Make
) -> None:
    other, (front, engine) = make_life(100, ordinal=0)[1], make_life(190, ordinal=1)
    at_loss = [*other[:-1], front[0], dropped(200), make_step(210, {0: 1})]

    assert counted([*at_loss, *engine, *front[1:]]) == (2, 1, 0, 2)


def test_a_request_that_was_on_its_way_at_a_loss_runs_again(
    see: See, make_life: Make, make_step: Make
) -> None:
    other, (front, engine) = make_life(100, ordinal=0)[1], make_life(190, ordinal=1)
    at_loss = [*other[:-1], front[0], dropped(200), make_step(210, {0: 1})]

    snapshot = see([*at_loss, *engine[:3]], 300)

    assert ids(snapshot) == ["r1", "r0"]
    assert (snapshot.flow.running, snapshot.requests_evicted) == (2, 0)


def test_only_changed_rows_are_made_anew(make_life: Make, make_step: Make) -> None:
    model = Model()
    for ordinal in range(2):
        for reading in make_life(100, ordinal)[1][:-1]:
            model.fold(reading)
    before = {
        row.key: row for row in model.snapshot(0, SnapshotQuery(Window.MINUTE)).requests
    }

    model.fold(make_step(900, {1: 1}))

    after = {
        row.key: row for row in model.snapshot(0, SnapshotQuery(Window.MINUTE)).requests
    }
    assert after["engine-1/r0"] is before["engine-1/r0"]
    assert after["engine-1/r1"].output_tokens == 4


def test_rows_are_spared_when_nobody_looks(make_life: Make) -> None:
    model = Model()
    for reading in make_life(100, 0)[1]:
        model.fold(reading)

    assert (
        model.snapshot(0, SnapshotQuery(Window.MINUTE, requests=False)).requests == ()
    )


@pytest.mark.parametrize("state", RequestState)
def test_three_states_are_ends(state: RequestState) -> None:
    ends = {RequestState.FINISHED, RequestState.ABORTED, RequestState.FAILED}

    assert state.live == (state not in ends)


# After a loss.


def test_a_request_seen_again_after_a_loss_still_runs(
    see: See, make_life: Make, make_step: Make
) -> None:
    _, engine = make_life(100, ordinal=0)

    lost = see([*engine[:-1], dropped(200)], 300)
    found = see([*engine[:-1], dropped(200), make_step(210, {0: 1})], 300)

    assert (lost.flow.running, found.flow.running) == (0, 1)
    assert ids(found) == ["r0"]


def test_a_step_with_everyone_in_it_shows_who_is_gone(
    see: See, make_life: Make, make_step: Make
) -> None:
    lives = [make_life(100, ordinal)[1][:-1] for ordinal in range(3)]
    readings = [*lives[0], *lives[1], *lives[2], dropped(200)]

    partial = see([*readings, make_step(210, {0: 1}, running=2)], 300)
    complete = see([*readings, make_step(210, {0: 1, 1: 1})], 300)

    assert ids(partial) == ["r2", "r1", "r0"]
    assert ids(complete) == ["r1", "r0"]
    assert complete.requests_evicted == 1


def test_a_step_with_a_queue_leaves_the_others_in_doubt(
    see: See, make_life: Make, make_step: Make
) -> None:
    lives = [make_life(100, ordinal)[1][:1] for ordinal in range(2)]
    step = make_step(210, {0: 1}, waiting=1)

    snapshot = see([*lives[0], *lives[1], dropped(200), step], 300)

    assert ids(snapshot) == ["r1", "r0"]
    assert snapshot.flow.waiting == 1


def test_a_step_speaks_only_for_its_own_rank(make_step: Make) -> None:
    model = Model()
    other, own = make_step(150, {5: 1}, rank=1), make_step(210, {6: 1}, rank=0)
    for reading in (other, dropped(200), own):
        model.fold(reading)

    assert list(model._requests.members(ENGINE)) == [5, 6]


def test_strangers_that_end_unseen_are_forgotten(make_step: Make) -> None:
    model = Model()
    for reading in (make_step(10, {7: 1}), dropped(20), make_step(30, {8: 1})):
        model.fold(reading)

    assert list(model._requests.members(ENGINE)) == [8]
    assert model.snapshot(40 * MS, SnapshotQuery(Window.MINUTE)).requests_evicted == 0


def test_a_reused_ordinal_belongs_to_the_newer_request(
    see: See, make_life: Make, make_event: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MOST_ROWS", 1)
    _, engine = make_life(100, ordinal=0)
    again = make_event(300, EventKind.ADDED, "again", ordinal=0)
    _, other = make_life(400, ordinal=1)

    snapshot = see([*engine, again, *other])

    assert ids(snapshot) == ["again"]
