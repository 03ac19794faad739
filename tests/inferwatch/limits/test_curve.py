"""Curves: their points are plans, and the knee is where weights stop setting the pace.

By hand, Llama 3 8B in 16 bits on an A100 (2.039 TB/s), 2,048 tokens of prompt and 256
of output: a step reads 15.01 GB of weights (all but the input embedding) and for each
request 131,072 bytes of KV for 2,176.5 tokens in the mean, 285 MB: 15.01 / 0.285 = 52.6
"""

from dataclasses import replace

import pytest

from inferwatch.limits.curve import PlanCurve, curve_for
from inferwatch.limits.devices import device_named
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.plan import GpuSetup, Workload, knee_for, plan_for
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.roofline import least_batch

WORKLOAD = Workload(batch=1, prompt=2048, output=256, context=2304)
PUBLISHED: dict[str, dict[int, float]] = {
    "A100": {1: 140, 4: 540, 16: 2000, 32: 3600, 64: 5800, 128: 7200, 256: 7800},
    "H100": {1: 238, 256: 16_500},
}
"""Tokens/s of an 8B model in 16 bits at 2K context that a guide prints."""
BATCHES = (1, 4, 16, 32, 64, 128, 256)


def setup(gpu: str, tensor_parallel: int = 1) -> GpuSetup:
    device = device_named(gpu)
    assert device is not None
    return GpuSetup(device=device, tensor_parallel=tensor_parallel)


def curve(gpu: str, measured: dict[int, float] | None = None) -> PlanCurve:
    shape = shape_of(PRESETS["llama-3-8b"])
    return curve_for(shape, setup(gpu), WORKLOAD, BATCHES, measured)


def test_each_point_is_what_a_plan_of_it_says() -> None:
    found = curve("A100")

    (point,) = [each for each in found.points if each.batch == 32]
    assert [each.batch for each in found.points] == list(BATCHES)
    assert point.plan == plan_for(
        shape_of(PRESETS["llama-3-8b"]), setup("A100"), replace(WORKLOAD, batch=32)
    )


def test_at_the_knee_kv_takes_as_long_to_read_as_weights() -> None:
    found = curve("A100")

    assert found.knee == 53
    alone, at_knee = (
        plan_for(found.plan.shape, found.plan.machine, replace(WORKLOAD, batch=batch))
        for batch in (1, 53)
    )
    assert alone.tpot_floor_s is not None
    assert at_knee.tpot_floor_s == pytest.approx(2 * alone.tpot_floor_s, rel=0.03)


def test_where_compute_binds_first_the_knee_is_there() -> None:
    short = Workload(batch=1, prompt=128, output=64, context=192)
    shape, machine = shape_of(PRESETS["llama-3-70b"]), setup("H100", tensor_parallel=8)

    knee = knee_for(shape, machine, short)

    assert knee == plan_for(shape, machine, short).compute_bound_from
    assert knee is not None


@pytest.mark.parametrize("gpu", ["A100", "H100"])
def test_a_published_curve_is_faster_than_possible_at_every_point(gpu: str) -> None:
    found = curve(gpu, PUBLISHED[gpu])

    assert [each.batch for each in found.impossible] == [*PUBLISHED[gpu]]


def test_only_claims_are_judged_and_their_batches_join_the_curve() -> None:
    found = curve("A100", {8: 500, 48: 9000})

    assert [each.batch for each in found.measured] == [8, 48]
    assert [each.batch for each in found.impossible] == [48]
    assert found.points[0].possible is None


def test_a_batch_that_never_comes_is_unknown() -> None:
    assert least_batch(lambda batch: batch >= 77) == 77
    assert least_batch(lambda _: False) is None
