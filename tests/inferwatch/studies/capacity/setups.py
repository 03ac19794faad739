"""Set-ups of the tests, by the names that people use."""

from dataclasses import replace

from inferwatch.limits.devices import device_named
from inferwatch.limits.hf_config import shape_of
from inferwatch.limits.plan import GpuSetup, Workload, plan_for
from inferwatch.limits.presets import PRESETS
from inferwatch.metrics.requests.slo import parse_slo
from inferwatch.studies.capacity.search import Goal, Option
from inferwatch.studies.capacity.steps import AT_BEST, Pace, StepTimes


def workload(prompt: int = 2_000, output: int = 256) -> Workload:
    return Workload(batch=1, prompt=prompt, output=output, context=prompt + output)


def option(
    model: str = "llama-3-8b",
    gpu: str = "H100",
    ways: tuple[int, int] = (1, 1),
    *,
    method: str | None = None,
    load: Workload | None = None,
    pace: Pace = AT_BEST,
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


def goal(slo: str, rate: float | None = None) -> Goal:
    return replace(Goal(rate_per_s=rate), slo=parse_slo(slo))
