"""How long planned steps take, beside the arithmetic of a plan."""

from dataclasses import replace

import pytest

from inferwatch.limits.plan import plan_for
from inferwatch.studies.capacity.steps import Claim, StepPace
from tests.inferwatch.studies.capacity.setups import option, workload


@pytest.mark.parametrize("model", ["llama-3-8b", "gpt-oss-20b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("batch", [1, 40, 400])
def test_mean_steps_serve_what_a_plan_serves(model: str, batch: int) -> None:
    """A plan counts the first token as a decode step, which is 1 of 256."""
    found = option(model)
    plan, times = found.plan, found.times
    served = plan_for(
        plan.shape, plan.machine, replace(plan.workload, batch=batch, context=2_256)
    )

    tokens_per_s = times.most_per_s(batch) * 256
    if served.served_tokens_per_s is not None:
        assert tokens_per_s == pytest.approx(served.served_tokens_per_s, rel=0.006)


def test_a_simulated_decode_step_takes_the_floor_of_tpot() -> None:
    found = option("llama-3-70b", ways=(4, 1))

    step_s = found.times.step_s(found.times.load_of(1))
    assert step_s == pytest.approx(found.plan.tpot_floor_s)


def test_a_prompt_alone_takes_the_floor_of_ttft_over_all_stages() -> None:
    found = option("gpt-oss-20b", ways=(2, 2))

    assert found.times.alone_s() / 2 == pytest.approx(found.plan.ttft_floor_s)


def test_estimates_add_communication_to_a_share_of_the_peaks() -> None:
    best = option("llama-3-405b", ways=(8, 1), method="fp8")
    found = option(
        "llama-3-405b", ways=(8, 1), method="fp8", pace=StepPace(efficiency=0.5)
    )
    load = found.times.load_of(1)

    assert found.claim is Claim.ESTIMATE
    assert found.plan.communication_s is not None
    assert found.times.step_s(load) == pytest.approx(
        2 * best.times.step_s(load) + found.plan.communication_s
    )


def test_requests_of_one_token_are_prompts_alone() -> None:
    found = option(load=workload(1_000, 1))

    assert found.times.most_per_s(50) == pytest.approx(1 / found.times.alone_s(), 0.02)
