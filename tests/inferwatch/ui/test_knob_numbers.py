"""What stands on either side of a change, and what two limits are together."""

from dataclasses import replace

import msgspec
import pytest

from inferwatch.errors import UsageError
from inferwatch.feed import LimitPair
from inferwatch.metrics.series.intervals import Interval
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.knobs.knob_state import LimitKnob, knob_state
from inferwatch.ui.knobs.span_numbers import (
    TOKENS_PER_S,
    WAITING,
    SpanFigure,
    span_numbers,
)
from tests.inferwatch.ui.conftest import S, snapshot
from tests.inferwatch.ui.knob_sessions import (
    limits,
    lowered,
    rows_around,
    steps_around,
)

AT = 100 * S
SIDE = 30 * S


@pytest.fixture
def shown() -> Snapshot:
    return replace(snapshot(), requests=rows_around(AT), live_limits=(limits(),))


def test_a_side_counts_what_ended_in_it_alone(shown: Snapshot) -> None:
    steps = steps_around(AT)
    before = span_numbers(shown, steps, AT - SIDE, AT)
    after = span_numbers(shown, steps, AT, AT + SIDE)

    assert before.of(TOKENS_PER_S).value == pytest.approx(640, rel=0.01)
    assert after.of(TOKENS_PER_S).value == pytest.approx(320, rel=0.01)
    assert before.of(WAITING).value == 0
    assert after.of(WAITING).value == pytest.approx(22, rel=0.01)
    was, now = before.of("ttft_s p50"), after.of("ttft_s p50")
    assert was.value is not None
    assert was.value == pytest.approx(0.065, rel=0.2)
    assert now.value == pytest.approx(10 * was.value, rel=0.1)
    assert was.is_apart(now) is True


def test_what_is_not_known_is_no_number(shown: Snapshot) -> None:
    nothing = span_numbers(replace(shown, requests=()), (), AT - SIDE, AT)

    assert nothing.of("ttft_s p99") == SpanFigure()
    assert nothing.of(TOKENS_PER_S).value is None
    assert nothing.of(WAITING).is_apart(SpanFigure(value=1.0)) is None


def test_rows_that_made_room_for_others_leave_latencies_unknown(
    shown: Snapshot,
) -> None:
    late = replace(shown, requests=shown.requests[:200], requests_evicted=3)
    steps = steps_around(AT)

    assert span_numbers(late, steps, AT - SIDE, AT).forgotten
    assert span_numbers(late, steps, AT - SIDE, AT).of("ttft_s p50").value is None
    assert span_numbers(late, steps, AT - SIDE, AT).of(TOKENS_PER_S).value is not None
    assert not span_numbers(shown, steps, AT - SIDE, AT).forgotten


def test_few_values_have_no_interval_and_are_not_told_apart(shown: Snapshot) -> None:
    few = replace(shown, requests=shown.requests[-20:])
    steps = steps_around(AT)
    begin_ns = AT - 61 * S
    side = span_numbers(few, steps, begin_ns, begin_ns + 5 * S).of("ttft_s p50")

    assert side.value is not None
    assert side.interval == (None, None)
    assert side.is_apart(SpanFigure(value=9.0, interval=(8.0, 10.0))) is None


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ((1.0, 2.0), (3.0, 4.0), True),
        ((3.0, 4.0), (1.0, 2.0), True),
        ((None, 2.0), (3.0, None), True),
        ((1.0, 3.0), (2.0, 4.0), False),
        ((1.0, None), (2.0, 4.0), None),
        ((None, None), (2.0, 4.0), None),
    ],
)
def test_what_cannot_be_known_is_neither_apart_nor_the_same(
    one: Interval, other: Interval, apart: bool | None
) -> None:
    assert SpanFigure(interval=one).is_apart(SpanFigure(interval=other)) is apart


def test_the_later_word_holds(shown: Snapshot) -> None:
    answered = (lowered(version=4, max_num_seqs=4),)
    told = replace(shown, live_limits=(lowered(version=3),))

    assert knob_state(told).present == (8, 2048)
    assert knob_state(told, answered).present == (4, 2048)
    assert knob_state(told, answered).pending
    assert not knob_state(replace(shown, live_limits=answered), answered).pending


def test_limits_of_several_servers_are_one_range(shown: Snapshot) -> None:
    a = msgspec.structs.replace(limits(), source="a")
    b = msgspec.structs.replace(lowered(), source="b")
    state = knob_state(replace(shown, live_limits=(a, b)))

    assert (state.knobs[0].present, state.knobs[0].highest) == (8, 32)


def test_only_what_differs_is_asked_for(shown: Snapshot) -> None:
    state = knob_state(shown)

    assert state.changed_by((32, 2048)) == LimitPair()
    assert state.changed_by((8, 2048)) == LimitPair(max_num_seqs=8)
    assert state.changed_by((32, 64)) == LimitPair(max_num_batched_tokens=64)


def test_choices_are_powers_of_two_up_to_the_start() -> None:
    knob = LimitKnob(name="max_num_seqs", start=24, present=24)

    assert knob.choices == [1, 2, 4, 8, 16, 24]
    assert [knob.beside(24, -1), knob.beside(16, 1), knob.beside(5, 1)] == [16, 24, 8]
    assert [knob.beside(1, -1), knob.beside(24, 1)] == [1, 24]


@pytest.mark.parametrize("text", ["", "0", "25", "٣", "1e3", "-1"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="from 1 to 24"):
        LimitKnob(name="max_num_seqs", start=24, present=24).read(text)
