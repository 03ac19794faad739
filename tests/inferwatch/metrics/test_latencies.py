"""What TTFT, queue, prefill, TPOT, ITL and E2EL mean."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from collectors.contract.readings import EventKind, Note, NoteKind, Vantage
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.request_row import RequestState
from inferwatch.metrics.series.window import Quantiles, Window
from inferwatch.metrics.snapshot import Snapshot, SnapshotQuery
from tests.inferwatch.metrics.drawn import drawn

See = Callable[..., Snapshot]
Make = Callable[..., Any]
ENGINE = "engine-1"
MS = 1_000_000


def values(snapshot: Snapshot) -> dict[str, tuple[int, float | None]]:
    """Samples and mean of each row of the latency table, in ms."""
    return {
        row.metric: (row.quantiles.n, _ms(row.quantiles)) for row in snapshot.latencies
    }


def _ms(quantiles: Quantiles) -> float | None:
    return None if quantiles.mean is None else round(quantiles.mean * 1e3, 6)


def dropped(t_ms: float, source: str = ENGINE) -> Note:
    return Note(
        source=source,
        t_ns=round(t_ms * MS),
        kind=NoteKind.DROPPED,
        text="lost",
        count=5,
    )


def test_each_latency_is_measured_between_its_two_moments(
    see: See, make_life: Make
) -> None:
    front, engine = make_life(100, ordinal=0, tokens=4)

    assert values(see([*front, *engine])) == {
        "ttft_s": (1, 11),  # arrived +0, first token sent +11
        "queue_s": (1, 2),  # added +1, scheduled +3
        "prefill_s": (1, 7),  # first token's step ended +10
        "tpot_s": (1, 10),
        "itl_s": (3, 10),
        "e2el_s": (1, 41),
    }


def test_rows_tell_who_measured(see: See) -> None:
    assert {row.metric: row.vantage for row in see([]).latencies} == {
        "ttft_s": Vantage.FRONTEND,
        "queue_s": Vantage.ENGINE,
        "prefill_s": Vantage.ENGINE,
        "tpot_s": Vantage.ENGINE,
        "itl_s": Vantage.ENGINE,
        "e2el_s": Vantage.FRONTEND,
    }


@drawn(10, 40, data=st.data())
def test_it_does_not_matter_which_stream_is_heard_first(
    data: st.DataObject, make_life: Make
) -> None:
    lives = [make_life(100 + 100 * n, ordinal=n, tokens=n) for n in range(1, 4)]
    front = [reading for life in lives for reading in life[0]]
    engine = [reading for life in lives for reading in life[1]]
    turns = data.draw(st.permutations([True] * len(front) + [False] * len(engine)))
    streams = {True: iter(front), False: iter(engine)}

    mixed, ordered = Model(), Model()
    for turn in turns:
        mixed.fold(next(streams[turn]))
    for reading in (*front, *engine):
        ordered.fold(reading)

    one, other = (
        m.snapshot(10**10, SnapshotQuery(Window.MINUTE)) for m in (mixed, ordered)
    )
    assert one.latencies == other.latencies
    assert one.requests == other.requests
    assert one.flow == other.flow
    assert one.timeline == other.timeline


def test_tpot_needs_two_tokens(see: See, make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0, tokens=1)

    snapshot = see([*front, *engine])

    assert values(snapshot)["tpot_s"] == (0, None)
    assert snapshot.requests[0].tpot_s is None


def test_a_step_with_several_tokens_is_one_gap(
    see: See, make_life: Make, make_step: Make, make_event: Make
) -> None:
    _, engine = make_life(100, ordinal=0, tokens=1)
    ended = make_event(
        160, EventKind.FINISHED, ordinal=0, reason="length", output_tokens=7
    )
    steps = [make_step(130, {0: 3}), make_step(160, {0: 3})]

    snapshot = see([*engine[:-1], *steps, ended])

    assert values(snapshot)["itl_s"] == (2, 25)  # 110 -> 130 -> 160
    assert values(snapshot)["tpot_s"] == (1, round(50 / 6, 6))


def test_the_gap_of_a_preemption_counts(
    see: See, make_life: Make, make_step: Make
) -> None:
    _, engine = make_life(100, ordinal=0, tokens=2)
    steps = [
        make_step(130, {}, preempted=[0], waiting=1),
        make_step(500, {0: 0}, scheduled=[20]),
        make_step(510, {0: 1}, scheduled=[2]),
    ]

    snapshot = see([*engine[:-1], *steps])

    assert snapshot.requests[0].itl_max_s == pytest.approx(0.390)
    assert snapshot.requests[0].preemptions == 1
    assert snapshot.requests[0].state is RequestState.DECODE
    assert snapshot.flow.preemptions == 1


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_only_a_proper_end_has_tpot_and_e2el(
    see: See, make_life: Make, reason: str
) -> None:
    front, engine = make_life(100, ordinal=0, tokens=4, reason=reason)

    seen = values(see([*front, *engine]))

    assert seen["ttft_s"][0] == 1
    assert seen["itl_s"][0] == 3
    assert seen["tpot_s"] == seen["e2el_s"] == (0, None)


def test_an_end_told_before_its_last_step_waits_for_it(
    see: See, make_life: Make
) -> None:
    _, engine = make_life(100, ordinal=0, tokens=4)
    *before, last_step, ended = engine

    assert values(see([*before, ended]))["tpot_s"] == (0, None)
    assert values(see([*before, ended, last_step]))["tpot_s"] == (1, 10)


def test_readings_heard_twice_count_once(see: See, make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0, tokens=3)
    events = [each for each in engine if not hasattr(each, "members")]

    once = see([*front, *engine])
    twice = see([*front, *engine, *front, *events])

    assert twice.latencies == once.latencies
    assert twice.flow == once.flow


# Losses.


def test_no_gap_spans_lost_readings(see: See, make_life: Make, make_step: Make) -> None:
    _, engine = make_life(100, ordinal=0, tokens=2)
    after = [make_step(900, {0: 1}), make_step(910, {0: 1})]

    snapshot = see([*engine[:-1], dropped(900), *after])

    assert values(snapshot)["itl_s"] == (2, 10)
    assert snapshot.cost.dropped_readings == 5


def test_a_loss_elsewhere_leaves_gaps_alone(
    see: See, make_life: Make, make_step: Make
) -> None:
    _, engine = make_life(100, ordinal=0, tokens=2)

    snapshot = see([*engine[:-1], dropped(125, "a load run"), make_step(130, {0: 1})])

    assert values(snapshot)["itl_s"][0] == 2


def test_tpot_survives_a_loss_between_its_ends(
    see: See, make_life: Make, make_step: Make, make_event: Make
) -> None:
    _, engine = make_life(100, ordinal=0, tokens=2)
    ended = make_event(
        910, EventKind.FINISHED, ordinal=0, reason="stop", output_tokens=81
    )

    snapshot = see([*engine[:-1], dropped(900), make_step(910, {0: 1}), ended])

    assert values(snapshot)["tpot_s"] == (1, 10)  # 110 ms to 910 ms, 80 gaps
    assert snapshot.requests[0].output_tokens == 81


def test_a_loss_that_may_hide_the_last_token_leaves_tpot_unknown(
    see: See, make_life: Make, make_event: Make
) -> None:
    _, engine = make_life(100, ordinal=0, tokens=2)
    ended = make_event(
        910, EventKind.FINISHED, ordinal=0, reason="stop", output_tokens=81
    )

    snapshot = see([*engine[:-1], dropped(900), ended])

    assert values(snapshot)["tpot_s"] == (0, None)


def test_a_loss_before_the_first_token_leaves_prefill_unknown(
    see: See, make_life: Make
) -> None:
    _, engine = make_life(100, ordinal=0, tokens=3)

    snapshot = see([*engine[:2], dropped(105), *engine[3:]])

    assert values(snapshot)["prefill_s"] == (0, None)
    assert values(snapshot)["itl_s"] == (1, 10)


def test_a_loss_before_scheduling_harms_nothing(see: See, make_life: Make) -> None:
    _, engine = make_life(100, ordinal=0, tokens=3)

    alive = see([engine[0], dropped(102), *engine[1:-1]])
    ended = see([engine[0], dropped(102), *engine[1:]])

    assert alive.requests[0].tpot_s == 0.010
    assert values(ended)["prefill_s"] == (1, 7)
    assert values(ended)["tpot_s"] == (1, 10)


# Joining late.


def test_a_stranger_in_a_step_has_gaps_from_its_second_token_on(
    see: See, make_step: Make, make_event: Make
) -> None:
    steps = [make_step(110, {7: 1}), make_step(120, {7: 1})]
    ended = make_event(
        120, EventKind.FINISHED, ordinal=7, reason="stop", output_tokens=50
    )

    before, after = see(steps), see([*steps, ended])

    assert values(before)["itl_s"] == (1, 10)
    assert before.requests == ()
    assert before.flow.running == 1
    (row,) = after.requests
    assert (row.output_tokens, row.tpot_s, row.prefill_s) == (50, None, None)
    assert row.state is RequestState.FINISHED


def test_a_stranger_gets_its_name_when_the_front_end_knew_it(
    see: See, make_step: Make, make_event: Make
) -> None:
    readings = [
        make_event(10, EventKind.ARRIVED),
        make_step(110, {7: 1}),
        make_event(120, EventKind.FINISHED, ordinal=7, reason="stop"),
    ]

    snapshot = see(readings)

    (row,) = snapshot.requests
    assert (row.ordinal, row.output_tokens, row.arrived_ns) == (7, 1, 10 * MS)
    assert snapshot.flow.running == 0


def test_the_first_token_seen_of_an_old_request_is_not_its_first(
    see: See, make_life: Make, make_step: Make
) -> None:
    _, engine = make_life(100, ordinal=0, tokens=1)
    standing = engine[:2]  # what a probe tells a newcomer of live requests

    snapshot = see([*standing, make_step(5_000, {0: 1}), make_step(5_010, {0: 1})])

    assert values(snapshot)["prefill_s"] == (0, None)
    assert values(snapshot)["itl_s"] == (1, 10)
    assert snapshot.requests[0].tpot_s is None


def test_a_prompt_found_in_the_cache_has_a_first_token(
    see: See, make_event: Make, make_step: Make
) -> None:
    facts: dict[str, Any] = {"ordinal": 0, "prompt_tokens": 20}
    readings = [
        make_event(1, EventKind.ADDED, **facts),
        make_event(2, EventKind.SCHEDULED, cached_tokens=19, **facts),
        make_step(10, {0: 1}, duration_ms=8),
    ]

    assert values(see(readings))["prefill_s"] == (1, 8)


@pytest.mark.parametrize("cached_tokens", [0, None])
def test_what_the_cache_held_makes_no_token_the_first(
    see: See, make_event: Make, make_step: Make, cached_tokens: int | None
) -> None:
    facts: dict[str, Any] = {"ordinal": 0, "prompt_tokens": 20}
    events = [
        make_event(1, EventKind.ADDED, **facts),
        make_event(2, EventKind.SCHEDULED, cached_tokens=cached_tokens, **facts),
    ]

    own = see([*events, make_step(10, {0: 1}, scheduled=[5], duration_ms=8)])
    later = see([*events, make_step(10, {0: 1}, scheduled=[5], duration_ms=7)])

    assert values(own)["prefill_s"] == (1, 8)
    assert values(later)["prefill_s"] == (0, None)


@pytest.mark.parametrize(
    "case",
    [(33, 32, 1), (36, 32, 4), (1, 0, 1)],
    ids=["nearly all cached", "several tokens a step", "a single token"],
)
@pytest.mark.parametrize("others_prefill", [0, 3], ids=["decode only", "mixed"])
def test_an_old_request_has_no_prefill_sample_however_short_its_prefill_was(
    see: See,
    make_event: Make,
    make_step: Make,
    case: tuple[int, int, int],
    others_prefill: int,
) -> None:
    prompt_tokens, cached_tokens, a_step = case
    facts: dict[str, Any] = {"ordinal": 0, "prompt_tokens": prompt_tokens}
    standing = [
        make_event(1, EventKind.ADDED, **facts),
        make_event(3, EventKind.SCHEDULED, cached_tokens=cached_tokens, **facts),
    ]
    steps = [
        make_step(
            31_000 + 10 * n,
            {0: a_step},
            scheduled=[a_step],
            prefill_requests=others_prefill,
        )
        for n in range(3)
    ]

    snapshot = see([*standing, *steps], 32_000)

    assert values(snapshot)["prefill_s"] == (0, None)
    assert values(snapshot)["itl_s"] == (2, 10)
    assert snapshot.requests[0].decode_s is None


def test_scheduling_without_arrival_has_no_queue_time(
    see: See, make_life: Make
) -> None:
    _, engine = make_life(100, ordinal=0)

    seen = values(see(engine[1:]))

    assert seen["queue_s"] == (0, None)
    assert seen["prefill_s"] == (1, 7)


def test_a_stop_string_finishes_what_the_engine_aborts(
    see: See, make_life: Make
) -> None:
    front, _ = make_life(100, ordinal=0)
    _, engine = make_life(100, ordinal=0, reason="abort")

    for readings in ([*front, *engine], [*engine, *front]):
        snapshot = see(readings)
        assert (snapshot.flow.finished, snapshot.flow.aborted) == (1, 0)
        assert values(snapshot)["e2el_s"] == (1, 31)
        assert values(snapshot)["tpot_s"] == (0, None)


def test_a_token_without_scheduling_has_no_prefill_time(
    see: See, make_event: Make, make_step: Make
) -> None:
    readings = [
        make_event(1, EventKind.ADDED, ordinal=0, prompt_tokens=1),
        make_step(10, {0: 1}),
    ]

    snapshot = see(readings)

    assert values(snapshot)["prefill_s"] == (0, None)
    assert snapshot.requests[0].decode_s == 0


def test_what_no_one_reports_yet_is_ignored(see: See, make_event: Make) -> None:
    odd = make_event(1, EventKind.ARRIVED, vantage=Vantage.CLIENT)

    assert see([odd]).requests == ()
