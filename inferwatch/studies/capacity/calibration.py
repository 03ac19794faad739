"""What recorded steps took beyond their floors, to be added to the floors of others."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import (
    AnyReading,
    GpuInfo,
    ModelConfig,
    StartupStage,
)
from inferwatch.limits.devices import Device, device_named
from inferwatch.limits.hf_config import ShapeError, shape_of
from inferwatch.limits.plan import GpuSetup, Workload
from inferwatch.limits.shape import ModelShape
from inferwatch.metrics.steps.startup import Startup, startup_of
from inferwatch.studies.capacity.steps import StepTimes
from inferwatch.studies.what_if.heard import KINDS, CannotTellError, RunReadings
from inferwatch.studies.what_if.reach import REACH
from inferwatch.studies.what_if.recorded import run_of
from inferwatch.studies.what_if.scheduler import StepLoad
from inferwatch.studies.what_if.step_cost import StepCost

CALIBRATION_KINDS = (*KINDS, ModelConfig, GpuInfo, StartupStage)
"""The types of readings that a calibration uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOverhead:
    """The step costs of a recording, beside its own floors."""

    session: str
    model: str
    shape: ModelShape
    machine: GpuSetup
    cost: StepCost
    floors: StepTimes
    startup: Startup | None = None

    def overhead_s(self, load: StepLoad) -> float:
        """Seconds beyond the floor of a recorded step with this load, gap included."""
        members = load.decoding + load.prefilling
        took_ns = self.cost.expected_ns(load) + self.cost.gap_ns(members)
        return max(0.0, took_ns / NS_PER_S - self.floors.step_s(load))

    @property
    def seen(self) -> tuple[int, int]:
        """The largest batch and prompt tokens of a step up to which costs reach."""
        cost = self.cost
        return int(REACH * cost.most_members), int(REACH * cost.most_prefill_tokens)

    def is_of(self, shape: ModelShape, machine: GpuSetup) -> bool:
        """Whether it was recorded with this model on these GPUs."""
        here = machine.device.name, machine.tensor_parallel, machine.pipeline_parallel
        own = self.machine
        return shape == self.shape and here == (
            own.device.name,
            own.tensor_parallel,
            own.pipeline_parallel,
        )


def calibration_of(
    readings: Iterable[AnyReading], session: str, workload: Workload
) -> RecordedOverhead:
    """Learn from a session's readings.

    Raises:
        CannotTellError: its steps, its model or its GPUs are not known.
    """
    heard, configs, gpus = RunReadings(), list[ModelConfig](), list[GpuInfo]()
    stages: list[StartupStage] = []
    for each in readings:
        if isinstance(each, ModelConfig):
            configs.append(each)
        elif isinstance(each, GpuInfo):
            gpus.append(each)
        elif isinstance(each, StartupStage):
            stages.append(each)
        else:
            heard.take(each)
    run = run_of(heard)
    config = next((c for c in configs if c.source == run.engine.source), None)
    shape, device = _shape(config), _device(run.engine.gpus, gpus)
    machine = GpuSetup(device=device, tensor_parallel=run.engine.tensor_parallel or 1)
    cost = StepCost(run.steps)
    if not cost.most_prefill_tokens:
        raise CannotTellError("no step with a prompt was recorded")
    return RecordedOverhead(
        session=session,
        model=run.engine.model,
        shape=shape,
        machine=machine,
        cost=cost,
        floors=StepTimes(shape, machine, workload),
        startup=startup_of(each for each in stages if each.source == run.engine.source),
    )


def _shape(config: ModelConfig | None) -> ModelShape:
    if config is None:
        raise CannotTellError("the configuration of its model was not recorded")
    try:
        return shape_of(
            msgspec.json.decode(config.config, type=dict),
            dtype=config.dtype,
            kv_dtype=config.kv_dtype,
            quantization=config.quantization,
        )
    except (msgspec.MsgspecError, RecursionError, ShapeError) as error:
        raise CannotTellError(
            f"the shape of its model is not known: {error}"
        ) from error


def _device(uuids: list[str], gpus: list[GpuInfo]) -> Device:
    own = [gpu for gpu in gpus if not uuids or gpu.uuid in uuids]
    names = {gpu.name for gpu in own if gpu.name}
    device = device_named(next(iter(names))) if len(names) == 1 else None
    if device is None:
        raise CannotTellError(
            "what the GPUs of its engine can do is not known, and so neither is what "
            "its steps took beyond that"
        )
    return device
