"""A real vLLM profiles some of its steps, and never goes on by itself."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Profile, ProfileState, Step
from collectors.probe.profile_control import ProfileControl, ProfileRefusedError
from collectors.probe.profiling import ProfileAnswer
from embedded_engine.engine.launch import Engine
from tests.embedded_engine.probe.test_truth import Recorded, client_of, until, watching

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("shared engine"),
]
STEPS = 12
ASKED_BY_A_CHILD = """
import asyncio, sys
from collectors.probe.profile_control import ProfileControl
async def main():
    control = await ProfileControl.open(sys.argv[1])
    await control.start(steps=2000, most_s=60)
    print("asked", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@dataclass
class Annotation:
    """A step as the trace has it, in session time."""

    name: str
    begin_ns: int
    end_ns: int


@dataclass
class Taken:
    """A profile, and what is known of its steps."""

    readings: list[Profile]
    steps: list[Step]
    traces: list[Path]
    annotations: list[Annotation] = field(default_factory=list)

    @property
    def ended(self) -> Profile:
        return self.readings[-1]


async def busy(client: httpx.AsyncClient, seconds: float = 60) -> None:
    """Keep some requests running, of which one is always prefilled now and then."""

    async def ask(number: int) -> None:
        body = {
            "model": "tiny-llama",
            "prompt": [300 + number] * (40 + 30 * number),
            "max_tokens": 40,
            "ignore_eos": True,
        }
        while True:
            (await client.post("/v1/completions", json=body)).raise_for_status()

    async with asyncio.timeout(seconds):
        await asyncio.gather(*(ask(number) for number in range(4)))


@asynccontextmanager
async def profiled(
    engine: Engine, *, loaded: bool = True
) -> AsyncIterator[tuple[ProfileControl, Recorded]]:
    """A control of an engine under load, and all that is told of it."""
    async with client_of(engine) as client, watching(engine) as recorded:
        load = asyncio.create_task(busy(client)) if loaded else None
        if loaded:
            await until(lambda: len(recorded.steps) > 3)
        control = await ProfileControl.open(engine.engine_id)
        try:
            yield control, recorded
        finally:
            await control.close()
            if load is not None:
                load.cancel()
                await asyncio.gather(load, return_exceptions=True)
            await off(engine)
            await until(recorded.at_rest)


async def off(engine: Engine) -> ProfileAnswer:
    """Wait until no profile is on, and return what is said of the last."""
    control = await ProfileControl.open(engine.engine_id)
    try:
        while (answers := await control.state())[0].is_on:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
        return answers[0]
    finally:
        await control.close()


def told(recorded: Recorded) -> list[Profile]:
    return [each for each in recorded.readings if isinstance(each, Profile)]


def in_state(recorded: Recorded, *states: ProfileState) -> Callable[[], bool]:
    return lambda: [each.state for each in told(recorded)] == [*states]


STARTED, ENDED = ProfileState.STARTED, ProfileState.ENDED


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def taken(shared_engine: Engine, shared_home: Path) -> AsyncIterator[Taken]:
    from tests.conftest import living_in  # noqa: PLC0415 - not a plugin's

    with living_in(shared_home):
        async with profiled(shared_engine) as (control, recorded):
            await control.start(steps=STEPS)
            await until(in_state(recorded, STARTED, ENDED))
        readings = told(recorded)
        directory = Path(readings[0].directory)
        traces = list(directory.glob(f"{readings[0].prefix}_*.json"))
        made = Taken(readings, recorded.steps, traces)
        offset_ns = readings[-1].realtime_ns - readings[-1].t_ns
        made.annotations = annotations(json.loads(traces[0].read_text()), offset_ns)
        yield made
        for each in directory.glob(f"{readings[0].prefix}*"):
            each.unlink()


def annotations(trace: dict[str, Any], offset_ns: int) -> list[Annotation]:
    found = []
    base_ns = int(trace["baseTimeNanoseconds"])
    for event in trace["traceEvents"]:
        if event.get("cat") == "user_annotation":
            begin_ns = base_ns + round(event["ts"] * 1_000) - offset_ns
            end_ns = begin_ns + round(event["dur"] * 1_000)
            found.append(Annotation(event["name"], begin_ns, end_ns))
    return sorted(found, key=lambda each: each.begin_ns)


async def test_as_many_steps_are_profiled_as_were_asked_for(taken: Taken) -> None:
    begun, ended = taken.readings

    assert (begun.steps_asked, ended.steps, ended.why) == (STEPS, STEPS, None)
    assert begun.by
    assert len(taken.traces) == 1
    assert len(taken.annotations) == STEPS


async def test_each_profiled_step_is_one_of_ours_to_a_millisecond(taken: Taken) -> None:
    lasts = {each.index: each for each in taken.steps}
    for annotation in taken.annotations:
        step = step_of(annotation, lasts.values())
        assert step.start_ns - NS_PER_S // 1_000 < annotation.begin_ns
        assert annotation.end_ns < step.end_ns + NS_PER_S // 1_000
        asked = f"_context_{step.prefill_requests}(sq{step.prefill_tokens}sk"
        assert asked in annotation.name
        assert f"_generation_{step.decode_requests}(sq" in annotation.name


async def test_consecutive_steps_are_profiled(taken: Taken) -> None:
    found = [step_of(each, taken.steps).index for each in taken.annotations]

    assert found == [*range(found[0], found[0] + STEPS)]


def step_of(annotation: Annotation, steps: Any) -> Step:
    middle_ns = (annotation.begin_ns + annotation.end_ns) // 2
    (found,) = [each for each in steps if each.start_ns <= middle_ns <= each.end_ns]
    assert isinstance(found, Step)
    return found


@pytest.mark.usefixtures("in_shared_home")
async def test_who_is_killed_leaves_the_profiler_off(shared_engine: Engine) -> None:
    async with profiled(shared_engine) as (_, recorded):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ASKED_BY_A_CHILD, shared_engine.engine_id),
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdout is not None
        await child.stdout.readline()
        await until(in_state(recorded, STARTED))

        os.kill(child.pid, signal.SIGKILL)
        await child.wait()

        await until(in_state(recorded, STARTED, ENDED))
    ended = told(recorded)[-1]
    assert ended.why == "who asked for it is gone"
    assert 0 < (ended.steps or 0) < 2_000
    assert not (await off(shared_engine)).is_on


@pytest.mark.usefixtures("in_shared_home")
async def test_a_second_profile_is_refused_while_one_is_on(
    shared_engine: Engine,
) -> None:
    async with profiled(shared_engine) as (control, recorded):
        await control.start(steps=2_000)
        await until(in_state(recorded, STARTED))
        other = await ProfileControl.open(shared_engine.engine_id)

        with pytest.raises(ProfileRefusedError, match="a profile is on already"):
            await other.start()

        await other.close()  # it was not its profile
        assert (await control.state())[0].is_on
        await control.stop()
        await until(in_state(recorded, STARTED, ENDED))
        assert told(recorded)[-1].why == "it was stopped"


@pytest.mark.usefixtures("in_shared_home")
async def test_an_idle_engine_ends_a_profile_in_time(shared_engine: Engine) -> None:
    async with profiled(shared_engine, loaded=False) as (control, recorded):
        await control.start(steps=5, most_s=0.5)
        await until(in_state(recorded, STARTED, ENDED))

        ended = told(recorded)[-1]
        assert (ended.steps, ended.why) == (0, "its 0.5 s were over")


@pytest.mark.usefixtures("in_shared_home")
async def test_a_profile_that_others_began_is_not_ours_to_end(
    shared_engine: Engine,
) -> None:
    async with client_of(shared_engine) as client:
        (await client.post("/start_profile")).raise_for_status()
        control = await ProfileControl.open(shared_engine.engine_id)

        with pytest.raises(ProfileRefusedError, match="/start_profile"):
            await control.start()

        (await client.post("/stop_profile")).raise_for_status()
        await control.start(steps=1, most_s=0.1)
        await control.close()
        await off(shared_engine)


@pytest_asyncio.fixture(loop_scope="module")
async def in_shared_home(shared_home: Path) -> AsyncIterator[None]:
    from tests.conftest import living_in  # noqa: PLC0415 - not a plugin's

    with living_in(shared_home):
        yield
