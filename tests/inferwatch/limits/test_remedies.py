"""Remedies: each one fits, and a smaller one of its kind would not."""

from dataclasses import replace

import pytest

from inferwatch.limits.devices import device_named
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.plan import CapacityPlan, GpuSetup, Workload, plan_for
from inferwatch.limits.presets import PRESETS
from inferwatch.limits.remedies import Remedy, RemedyKind, lighter, remedies

SHORT = [
    ("llama-3-70b", "A100", 2, 32, 4096),
    ("llama-3-70b", "A100", 2, 16, 4096),
    ("llama-3-70b", "A100", 1, 1, 4096),
    ("llama-3-8b", "H100", 1, 128, 8192),
    ("llama-3-8b", "L4", 1, 9, 4096),
    ("deepseek-v3", "H100", 8, 8, 4096),
    ("gpt-oss-20b", "RTX 4090", 1, 64, 8192),
    ("llama-3-405b", "H100", 8, 8, 4096),
]


def plan(model: str, gpu: str, tp: int, batch: int, context: int) -> CapacityPlan:
    device = device_named(gpu)
    assert device is not None
    load = Workload(batch=batch, prompt=context - 256, output=256, context=context)
    machine = GpuSetup(device=device, tensor_parallel=tp)
    return plan_for(shape_of(PRESETS[model]), machine, load)


def of_kind(found: tuple[Remedy, ...], kind: RemedyKind) -> CapacityPlan | None:
    return next((each.plan for each in found if each.kind is kind), None)


def with_load(found: CapacityPlan, load: Workload) -> CapacityPlan:
    return plan_for(found.shape, found.machine, load)


def with_gpus(found: CapacityPlan, **gpus: object) -> CapacityPlan:
    machine = replace(found.machine, **gpus)  # type: ignore[arg-type]
    return plan_for(found.shape, machine, found.workload)


def test_70b_on_two_a100_gets_the_four_ways_that_guides_name() -> None:
    found = remedies(plan("llama-3-70b", "A100", 2, 32, 4096))

    weights = [e.plan.shape.weight_bits for e in found if e.kind is RemedyKind.FORMAT]
    fewer, shorter = (of_kind(found, e) for e in (RemedyKind.BATCH, RemedyKind.CONTEXT))
    other, more = (of_kind(found, e) for e in (RemedyKind.GPU, RemedyKind.MORE_GPUS))
    assert weights == [8, 4.25]
    assert fewer is not None
    assert fewer.workload.batch == 8
    assert shorter is not None
    assert shorter.workload.context == 1072
    assert other is not None
    assert (other.machine.gpus, other.machine.device.name) == (2, "H200")
    assert more is not None
    assert more.machine.tensor_parallel == 4
    assert [each.added_gpus for each in found] == [0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize("short", SHORT, ids=lambda each: f"{each[0]} on {each[1]}")
def test_fed_back_a_remedy_fits_and_less_of_it_does_not(
    short: tuple[str, str, int, int, int],
) -> None:
    asked = plan(*short)

    found = remedies(asked)

    assert not asked.fits
    assert found
    for each in found:
        assert with_load(each.plan, each.plan.workload).fits
    if fewer := of_kind(found, RemedyKind.BATCH):
        load = fewer.workload
        assert not with_load(fewer, replace(load, batch=load.batch + 1)).fits
    if shorter := of_kind(found, RemedyKind.CONTEXT):
        load = shorter.workload
        assert not with_load(shorter, replace(load, context=load.context + 1)).fits
    if more := of_kind(found, RemedyKind.MORE_GPUS):
        tp, pp = more.machine.tensor_parallel, more.machine.pipeline_parallel
        if pp > 1:
            assert not with_gpus(more, pipeline_parallel=pp - 1).fits
        elif tp > 1:
            assert not with_gpus(more, tensor_parallel=tp // 2).fits


def test_another_gpu_is_the_smallest_that_is_no_slower_in_anything() -> None:
    small, large = (plan("llama-3-70b", "A100", 2, n, 4096) for n in (16, 30))

    found = [of_kind(remedies(each), RemedyKind.GPU) for each in (small, large)]

    names = [each.machine.device.name for each in found if each is not None]
    assert names == ["H100 NVL", "H200"]
    # it fits on an H20, too, which has half of the A100's FLOP/s
    assert with_gpus(large, device=device_named("H20")).fits


def test_what_fits_needs_no_remedy() -> None:
    assert remedies(plan("llama-3-8b", "H100", 1, 8, 4096)) == ()


def test_what_no_change_makes_fit_has_none() -> None:
    assert remedies(plan("deepseek-v3", "T4", 1, 1 << 20, 1 << 20)) == ()


def test_gpus_without_nvlink_become_stages_rather_than_share_layers() -> None:
    found = remedies(plan("llama-3-8b", "L4", 1, 9, 4096))

    more = of_kind(found, RemedyKind.MORE_GPUS)
    assert more is not None
    assert (more.machine.tensor_parallel, more.machine.pipeline_parallel) == (1, 2)


def test_bits_that_are_about_as_few_already_are_no_remedy() -> None:
    shape = shape_of(PRESETS["deepseek-v3"])  # FP8 with a scale for each block

    assert lighter(shape, 8) is None
    assert lighter(shape, 4.25) is not None
