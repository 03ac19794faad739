"""Real vLLM profiled: its operators make up our steps, and a planted one is found."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from collectors.contract.readings import ProfileState, Step
from collectors.probe.profile_control import ProfileControl
from embedded_engine.engine.config import demo_config
from embedded_engine.engine.launch import Engine
from inferwatch.profiles.facts import FactKind, facts_of
from inferwatch.profiles.reading import read_profile
from inferwatch.profiles.report import (
    KernelClass,
    ProfileReport,
    RankProfile,
    ReportJob,
    StepPhase,
)
from inferwatch.record.profiles.shelf import spans_of
from tests.conftest import living_in
from tests.embedded_engine.probe.test_profiler_engine import busy, in_state, told
from tests.embedded_engine.probe.test_truth import client_of, until, watching

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]
ROOT = Path(__file__).parents[2]
SLEEPY = Path(__file__).parent / "sleepy"
STEPS = 15
SLEPT_NS = 4_000_000
"""Of each planted operator, at least."""
NORMS = 17
"""Two in each of eight layers, and the last."""


@dataclass
class Profiled:
    """A report, and the steps that were told of."""

    report: ProfileReport
    steps: dict[int, Step]

    @property
    def rank(self) -> RankProfile:
        (rank,) = self.report.ranks
        return rank


async def profiled(engine: Engine) -> Profiled:
    """Profile an engine under load, and read what it wrote."""
    async with client_of(engine) as client, watching(engine) as recorded:
        load = asyncio.create_task(busy(client))
        await until(lambda: len(recorded.steps) > 3)
        control = await ProfileControl.open(engine.engine_id)
        await control.start(steps=STEPS)
        await until(in_state(recorded, ProfileState.STARTED, ProfileState.ENDED))
        await control.close()
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        await until(recorded.at_rest)
    ended = told(recorded)[-1]
    traces = list(Path(ended.directory).glob(f"{ended.prefix}_*.json"))
    job = ReportJob(
        files=[str(each) for each in traces],
        realtime_offset_ns=ended.realtime_ns - ended.t_ns,
        steps=spans_of(recorded.steps),
    )
    report = await read_profile(job)
    for each in Path(ended.directory).glob(f"{ended.prefix}*"):
        each.unlink()
    return Profiled(report, {each.index: each for each in recorded.steps})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(shared_engine: Engine, shared_home: Path) -> AsyncIterator[Profiled]:
    with living_in(shared_home):
        yield await profiled(shared_engine)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sleepy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Profiled]:
    """An engine whose norms sleep, and whose traces have stacks of Python."""
    config = demo_config()
    env = {**config.env, "PYTHONPATH": f"{ROOT}:{SLEEPY}"}
    flags = (*config.flags, "--profiler-config.torch_profiler_with_stack=true")
    with living_in(tmp_path_factory.mktemp("home")):
        engine = await Engine.start(
            replace(config, env=env, flags=flags), lambda _: None
        )
        try:
            yield await profiled(engine)
        finally:
            await engine.stop()


@pytest.mark.xdist_group("shared engine")
async def test_every_profiled_step_is_one_the_engine_told(plain: Profiled) -> None:
    assert plain.report.problems == []
    assert len(plain.rank.steps) == STEPS
    for each in plain.rank.steps:
        assert each.index is not None
        step = plain.steps[each.index]
        assert each.duration_ns == step.duration_ns
        assert (each.prefill_tokens, each.decode_tokens) == (
            step.prefill_tokens,
            step.decode_tokens,
        )


@pytest.mark.xdist_group("shared engine")
async def test_trace_and_steps_are_aligned_to_a_millisecond(plain: Profiled) -> None:
    assert plain.rank.alignment_ns is not None
    assert plain.rank.alignment_ns < 1_000_000


@pytest.mark.xdist_group("shared engine")
async def test_operators_and_host_make_up_each_step(plain: Profiled) -> None:
    for each in plain.rank.steps:
        assert sum(each.times_ns.values()) + each.host_ns == each.duration_ns
        assert each.host_ns > 0  # operators do not stick out of it
        assert each.times_ns[KernelClass.GEMM] > 0
        assert each.times_ns[KernelClass.ATTENTION] > 0
        assert each.times_ns[KernelClass.KV_WRITE] > 0
        assert each.times_ns[KernelClass.SAMPLING] > 0


@pytest.mark.xdist_group("sleepy")
async def test_a_planted_operator_is_named_as_what_is_far_off(sleepy: Profiled) -> None:
    for times in sleepy.rank.phases:
        assert times.farthest is KernelClass.NORM
    largest = sleepy.rank.kernels[0]
    assert largest.name == "sleepy::rms_norm"
    assert largest.count == STEPS * NORMS
    assert largest.shortest_ns >= SLEPT_NS
    far = facts_of(sleepy.report)[0]
    assert (far.kind, far.phase) in {
        (FactKind.FAR_OFF, phase) for phase in (StepPhase.DECODE, StepPhase.PREFILL)
    }
    assert "norm, activation" in far.sentence


@pytest.mark.xdist_group("sleepy")
async def test_with_stacks_gaps_are_named_by_what_python_did(sleepy: Profiled) -> None:
    assert any(
        each.doing.startswith("vllm/v1/") and ".py(" in each.doing
        for each in sleepy.rank.gaps
    )
