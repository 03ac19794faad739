from itertools import islice
from typing import Any

import msgspec

from collectors.contract.readings import Phase
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan, TraceRow
from inferwatch.loadgen.plan.rates import flat, steps
from inferwatch.loadgen.prompts.prompts import Prompts
from inferwatch.loadgen.schedule.schedule import DueRequest, Schedule

MS = 1_000_000
PLAN = LoadPlan(run_id="run", model="m", burst_every_s=2.0, burst_tokens=1_000)


def first(
    count: int, plan: LoadPlan = PLAN, rate_per_s: float = 20
) -> list[DueRequest]:
    dues = Schedule(plan, Prompts(plan), flat(rate_per_s))
    return list(islice(dues, count))


def bursts(dues: list[DueRequest]) -> list[list[DueRequest]]:
    found: list[list[DueRequest]] = []
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
    dues = list(Schedule(plan, Prompts(plan), flat(20)))

    assert 3_500_000_000 < dues[-1].offset_ns < 4_000_000_000
    assert len(bursts(dues)) == 1


def shaped(**changes: Any) -> list[DueRequest]:
    """All of a plan of 50 constant arrivals per second."""
    plain = {"run_id": "run", "model": "m", "arrivals": Arrivals.CONSTANT}
    one_rate = {} if changes.keys() & {"rates", "trace"} else {"rate_per_s": 50.0}
    plan = LoadPlan(**{**plain, "warmup_s": 0.0, **one_rate, **changes})
    return list(Schedule(plan, Prompts(plan), plan.rates or flat(50)))


def phases(dues: list[DueRequest]) -> list[Phase]:
    return [due.phase for due in dues]


def test_a_given_rate_is_warmed_up_by_the_beginning_of_the_schedule() -> None:
    dues = shaped(warmup_s=1.0, duration_s=2.0)

    warm = [due for due in dues if due.phase is Phase.WARMUP]
    assert [due.offset_ns for due in warm] == [n * 20 * MS for n in range(1, 50)]
    assert dues[len(warm)].offset_ns == 1_020 * MS
    assert len(dues) - len(warm) == 99


def test_the_warm_up_changes_neither_times_nor_prompts_of_the_rest() -> None:
    cold = shaped(duration_s=2.0)
    warm = shaped(duration_s=2.0, warmup_s=1.5)[-len(cold) :]

    assert [due.prompt for due in cold] == [due.prompt for due in warm]
    assert {b.offset_ns - a.offset_ns for a, b in zip(cold, warm, strict=True)} == {
        1_500 * MS
    }


def test_a_rate_by_time_begins_after_the_warm_up() -> None:
    rates = steps([10, 30], each_s=1)

    dues = shaped(rates=rates, warmup_s=2.0, duration_s=2.0)

    assert phases(dues).count(Phase.WARMUP) == 19
    steady = [due.offset_ns for due in dues if due.phase is Phase.STEADY]
    assert sum(offset_ns <= 3_000 * MS for offset_ns in steady) == 10
    assert len(steady) in {39, 40}


def test_a_number_of_requests_ends_the_schedule_and_leaves_the_warm_up_out() -> None:
    dues = shaped(warmup_s=1.0, requests=7)

    assert phases(dues).count(Phase.STEADY) == 7


def test_a_trace_is_followed_at_its_times_and_lengths() -> None:
    rows = (row(0.0, 20, 5), row(1.0, 30, 6), row(3.0, 40, 7))

    dues = shaped(arrivals=Arrivals.TRACE, trace=rows, speed=2.0)

    assert [due.offset_ns for due in dues] == [0, 500 * MS, 1_500 * MS]
    assert [len(due.prompt.token_ids) for due in dues] == [20, 30, 40]
    assert [due.prompt.max_tokens for due in dues] == [5, 6, 7]


def test_equal_blocks_of_a_trace_are_equal_tokens() -> None:
    rows = (row(0.0, 1100, 1, 7, 8), row(1.0, 1100, 1, 7, 9), row(2.0, 300, 1, 7))

    first, second, third = (
        due.prompt.token_ids for due in shaped(arrivals=Arrivals.TRACE, trace=rows)
    )

    assert first[:512] == second[:512]
    assert first[512:1024] != second[512:1024]
    assert first[1024:] != second[1024:]
    assert third == first[:300]


def test_the_beginning_of_a_trace_warms_up() -> None:
    rows = tuple(row(float(at_s), 20, 5) for at_s in range(4))

    dues = shaped(arrivals=Arrivals.TRACE, trace=rows, warmup_s=2.0)

    assert phases(dues) == [Phase.WARMUP] * 2 + [Phase.STEADY] * 2


def row(at_s: float, prompt: int, output: int, *blocks: int) -> TraceRow:
    return TraceRow(
        offset_s=at_s, prompt_tokens=prompt, output_tokens=output, blocks=blocks
    )
