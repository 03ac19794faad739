"""Requests judged by all their objectives at once, counted by hand."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.contract.readings import (
    AnyReading,
    EventKind,
    Note,
    NoteKind,
    Phase,
    RequestRecord,
    RequestSpan,
    Tick,
    Vantage,
    WatchedSlo,
)
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.objectives.view import ClassState, SloState
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.inferwatch.metrics.test_saved import Keeps

Make = Callable[..., Any]
ENGINE = "engine-1"
MS, S = 1_000_000, 1_000_000_000


def said(slo: str, source: str = "") -> WatchedSlo:
    return WatchedSlo(source=source, t_ns=0, slo=slo)


def folded(readings: Iterable[AnyReading], model: Model | None = None) -> Model:
    model = model or Model()
    for each in readings:
        model.fold(each)
    return model


def judged(
    slo: str, readings: Iterable[AnyReading], window: Window = Window.SESSION
) -> SloState:
    model = folded([said(slo), *readings])
    state = model.snapshot(10 * S, SnapshotQuery(window)).slo
    assert state is not None
    return state


def counts(state: SloState) -> tuple[int, int, int]:
    return state.judged, state.good, state.undetermined


# A life of make_life: TTFT 11 ms, TPOT and longest gap 10 ms, E2EL 10 ms a token + 1.


@pytest.mark.parametrize(
    ("slo", "missed"),
    [
        ("ttft_s<12ms tpot_s<11ms itl_s<11ms e2el_s<32ms", []),
        ("ttft_s<11ms", ["ttft_s"]),
        ("ttft_s<=11ms", []),
        ("tpot_s<10ms", ["tpot_s"]),
        ("tpot_s<=10ms itl_s<=10ms", []),
        ("itl_s<10ms", ["itl_s"]),
        ("e2el_s<31ms", ["e2el_s"]),
        ("ttft_s<11ms tpot_s<11ms e2el_s<31ms", ["ttft_s", "e2el_s"]),
    ],
)
def test_a_request_is_good_when_it_holds_every_limit(
    make_life: Make, slo: str, missed: list[str]
) -> None:
    front, engine = make_life(100, ordinal=0)

    state = judged(slo, [*front, *engine])

    assert counts(state) == (1, int(not missed), 0)
    assert state.missed == dict.fromkeys(missed, 1)


def test_it_is_the_same_whoever_is_heard_first(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0)
    slo = "ttft_s<12ms tpot_s<10ms"

    assert judged(slo, [*front, *engine]) == judged(slo, [*engine, *front])


def test_it_is_judged_once_both_have_told_all(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0)
    heard = [*front[:2], *engine[:2], front[2]]  # ended, and its steps still to come

    assert counts(judged("tpot_s<1", heard)) == (0, 0, 0)
    assert counts(judged("tpot_s<1", [*heard, *engine[2:]])) == (1, 1, 0)


def test_the_joint_share_is_that_of_requests_that_hold_all(make_life: Make) -> None:
    """Ten requests of 1 to 10 tokens: half of them each miss one of two limits."""
    readings: list[AnyReading] = []
    for ordinal in range(10):
        front, engine = make_life(100 + 200 * ordinal, ordinal, tokens=ordinal + 1)
        readings += [*front, *engine]

    state = judged("e2el_s<72ms tpot_s<9ms", readings)

    # E2EL 11, 21, … 101 ms: 8, 9 and 10 tokens miss it. TPOT 10 ms from two tokens on.
    assert counts(state) == (10, 1, 0)
    assert state.missed == {"e2el_s": 3, "tpot_s": 9}
    assert state.share == 0.1
    assert state.met is False
    assert state.burn == pytest.approx(0.9 / 0.05)
    assert state.budget_left == pytest.approx(1 - 18)
    assert state.goodput_per_s == pytest.approx(1 / (10 - 0.1))


def test_what_failed_is_bad(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0, reason="error")

    state = judged("ttft_s<1", [*front, *engine])

    assert counts(state) == (1, 0, 0)
    assert state.missed == {"failed": 1}


def test_a_client_that_leaves_leaves_it_open_unless_a_limit_was_broken(
    make_life: Make,
) -> None:
    front, engine = make_life(100, ordinal=0, reason="abort")

    assert counts(judged("ttft_s<1 e2el_s<1", [*front, *engine])) == (0, 0, 1)
    assert counts(judged("ttft_s<11ms", [*front, *engine])) == (1, 0, 0)
    assert judged("e2el_s<31ms", [*front, *engine]).missed == {"e2el_s": 1}


def test_who_left_without_a_token_waited_as_long_as_that(make_event: Make) -> None:
    left = {"vantage": Vantage.FRONTEND, "reason": "abort"}
    heard = [
        make_event(100, EventKind.ARRIVED),
        make_event(1_100, EventKind.FINISHED, **left),
        Tick(t_ns=4 * S),  # by then an engine that tells anything would have
    ]

    assert judged("ttft_s<1", heard).missed == {"ttft_s": 1}
    assert counts(judged("ttft_s<=1", heard)) == (0, 0, 1)


def test_a_request_of_one_token_has_no_gap_to_be_late(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0, tokens=1)

    assert counts(judged("tpot_s<1ms itl_s<1ms", [*front, *engine])) == (1, 1, 0)


def test_who_was_there_before_us_is_open(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0, tokens=5)
    late = [*engine[4:], front[2]]  # neither its arrival nor its first tokens

    assert counts(judged("ttft_s<1", late)) == (0, 0, 1)
    assert counts(judged("tpot_s<1", late)) == (0, 0, 1)
    assert counts(judged("itl_s<1", late)) == (0, 0, 1)
    assert counts(judged("itl_s<9ms", late)) == (1, 0, 0)


def test_an_engine_that_is_lost_fails_who_was_in_it(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0)
    lost = Note(source=ENGINE, t_ns=150 * MS, kind=NoteKind.LOST, text="gone")

    state = judged("ttft_s<1", [*front[:2], *engine[:3], lost])

    assert counts(state) == (1, 0, 0)
    assert state.missed == {"failed": 1}


def test_what_awaits_a_word_that_was_lost_is_judged_by_what_is_known(
    make_life: Make,
) -> None:
    front, engine = make_life(100, ordinal=0)
    dropped = Note(source=ENGINE, t_ns=150 * MS, kind=NoteKind.DROPPED, text="")

    state = judged("e2el_s<1", [*front, *engine[:2], dropped])
    again = judged("e2el_s<1", [*front, *engine[:2], dropped, *engine[2:]])

    assert counts(state) == counts(again) == (1, 1, 0)


def test_a_window_forgets_and_the_hour_does_not(make_life: Make) -> None:
    readings: list[AnyReading] = []
    for ordinal, start_ms in enumerate((0, 100_000, 4_000_000)):
        front, engine = make_life(start_ms, ordinal, tokens=3 + ordinal)
        readings += [*front, *engine]
    model = folded([said("e2el_s<45ms; target=0.9"), *readings])

    state = model.snapshot(4_001 * S, SnapshotQuery(Window.MINUTE)).slo

    assert state is not None
    assert counts(state) == (1, 0, 0)
    assert state.burn == state.burn_long == pytest.approx(10)  # the others: before it
    assert state.budget_left == pytest.approx(1 - (1 / 3) / 0.1)


def test_a_class_has_its_own(make_life: Make, make_event: Make) -> None:
    """By header, LoRA and priority; a clause for all is for the rest."""
    readings: list[AnyReading] = []
    facts: Sequence[dict[str, Any]] = (
        {"header": "chat"},
        {"lora": "chat"},
        {"priority": 7},
        {"header": "other", "lora": "chat"},
        {},
    )
    for ordinal, fact in enumerate(facts):
        front, engine = make_life(100 + 100 * ordinal, ordinal)
        readings += [replace(front[0], **fact), *front[1:], *engine]

    state = judged("ttft_s<1; chat: ttft_s<11ms; 7: ttft_s<1 tpot_s<1ms", readings)

    assert state.classes == (
        ClassState(name="chat", slo="ttft_s<0.011", judged=3, good=0),
        ClassState(name="7", slo="ttft_s<1 tpot_s<0.001", judged=1, good=0),
    )
    assert counts(state) == (5, 1, 0)


def test_a_class_that_its_client_tells_afterwards_counts(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0)
    named = replace(front[0], external_id="cmpl-x-0")
    record = RequestRecord(
        source="load-1",
        index=0,
        external_id="x",
        phase=Phase.STEADY,
        intended_ns=99 * MS,
        end_ns=200 * MS,
        class_name="chat",
    )
    heard = [named, *front[1:], *engine]

    before = judged("ttft_s<1; chat: ttft_s<11ms", heard)
    after = judged("ttft_s<1; chat: ttft_s<11ms", [*heard, record])

    assert (counts(before), before.classes[0].judged) == ((1, 1, 0), 0)
    assert (counts(after), after.classes[0].judged) == ((1, 0, 0), 1)
    assert after.missed == {"ttft_s": 1}


TRACED = RequestSpan(
    source="http://a",
    request_id="x",
    arrived_ns=1 * S,
    end_ns=2 * S,
    ttft_ns=300 * MS,
    output_tokens=8,
)


def test_traces_are_judged_as_far_as_they_tell() -> None:
    span = replace(TRACED, e2el_ns=1 * S, decode_ns=700 * MS)

    assert counts(judged("ttft_s<0.3 tpot_s<1", [span])) == (1, 0, 0)
    assert counts(judged("ttft_s<0.4 tpot_s<=0.1", [span])) == (1, 1, 0)
    assert counts(judged("itl_s<1", [span])) == (0, 0, 1)


def test_tokens_of_good_requests_are_unknown_where_a_trace_lacks_them() -> None:
    told = TRACED
    untold = replace(told, request_id="y", output_tokens=None)

    assert judged("ttft_s<0.4", [told]).good_tokens == 8
    assert judged("ttft_s<0.4", [told, untold]).good_tokens is None


def test_tokens_of_ended_requests_are_those_of_bad_and_undetermined_ones_too() -> None:
    good = TRACED
    bad = replace(good, request_id="y", ttft_ns=500 * MS, output_tokens=4)
    undetermined = replace(good, request_id="z", ttft_ns=None, output_tokens=2)

    state = judged("ttft_s<0.4", [good, bad, undetermined])

    assert counts(state) == (2, 1, 1)
    assert (state.good_tokens, state.ended_tokens) == (8, 14)


def test_without_objectives_there_is_no_state(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0)

    assert (
        folded([*front, *engine]).snapshot(S, SnapshotQuery(Window.SESSION)).slo is None
    )
    shown = folded([said("ttft_s<0s1"), *front]).snapshot(
        S, SnapshotQuery(Window.SESSION)
    )
    assert shown.slo is None


def test_what_was_typed_holds_for_every_server(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0)
    others = [said("ttft_s<1ms", ENGINE), said("ttft_s<1"), said("ttft_s<2ms", ENGINE)]

    state = (
        folded([*others, *front, *engine])
        .snapshot(S, SnapshotQuery(Window.SESSION))
        .slo
    )

    assert state is not None
    assert (state.slo, counts(state)) == ("ttft_s<1", (1, 1, 0))


def test_of_several_servers_each_has_its_own(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0)
    here = [*front, *engine]
    there = [replace(each, source="engine-2") for each in here]
    model = folded(
        [said("ttft_s<1", ENGINE), said("ttft_s<1ms", "engine-2"), *here, *there]
    )

    both = model.snapshot(S, SnapshotQuery(Window.SESSION)).slo
    one = model.slo(S, Window.SESSION, S, ENGINE)

    assert both is not None
    assert one is not None
    assert (both.slo, counts(both)) == ("of each server its own", (2, 1, 0))
    assert one.slo == "ttft_s<1"
    alone = model.snapshot(S, SnapshotQuery(Window.SESSION, source="engine-2")).slo
    if alone is not None:
        assert alone.slo == "ttft_s<0.001"


# Missed since.


def minute(make_life: Make, bad: int, good: int, start_s: int) -> list[AnyReading]:
    """So many requests a second apart with a tick each, good ones of 3 tokens."""
    readings: list[AnyReading] = []
    for place in range(bad + good):
        at_ms = 1000 * (start_s + place)
        tokens = 9 if place < bad else 3
        front, engine = make_life(at_ms, ordinal=start_s + place, tokens=tokens)
        readings += [*front, *engine, Tick(t_ns=(start_s + place + 1) * S)]
    return readings


def test_it_is_missed_once_that_lasted_and_until_it_is_met(make_life: Make) -> None:
    slo = said("e2el_s<50ms; target=0.5")
    model = folded([slo, *minute(make_life, bad=0, good=10, start_s=0)])
    assert model.slo_missed_since_ns is None

    folded(minute(make_life, bad=10, good=0, start_s=10), model)
    assert model.slo_missed_since_ns is None  # ten of twenty

    folded(minute(make_life, bad=4, good=0, start_s=20), model)
    assert model.slo_missed_since_ns is None  # it may be a moment

    folded(minute(make_life, bad=3, good=0, start_s=24), model)
    assert model.slo_missed_since_ns == 21 * S
    state = model.snapshot(27 * S, SnapshotQuery(Window.MINUTE)).slo
    assert state is not None
    assert state.missed_since_ns == 21 * S

    folded(minute(make_life, bad=0, good=7, start_s=27), model)
    assert model.slo_missed_since_ns == 21 * S  # since the last of these it is met
    folded(minute(make_life, bad=0, good=6, start_s=34), model)
    assert model.slo_missed_since_ns is None


def test_too_few_requests_tell_nothing(make_life: Make) -> None:
    slo = said("e2el_s<50ms")
    readings = minute(make_life, bad=4, good=0, start_s=0)
    ticks = [Tick(t_ns=each * S) for each in range(5, 60)]

    assert folded([slo, *readings, *ticks]).slo_missed_since_ns is None


def test_where_nothing_comes_any_more_nothing_is_missed(make_life: Make) -> None:
    slo = said("e2el_s<50ms")
    model = folded([slo, *minute(make_life, bad=12, good=0, start_s=0)])
    assert model.slo_missed_since_ns is not None

    folded((Tick(t_ns=each * S) for each in range(13, 330)), model)

    assert model.slo_missed_since_ns is None


# Whatever way a Model came to know it.


def everything(make_life: Make) -> list[AnyReading]:
    first = minute(make_life, bad=9, good=3, start_s=0)
    front, engine = make_life(13_000, ordinal=50)
    waiting = [*front, *engine[:2]]
    chat, chat_engine = make_life(14_000, ordinal=51)
    named = [replace(chat[0], header="chat"), *chat[1:], *chat_engine]
    then = [*engine[2:], *minute(make_life, bad=2, good=9, start_s=60)]
    slo = said("e2el_s<50ms; chat: ttft_s<1ms; target=0.9")
    return [slo, *first, *waiting, *named, *then]


@pytest.mark.parametrize("cut", [0, 1, 30, 64, 66, 70, 90, 120])
def test_a_restored_model_judges_on_as_if_nothing_had_been(
    make_life: Make, cut: int
) -> None:
    readings = everything(make_life)
    keeps, model = Keeps(), folded(readings[:cut])
    saved = model.saved()
    keeps.keep(saved)
    again = keeps.restored(saved)

    folded(readings[cut:], model)
    folded(readings[cut:], again)

    for window in Window:
        shown = model.snapshot(72 * S, SnapshotQuery(window))
        assert shown.slo is not None
        assert again.snapshot(72 * S, SnapshotQuery(window)).slo == shown.slo
        assert again.snapshot(72 * S, SnapshotQuery(window)).requests == shown.requests


def test_it_can_be_judged_by_other_objectives_than_recorded(make_life: Make) -> None:
    readings = everything(make_life)

    model = folded(readings, Model(said("ttft_s<1; target=0.5")))

    state = model.snapshot(72 * S, SnapshotQuery(Window.SESSION)).slo
    assert state is not None
    assert (state.slo, state.target) == ("ttft_s<1", 0.5)
    assert counts(state) == (25, 25, 0)
    (ttft, *_) = model.snapshot(72 * S, SnapshotQuery(Window.SESSION)).latencies
    assert ttft.objective_s == 1


def test_rows_tell_what_a_request_missed(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0)
    live = folded([said("ttft_s<1ms tpot_s<1ms"), *front[:2], *engine[:4]])
    ended = folded([said("ttft_s<1ms tpot_s<1ms"), *front, *engine])
    good = folded([said("ttft_s<1"), *front, *engine])

    rows = [
        m.snapshot(S, SnapshotQuery(Window.SESSION)).requests[0]
        for m in (live, ended, good)
    ]

    assert [row.missed for row in rows] == [None, ("ttft_s", "tpot_s"), ()]


def restored(model: Model) -> Model:
    keeps, saved = Keeps(), model.saved()
    keeps.keep(saved)
    return keeps.restored(saved)


def test_who_waits_for_a_word_waits_in_a_restored_model_too(make_life: Make) -> None:
    front, engine = make_life(100, ordinal=0)
    model = folded([said("e2el_s<1"), *front, *engine[:2]])
    again = restored(model)
    dropped = Note(source=ENGINE, t_ns=150 * MS, kind=NoteKind.DROPPED, text="")

    for each in (model, again):
        state = folded([dropped], each).snapshot(S, SnapshotQuery(Window.SESSION)).slo
        assert state is not None
        assert counts(state) == (1, 1, 0)


def test_a_choice_holds_in_a_restored_model_too() -> None:
    again = restored(Model(said("ttft_s<1")))

    folded([said("ttft_s<9")], again)

    assert [each.slo for each in again.objectives] == ["ttft_s<1"]
