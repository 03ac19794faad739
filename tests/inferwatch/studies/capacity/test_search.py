"""The least GPUs, fed back: so many hold, one fewer does not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from inferwatch.limits.plan import plan_for
from inferwatch.studies.capacity import search
from inferwatch.studies.capacity.batch import Binds, missed_by
from inferwatch.studies.capacity.queue import simulate
from inferwatch.studies.capacity.result import CapacityResult
from inferwatch.studies.capacity.search import (
    CapacityAnswer,
    Option,
    answers_for,
    bound_for,
    most_rate,
    simulated_answer,
)
from inferwatch.studies.capacity.steps import StepTimes
from tests.inferwatch.studies.capacity.setups import (
    few_requests,
    goal,
    option,
    workload,
)

__all__ = ["few_requests"]


def holds(answer: CapacityAnswer, replicas: int) -> bool:
    """Feed a number of replicas back: by the bound, then by the queue."""
    found, want = answer.option, answer.goal
    assert want.rate_per_s is not None
    assert answer.setting is not None
    if want.rate_per_s > replicas * (answer.most_per_s or 0) * (1 + 1e-9):
        return False
    rate = want.rate_per_s / replicas / found.queues
    outcome = simulate(found.times, answer.setting, rate, want.slo, want.target)
    return outcome.holds(want.target)


@settings(max_examples=6)
@given(
    prompt=some.integers(1, 6_000),
    output=some.integers(2, 150),
    tpot_ms=some.integers(6, 60),
    rate=some.floats(0.5, 80),
    ways=some.sampled_from([(1, 1), (2, 1), (1, 2)]),
)
def test_so_many_replicas_hold_and_one_fewer_does_not(
    prompt: int, output: int, tpot_ms: int, rate: float, ways: tuple[int, int]
) -> None:
    found = option(ways=ways, load=workload(prompt, output))
    answer = simulated_answer(
        bound_for(found, goal(f"tpot_s<{tpot_ms}ms ttft_s<3", rate))
    )
    if answer.replicas is None:
        return

    assert holds(answer, answer.replicas)
    assert answer.replicas == 1 or not holds(answer, answer.replicas - 1)


@given(
    context=some.integers(300, 60_000),
    limit_ms=some.floats(3, 100),
    ways=some.sampled_from([(2, 1), (4, 1), (2, 2)]),
)
@settings(max_examples=30)
def test_the_largest_batch_holds_and_one_more_does_not(
    context: int, limit_ms: float, ways: tuple[int, int]
) -> None:
    found = option("llama-3-70b", ways=ways, load=workload(context - 256))
    want = goal(f"tpot_s<{limit_ms}ms")
    limits = bound_for(found, want).limits

    def fits(batch: int) -> bool:
        load = replace(found.plan.workload, batch=batch * found.queues)
        within = plan_for(found.plan.shape, found.plan.machine, load).fits
        return within and not missed_by(found.times, want.slo, batch, found.stages)

    assert not limits.holding or fits(limits.holding)
    assert not fits(limits.holding + 1)


def test_70b_at_20_requests_a_second_takes_eight_h100_and_four_in_fp8() -> None:
    """By hand, for 2,000 + 256 tokens and TPOT < 40 ms.

    A request is 2 · 69.5e9 · 2,256 = 3.14e14 FLOP and 1.2e13 of attention; 20 a second
    are 6.4e15, at 989.5e12 of an H100 6.5 GPUs: 8 in sets of TP 4 or 8. TP 4 leaves
    78.7 − 35.3 − 3.4 = 40 GB of each GPU for KV of 2,256 · 81,920 B = 0.185 GB: some
    216 requests. In 40 ms TP 4 computes 158e12 FLOP: 127 requests at a time, of which
    each brings 1/255 of its prompt (1.1e12) and a token (1.4e11). In FP8 an H100
    computes twice as much: 3.3 GPUs, so 4. TP 2 has no room in 16 bits: 78.7 − 70.5
    leave 14 requests, 2.5 a second.
    """
    want = goal("tpot_s<40ms", 20)
    sixteen = [option("llama-3-70b", ways=(tp, 1)) for tp in (1, 2, 4, 8)]
    eight = [option("llama-3-70b", ways=(tp, 1), method="fp8") for tp in (2, 4)]

    one, two, four, all_eight = answers_for(sixteen, want)
    assert one.binds is Binds.WEIGHTS
    assert two.is_outbid
    assert two.binds is Binds.KV_MEMORY
    assert four.limits.fitting == pytest.approx(216, rel=0.03)
    assert four.batch == pytest.approx(127, abs=1)
    assert four.binds is Binds.PROMPTS
    assert (four.gpus, all_eight.gpus) == (8, 8)
    assert [each.gpus for each in answers_for(eight, want)] == [4, 4]


def test_memory_and_not_prompts_binds_short_prompts_of_long_answers() -> None:
    found = option("llama-3-70b", ways=(2, 1), load=workload(200, 2_000))

    assert bound_for(found, goal("tpot_s<40ms", 1)).binds is Binds.KV_MEMORY


@pytest.mark.parametrize(
    ("slo", "binds"),
    [
        ("tpot_s<5ms", Binds.TPOT),
        ("ttft_s<20ms", Binds.TTFT),
        ("e2el_s<1s", Binds.E2EL),
        ("itl_s<5ms", Binds.ITL),
    ],
)
def test_an_objective_faster_than_the_floor_binds(slo: str, binds: Binds) -> None:
    answer = simulated_answer(
        bound_for(option("llama-3-70b", ways=(4, 1)), goal(slo, 1))
    )

    assert not answer.holds
    assert answer.binds is binds


def test_a_tighter_ttft_takes_more_replicas_than_throughput_does() -> None:
    loose, tight = (
        simulated_answer(bound_for(option(), goal(slo, 40)))
        for slo in ("ttft_s<10s", "ttft_s<80ms")
    )

    assert loose.replicas == loose.least_replicas == 2
    assert (tight.replicas or 0) > (loose.replicas or 0)
    assert tight.binds is Binds.TTFT


def test_stages_of_a_pipeline_share_the_requests() -> None:
    want = goal("tpot_s<40ms", 30)
    alone, staged = (
        simulated_answer(bound_for(option(ways=ways), want))
        for ways in [(1, 1), (1, 2)]
    )

    assert (alone.replicas, staged.replicas) == (2, 1)


def test_the_price_is_of_tokens_of_good_requests() -> None:
    found = option()
    priced = replace(found.plan, machine=replace(found.plan.machine, gpu_hour=3.6))
    answer = simulated_answer(
        bound_for(replace(found, plan=priced), goal("tpot_s<40ms", 10))
    )

    good = 10 * 256 * answer.good_share
    gpus = answer.gpus or 0
    assert answer.gpu_hours_price == 3.6 * gpus
    assert answer.price_per_million == pytest.approx(gpus * 1e3 / good)


def test_what_one_replica_holds_is_less_than_its_largest_batch_serves() -> None:
    answer = simulated_answer(bound_for(option(), goal("tpot_s<40ms ttft_s<0.2", 10)))

    rate = most_rate(answer)
    assert rate is not None
    assert answer.most_per_s is not None
    assert 0.5 * answer.most_per_s < rate < answer.most_per_s


def test_small_chunks_take_fewer_replicas_than_large_ones_may() -> None:
    """Prompts are computed beside decode: chunks of 8,192 take six."""
    found = option(load=workload(3_840, 256))
    answer = simulated_answer(bound_for(found, goal("e2el_s<1000", 55.56)))

    assert answer.replicas == answer.least_replicas == 4
    assert answer.setting is not None
    assert answer.setting.max_num_batched_tokens < 4_096


def with_lean_cache(heavy: Option) -> Option:
    shape, machine = replace(heavy.plan.shape, kv_bits=8.0), heavy.plan.machine
    load = heavy.plan.workload
    times = StepTimes(shape, machine, load)
    return replace(heavy, plan=plan_for(shape, machine, load), times=times)


@settings(max_examples=2)
@given(rate=some.floats(5, 150), slo=some.sampled_from(["ttft_s<10ms", "itl_s<9ms"]))
def test_a_lighter_format_takes_no_more_gpus(rate: float, slo: str) -> None:
    load = workload(3_840, 64)
    heavy, light = (
        option(ways=(8, 1), load=load, method=method) for method in (None, "fp8")
    )
    first, *lighter = answers_for(
        [heavy, light, with_lean_cache(heavy)], goal(slo, rate)
    )

    if first.replicas is not None:
        for each in lighter:
            assert each.is_outbid or (each.replicas or 0) <= first.replicas


def test_a_queue_that_fares_worse_with_faster_steps_takes_no_more_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heavy = option()
    lean = with_lean_cache(heavy)
    taken = {id(heavy): 10, id(lean): 13}

    def found(bound: CapacityAnswer, *_: object) -> CapacityAnswer:
        return replace(bound, replicas=taken[id(bound.option)])

    monkeypatch.setattr(search, "simulated_answer", found)
    answers = answers_for([heavy, lean], goal("tpot_s<40ms", 100))
    assert [each.replicas for each in answers] == [10, 10]


def test_set_ups_that_were_not_simulated_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    want, options = goal("ttft_s<80ms", 40), [option(), option()]
    told = []
    for most in (search.MOST_STEPS, 0):
        monkeypatch.setattr(search, "MOST_STEPS", most)
        result = CapacityResult(
            model="",
            workload=workload(),
            goal=want,
            answers=answers_for(options, want),
        )
        told.append(result.is_cut_short)

    assert told == [False, True]


def test_a_first_token_waits_for_a_step_of_its_batch() -> None:
    found = option(ways=(8, 1), load=workload(3_840, 256))
    answer, *_ = answers_for([found], goal("ttft_s<10ms"))

    assert answer.ttft_s is not None
    assert answer.tpot_s is not None
    assert answer.tpot_s <= answer.ttft_s < 10e-3
