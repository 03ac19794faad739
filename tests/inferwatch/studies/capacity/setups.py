"""Set-ups of the tests, by the names that people use."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from inferwatch.limits.devices import device_named
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.plan import GpuSetup, Workload, plan_for
from inferwatch.limits.presets import PRESETS
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.studies.capacity import queue
from inferwatch.studies.capacity.search import CapacityGoal, Option
from inferwatch.studies.capacity.steps import AT_BEST, StepPace, StepTimes


def workload(prompt: int = 2_000, output: int = 256) -> Workload:
    return Workload(batch=1, prompt=prompt, output=output, context=prompt + output)


def option(
    model: str = "llama-3-8b",
    gpu: str = "H100",
    ways: tuple[int, int] = (1, 1),
    *,
    method: str | None = None,
    load: Workload | None = None,
    pace: StepPace = AT_BEST,
) -> Option:
    device = device_named(gpu)
    assert device is not None
    shape = shape_of(PRESETS[model], dtype=None, kv_dtype="auto", quantization=method)
    machine = GpuSetup(
        device=device, tensor_parallel=ways[0], pipeline_parallel=ways[1]
    )
    load = load or workload()
    return Option(
        plan=plan_for(shape, machine, load),
        times=StepTimes(shape, machine, load, pace),
        formats="",
    )


def goal(slo: str, rate: float | None = None) -> CapacityGoal:
    return replace(CapacityGoal(rate_per_s=rate), slo=parse_slo(slo))


@pytest.fixture(scope="module", autouse=True)
def few_requests() -> Iterator[None]:
    """Where this is imported, queues are simulated for a short while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "MEASURED", 300)
        yield
