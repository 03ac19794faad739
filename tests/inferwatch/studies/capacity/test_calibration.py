"""What recorded steps took beyond their floors, and how far that reaches."""

import json
from dataclasses import replace
from random import Random

import pytest

from collectors.contract.readings import AnyReading, GpuInfo, ModelConfig
from inferwatch.limits.presets import PRESETS
from inferwatch.studies.capacity.calibration import calibration_of
from inferwatch.studies.capacity.search import bound_for
from inferwatch.studies.capacity.steps import Claim, StepPace
from inferwatch.studies.what_if.heard import CannotTellError
from inferwatch.studies.what_if.scheduler import StepLoad
from tests.inferwatch.studies.capacity.setups import goal, option, workload
from tests.inferwatch.studies.what_if.scripted_engine import Job, ScriptedEngine

MS = 1_000_000
LOAD = workload(300, 40)


def recorded(model: str = "llama-3-8b", gpu: str | None = "H100") -> list[AnyReading]:
    """Steps of 20 ms, 0.5 ms a request, 20 µs a token of a prompt; gaps of 0.2 ms."""
    random, at_ns, jobs = Random(1), 0, list[Job]()
    for n in range(300):
        at_ns += int(random.expovariate(1 / (40 * MS)))
        jobs.append(Job(n, at_ns, random.randint(100, 400), random.randint(10, 60)))
    readings = ScriptedEngine(base_ns=20 * MS).serve(jobs)
    config = json.dumps(PRESETS[model])
    readings.append(ModelConfig(source="e", t_ns=0, model=model, config=config))
    if gpu is not None:
        readings.append(GpuInfo(source="g", t_ns=0, name=gpu, uuid="g"))
    return readings


def test_on_the_same_set_up_steps_take_what_was_recorded() -> None:
    calibration = calibration_of(recorded(), "s1", LOAD)
    found = option(load=LOAD, pace=StepPace(overhead=calibration))

    assert calibration.is_of(found.plan.shape, found.plan.machine)
    assert found.claim is Claim.CALIBRATED
    step_s = found.times.step_s(StepLoad(decoding=10, context_tokens=3_000))
    assert step_s == pytest.approx(20.2e-3 + 10 * 0.5e-3, rel=0.05)
    load = StepLoad(decoding=10, context_tokens=3_000)
    gap_s = step_s - calibration.cost.expected_ns(load) / 1e9
    assert gap_s == pytest.approx(0.2e-3, rel=0.05)


def test_on_another_gpu_only_the_overhead_is_taken() -> None:
    calibration = calibration_of(recorded(), "s1", LOAD)
    here = option(load=LOAD, pace=StepPace(overhead=calibration))
    there = option(gpu="A100", load=LOAD, pace=StepPace(overhead=calibration))
    load = StepLoad(decoding=10, context_tokens=3_000)

    assert not calibration.is_of(there.plan.shape, there.plan.machine)
    floors = [option(gpu=gpu, load=LOAD).times.step_s(load) for gpu in ("H100", "A100")]
    assert there.times.step_s(load) - here.times.step_s(load) == pytest.approx(
        floors[1] - floors[0]
    )


def test_batches_are_no_larger_than_twice_what_was_seen() -> None:
    calibration = calibration_of(recorded(), "s1", LOAD)
    found = option(load=LOAD, pace=StepPace(overhead=calibration))

    wide = bound_for(found, goal("tpot_s<10"))
    assert wide.limits.holding > calibration.seen[0]
    answer = bound_for(
        replace(found, seen=calibration.seen),
        goal("tpot_s<10"),
    )
    assert answer.limits.holding == calibration.seen[0]
    assert answer.binds == "batch seen"


@pytest.mark.parametrize("gpu", [None, "a GPU nobody knows"])
def test_a_recording_without_a_known_gpu_is_refused(gpu: str | None) -> None:
    with pytest.raises(CannotTellError, match="GPUs of its engine"):
        calibration_of(recorded(gpu=gpu), "s1", LOAD)


def test_a_full_batch_leaves_room_for_the_prompts_that_come() -> None:
    """Else prompts get a token a step, and no number of replicas is enough."""
    calibration = calibration_of(recorded(), "s1", LOAD)
    found = option(
        "llama-3-70b", "A100", (2, 1), load=LOAD, pace=StepPace(overhead=calibration)
    )
    answer = bound_for(replace(found, seen=calibration.seen), goal("tpot_s<60ms"))

    assert answer.setting is not None
    seqs = answer.setting.max_num_seqs
    assert answer.setting.max_num_batched_tokens >= seqs + seqs * 300 / 39
