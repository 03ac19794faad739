"""Speculative decoding: what a pass brings, what it costs, and when it pays."""

from dataclasses import replace

import pytest

from inferwatch.limits.devices import device_named
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.plan import CapacityPlan, GpuSetup, Workload, plan_for
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.speculation import MOST_HELPED, Drafting, most_helped
from inferwatch.limits.step import StepSums


def planned(
    drafting: Drafting | None, batch: int = 1, name: str = "llama-3-70b"
) -> CapacityPlan:
    device = device_named("H100")
    assert device is not None
    load = Workload(
        batch=batch, prompt=3840, output=256, context=4096, drafting=drafting
    )
    return plan_for(
        shape_of(PRESETS[name]), GpuSetup(device=device, tensor_parallel=4), load
    )


@pytest.mark.parametrize(
    ("acceptance", "drafts", "tokens"),
    [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 5, 3.69), (0.9, 10, 6.86), (1, 4, 5)],
)
def test_tokens_of_a_pass_are_those_that_the_paper_prints(
    acceptance: float, drafts: int, tokens: float
) -> None:
    """Leviathan et al., table 1."""
    drafting = Drafting(acceptance=acceptance, drafts=drafts)

    assert drafting.tokens_per_pass == pytest.approx(tokens, abs=0.005)


def test_a_step_that_verifies_is_one_of_chunks_behind_the_same_context() -> None:
    chunks = StepSums.of_requests([(5, 100), (5, 100)])

    # and all tokens need logits
    needed = chunks._replace(sequences=10)
    assert StepSums.decoding(2, 100).verifying(4) == needed
    assert StepSums.decoding(2, 100).verifying(0) == StepSums.decoding(2, 100)


def test_a_token_of_one_request_costs_a_step_divided_by_the_tokens_of_a_pass() -> None:
    """Memory-bound, verification reads what a plain step reads."""
    plain, drafted = planned(None), planned(Drafting(acceptance=0.7, drafts=4))

    assert plain.tpot_floor_s is not None
    assert drafted.tpot_floor_s == pytest.approx(plain.tpot_floor_s / 2.7731, rel=1e-3)
    assert drafted.tokens_per_s == pytest.approx(1 / (drafted.tpot_floor_s or 0))


def test_drafting_takes_time_by_its_share_or_by_its_model() -> None:
    free = Drafting(acceptance=0.7, drafts=4)
    small = shape_of(PRESETS["llama-3-8b"])
    costs = [
        planned(each).tpot_floor_s or 0
        for each in (
            free,
            replace(free, cost_share=0.115),
            replace(free, model=small),
        )
    ]

    # 15.5 of 139 GB are read for a token of the smaller model
    assert costs[0] < costs[1] == pytest.approx(costs[2], rel=0.02)


def test_a_model_that_drafts_takes_memory() -> None:
    plain = planned(None)
    drafted = planned(
        Drafting(acceptance=0.7, drafts=4, model=shape_of(PRESETS["llama-3-8b"]))
    )

    assert drafted.weight_bytes - plain.weight_bytes == pytest.approx(16.06e9 / 4, 0.01)
    assert drafted.request_kv_bytes == plain.request_kv_bytes + 4096 * 131_072
    assert drafted.max_requests < plain.max_requests


def test_speculation_helps_up_to_the_batch_that_is_told_and_no_further() -> None:
    drafting = Drafting(acceptance=0.5, drafts=7)
    most = planned(drafting).most_helped

    assert most is not None
    assert 1 < most < 300
    for batch, helps in ((most, True), (most + 1, False)):
        plain, drafted = planned(None, batch), planned(drafting, batch)
        assert ((drafted.tpot_floor_s or 0) < (plain.tpot_floor_s or 0)) is helps


def test_what_never_helps_and_what_always_does_is_told_apart() -> None:
    assert most_helped(lambda _: 2.0, lambda _: 1.0) == 0
    assert most_helped(lambda _: 1.0, lambda _: 2.0) == MOST_HELPED
    assert most_helped(lambda _: None, lambda _: 1.0) is None


def test_what_helps_from_some_batch_on_is_found_from_above() -> None:
    """Of a mixture of experts, few tokens touch few experts."""
    assert most_helped(lambda n: 1.0 if 10 < n <= 100 else 3.0, lambda _: 2.0) == 100
