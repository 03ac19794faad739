"""Times at a rate that is changed on the way."""

from itertools import islice
from statistics import median
from time import process_time

import msgspec
import numpy as np
import pytest

from collectors.contract.readings import Phase
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.loadgen.plan.rates import RateSeries, flat, on_off, ramp, steps
from inferwatch.loadgen.prompts.prompts import Prompts
from inferwatch.loadgen.schedule.arrivals import ArrivalPace, arrival_numbers
from inferwatch.loadgen.schedule.rate_integral import Floats, arrivals_by, moments_of
from inferwatch.loadgen.schedule.schedule import DueRequest, Schedule

S = 1_000_000_000
MS = 1_000_000
PLAN = LoadPlan(run_id="run", model="m", rate_per_s=20.0, warmup_s=0.0)


def numbers(count: int = 4_000, kind: Arrivals = Arrivals.POISSON) -> Floats:
    return np.concatenate(list(islice(arrival_numbers(kind, seed=3), 4)))[:count]


def changed(rates: RateSeries, *changes: tuple[float, float]) -> ArrivalPace:
    pace = ArrivalPace(rates)
    for at_s, rate_per_s in changes:
        pace.change(at_s, rate_per_s)
    return pace


def test_what_is_due_before_a_change_keeps_its_time() -> None:
    before = ArrivalPace(flat(20)).due_ns(numbers())
    after = changed(flat(20), (10.0, 60.0)).due_ns(numbers())

    early = before <= 10 * S
    assert list(after[early]) == list(before[early])


def test_what_is_due_after_a_change_is_so_much_sooner() -> None:
    before = ArrivalPace(flat(20)).due_ns(numbers())
    after = changed(flat(20), (10.0, 60.0)).due_ns(numbers())

    late = before > 10 * S
    waits, waited = after[late] - 10 * S, before[late] - 10 * S
    assert np.allclose(waits, waited / 3, atol=2)


def test_even_arrivals_stay_even_over_a_change() -> None:
    """A gap that is half over goes on at the new rate: no burst, no hole."""
    pace = changed(flat(20), (1.025, 10.0))

    gaps = np.diff(pace.due_ns(numbers(30, Arrivals.CONSTANT))) / MS

    assert list(gaps[:19]) == [50.0] * 19
    assert gaps[19] == pytest.approx(25 + 50, abs=0.001)
    assert list(gaps[20:]) == pytest.approx([100.0] * 9)


def test_many_changes_in_a_row_leave_the_times_in_order() -> None:
    changes = [(at / 7, 5.0 + at % 11 * 10) for at in range(1, 100)]

    times = changed(flat(20), *changes).due_ns(numbers(600))

    assert (np.diff(times) > 0).all()


@pytest.mark.parametrize(
    "rates", [ramp(10, 100, 20), on_off(50, 2, 1), steps([5, 40], 9)]
)
def test_a_rate_by_time_gives_way_from_the_change_on(rates: RateSeries) -> None:
    before = ArrivalPace(rates).due_ns(numbers())
    after = changed(rates, (12.5, 30.0)).due_ns(numbers())

    early = int((before <= 12.5 * S).sum())
    assert list(after[:early]) == list(before[:early])
    seconds = (after[-1] - 12.5 * S) / S
    assert (len(after) - early) / seconds == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize(
    ("rates", "at_s", "passed"),
    [
        (flat(20), 3.0, 60),
        (ramp(0, 10, 10), 4.0, 8),
        (ramp(0, 10, 10), 12.0, 70),
        (on_off(50, 2, 1), 7.5, 275),
        (steps([5, 40], 9), 10.0, 85),
    ],
)
def test_the_integral_of_a_rate_is_what_has_passed(
    rates: RateSeries, at_s: float, passed: float
) -> None:
    assert arrivals_by(rates, at_s) == pytest.approx(passed)
    assert moments_of(rates, np.array([passed])) == pytest.approx(at_s)


def taken(schedule: Schedule, count: int) -> list[DueRequest]:
    return list(islice(schedule, count))


def test_what_was_taken_comes_again_at_its_new_time() -> None:
    schedule, same = (Schedule(PLAN, Prompts(PLAN), flat(20)) for _ in range(2))
    sent, unsent = taken(schedule, 10), taken(schedule, 50)
    at_ns = sent[-1].offset_ns + 1

    schedule.change(at_ns, 60.0, unsent)

    again, expected = taken(schedule, 100), taken(same, 110)[10:]
    assert [due.prompt for due in again] == [due.prompt for due in expected]
    for due, was in zip(again, expected, strict=True):
        wait_ns = (was.offset_ns - at_ns) / 3
        assert due.offset_ns - at_ns == pytest.approx(wait_ns, abs=2)


def test_what_is_due_already_is_not_moved_by_a_change() -> None:
    """Else a client that is late, or held back by its cap, would hide it."""
    schedule = Schedule(PLAN, Prompts(PLAN), flat(20))
    unsent = taken(schedule, 30)
    at_ns = unsent[9].offset_ns

    schedule.change(at_ns, 1.0, unsent)

    again = taken(schedule, 30)
    assert again[:10] == unsent[:10]
    assert again[10].offset_ns > unsent[10].offset_ns


def test_a_slower_rate_lets_a_burst_overtake_what_was_due_before_it() -> None:
    plan = msgspec.structs.replace(PLAN, burst_every_s=5.0, burst_tokens=300)
    schedule = Schedule(plan, Prompts(plan), flat(20))
    unsent = taken(schedule, 90)

    schedule.change(0, 1.0, unsent)

    again = taken(schedule, 20)
    offsets = [due.offset_ns for due in again]
    assert offsets == sorted(offsets)
    bursts = [due.offset_ns for due in again if due.phase is Phase.BURST]
    assert bursts[0] == 5 * S


def test_a_number_of_requests_stays_that_number() -> None:
    plan = msgspec.structs.replace(PLAN, requests=40)
    schedule = Schedule(plan, Prompts(plan), flat(20))
    unsent = taken(schedule, 40)[5:]

    schedule.change(0, 60.0, unsent)

    assert [due.number for due in schedule] == list(range(5, 40))


def test_a_slower_rate_sends_nothing_after_the_end() -> None:
    plan = msgspec.structs.replace(PLAN, duration_s=2.0)
    schedule = Schedule(plan, Prompts(plan), flat(20))
    unsent = list(schedule)

    schedule.change(0, 5.0, unsent)

    assert 5 <= len(taken(schedule, 100)) <= 15
    assert all(due.offset_ns < 2 * S for due in schedule)


def test_a_change_leaves_the_warm_up_alone_and_begins_with_the_rest() -> None:
    plan = msgspec.structs.replace(
        PLAN, warmup_s=1.0, duration_s=1.0, arrivals=Arrivals.CONSTANT
    )
    schedule = Schedule(plan, Prompts(plan), flat(20))
    unsent = taken(schedule, 25)

    schedule.change(S // 2, 100.0, unsent)

    again = list(schedule)
    assert sum(due.phase is Phase.WARMUP for due in again) == 19
    steady = [due.offset_ns for due in again if due.phase is Phase.STEADY]
    assert steady[0] == S + 10 * MS
    assert len(steady) == 99


def test_a_change_costs_no_more_after_many_than_after_few() -> None:
    schedule = Schedule(PLAN, Prompts(PLAN), flat(20))
    costs_s = []
    for number in range(900):
        sent, *unsent = taken(schedule, 20)
        began_s = process_time()
        schedule.change(sent.offset_ns, 20.0 + number % 5, unsent)
        costs_s.append(process_time() - began_s)

    assert median(costs_s[-100:]) < 4 * median(costs_s[:100])
