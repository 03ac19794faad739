"""What several processes tell of the past comes in the order they sent it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.contract.readings import Tick
from collectors.probe.reception import ProbeMessage, SendingOrder

API, CORE = 1, 2
ALL = 1_000_000


def sent(*at: int) -> list[ProbeMessage]:
    return [ProbeMessage(each, [Tick(t_ns=each)]) for each in at]


def times(messages: list[ProbeMessage]) -> list[int]:
    return [passage.sent_ns for passage in messages]


@pytest.fixture
def order() -> SendingOrder:
    order = SendingOrder()
    order.expect([API, CORE])
    return order


def test_two_rings_are_taken_as_one(order: SendingOrder) -> None:
    order.take(API, sent(0, 10, 30, 50), caught_up=True)
    before = order.released(ALL)
    order.take(CORE, sent(0, 20, 30, 40), caught_up=True)

    assert before == []
    assert times(order.released(ALL)) == [0, 0, 10, 20, 30, 30, 40, 50]


def test_what_cannot_be_overtaken_any_more_waits_for_nothing(
    order: SendingOrder,
) -> None:
    order.take(API, sent(0, 10, 30), caught_up=True)
    order.take(CORE, sent(0, 20), caught_up=False)

    assert times(order.released(ALL)) == [0, 0, 10, 20]


def test_live_messages_wait_for_the_past_of_others(order: SendingOrder) -> None:
    order.take(API, sent(0, 90), caught_up=True)
    order.take(API, sent(100), caught_up=True)
    order.take(CORE, sent(0, 20), caught_up=True)

    assert times(order.released(ALL)) == [0, 0, 20, 90, 100]
    order.take(CORE, sent(110), caught_up=True)
    assert times(order.released(ALL)) == [110]


def test_who_is_given_up_holds_nothing_up(order: SendingOrder) -> None:
    order.take(API, sent(0, 10), caught_up=True)
    order.give_up([CORE])

    assert times(order.released(ALL)) == [0, 10]


def test_who_was_not_expected_is_heard_at_once() -> None:
    order = SendingOrder()
    order.take(CORE, sent(0, 10), caught_up=False)

    assert times(order.released(ALL)) == [0, 10]


def test_much_comes_in_pieces(order: SendingOrder) -> None:
    order.take(API, sent(0, 10, 30), caught_up=True)
    order.take(CORE, sent(0, 20), caught_up=True)

    pieces = [times(order.released(2)) for _ in range(4)]

    assert pieces == [[0, 0], [10, 20], [30], []]


@given(
    st.lists(
        st.lists(st.integers(0, 50), max_size=20).map(sorted), min_size=1, max_size=4
    ),
    st.integers(0),
)
def test_however_the_messages_cross_each_is_told_once_and_in_order(
    streams: list[list[int]], seed: int
) -> None:
    chance, order = random.Random(seed), SendingOrder()
    order.expect(range(len(streams)))
    rest = dict(enumerate(streams))
    heard: list[int] = []
    while rest:
        pid = chance.choice(list(rest))
        count = chance.randint(0, len(rest[pid]))
        told, rest[pid] = rest[pid][:count], rest[pid][count:]
        order.take(pid, sent(*told), caught_up=not rest[pid])
        if not rest[pid]:
            del rest[pid]
        heard += times(order.released(chance.randint(1, 5)))
    heard += times(order.released(ALL))

    assert heard == sorted(each for stream in streams for each in stream)
