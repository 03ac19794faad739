from itertools import islice

import msgspec

from collectors.readings import Phase
from inferwatch.loadgen.plan import LoadPlan
from inferwatch.loadgen.prompts import Prompts
from inferwatch.loadgen.rates import flat
from inferwatch.loadgen.schedule import Due, schedule

PLAN = LoadPlan(run_id="run", model="m", burst_every_s=2.0, burst_tokens=1_000)


def first(count: int, plan: LoadPlan = PLAN, rate_per_s: float = 20) -> list[Due]:
    dues = schedule(plan, Prompts(plan), flat(rate_per_s))
    return list(islice(dues, count))


def bursts(dues: list[Due]) -> list[list[Due]]:
    found: list[list[Due]] = []
    for due in dues:
        if due.burst is not None:
            found.append([])
        if due.phase is Phase.BURST:
            found[-1].append(due)
    return found


def test_everything_is_in_order_of_time() -> None:
    offsets = [due.offset_ns for due in first(500)]

    assert offsets == sorted(offsets)


def test_a_burst_is_all_due_at_one_moment() -> None:
    complete = bursts(first(500))[:-1]

    assert [{due.offset_ns for due in burst} for burst in complete] == [
        {(number + 1) * 2_000_000_000} for number in range(len(complete))
    ]


def test_a_burst_asks_for_just_its_kv_tokens() -> None:
    for burst in bursts(first(500))[:-1]:
        asked = [due.prompt.kv_tokens for due in burst]

        assert sum(asked[:-1]) < 1_000 <= sum(asked)
        assert burst[0].burst == len(burst)


def test_bursts_have_different_prompts() -> None:
    one, other = bursts(first(500))[:2]

    assert one[0].prompt != other[0].prompt


def test_steady_arrivals_go_on_under_the_bursts() -> None:
    alone = msgspec.structs.replace(PLAN, burst_every_s=None)
    steady = [due for due in first(500) if due.phase is Phase.STEADY]

    assert steady == first(len(steady), alone)


def test_equal_plans_make_equal_schedules() -> None:
    assert first(300) == first(300)


def test_another_seed_makes_another_schedule() -> None:
    other = msgspec.structs.replace(PLAN, seed=1)

    assert first(300) != first(300, other)


def test_the_rate_changes_when_and_not_what() -> None:
    plan = msgspec.structs.replace(PLAN, burst_every_s=None)
    slow, fast = first(300, plan, rate_per_s=5), first(300, plan, rate_per_s=50)

    assert [due.prompt for due in slow] == [due.prompt for due in fast]


def test_a_duration_ends_the_schedule() -> None:
    plan = msgspec.structs.replace(PLAN, duration_s=4.0)
    dues = list(schedule(plan, Prompts(plan), flat(20)))

    assert 3_500_000_000 < dues[-1].offset_ns < 4_000_000_000
    assert len(bursts(dues)) == 1
