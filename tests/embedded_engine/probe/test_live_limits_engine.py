"""Limits turned on a real vLLM: nothing is preempted, starved or left behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import pytest_asyncio

from collectors.contract.clock import SessionClock
from collectors.contract.collector import SourceLostError
from collectors.contract.readings import AnyReading, LiveLimits, Note, NoteKind, Step
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.startup import make_tiny_model
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.embedded_engine.loaded_vllm import loaded_vllm

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("loaded vLLM"),
]

PROGRAM = "tests.embedded_engine.limited_engine"
DEADLINE_S = 270.0


class Story:
    """What the engine did in each phase, and what its probe told."""

    def __init__(self, changes: int) -> None:
        self.changes = changes
        self.phases: list[dict[str, Any]] = []
        self.restarted: dict[str, Any] = {}
        """The first phase of another engine, which was started with that limit."""
        self.readings: list[AnyReading] = []
        self.left: list[str] = []
        """Files of sockets, once it was gone."""

    @property
    def limits(self) -> list[LiveLimits]:
        return [each for each in self.readings if isinstance(each, LiveLimits)]


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[100, pytest.param(1_000, marks=pytest.mark.soak)],
    ids=["a hundred changes", "a thousand changes"],
)
async def story(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Story]:
    home = tmp_path_factory.mktemp("limited")
    made = Story(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFERWATCH_RUNTIME_DIR", str(home))
        patch.setenv("INFERWATCH_PROBE", "1")
        patch.setenv("INFERWATCH_CONTROL", "1")
        stream = ProbeStream(SessionClock(), "limited")
        listening = asyncio.create_task(hear(stream, made.readings))
        try:
            made.phases = await run(home / "log", "limited", made.changes)
            await asyncio.wait_for(listening, DEADLINE_S)
            [made.restarted] = await run(home / "log", "restarted", 0)
        finally:
            listening.cancel()
            await stream.close()
        made.left = [path.name for path in home.glob("*.ctl")]
        yield made


async def run(log_path: Path, name: str, changes: int) -> list[dict[str, Any]]:
    """The program, to its end."""
    cache = platformdirs.user_cache_path("inferwatch", appauthor=False)
    model = await make_tiny_model(cache)
    asked = (str(model), name, str(changes))
    named = {"INFERWATCH_ENGINE_ID": name}
    with closing(loaded_vllm().run(log_path, PROGRAM, *asked, **named)) as engine:
        async with asyncio.timeout(DEADLINE_S):
            phases = await engine.all_told()
        assert len(phases) == (1 if name == "restarted" else 5), engine.log()
    return phases


async def hear(stream: ProbeStream, readings: list[AnyReading]) -> None:
    with suppress(SourceLostError):
        async for batch in stream.batches():
            readings += batch


async def test_a_live_cap_makes_the_very_steps_of_an_engine_started_with_it(
    story: Story,
) -> None:
    live, restarted = story.phases[0], story.restarted

    assert max(map(len, live["steps"])) == 8
    assert len(live["steps"]) > 100
    assert live["steps"] == restarted["steps"]
    assert live["outputs"] == restarted["outputs"]


async def test_a_lowered_cap_preempts_nothing_and_drains(story: Story) -> None:
    drain = story.phases[1]
    running: list[int] = drain["running"]
    first = running.index(8)

    assert drain["preempted"] == 0
    assert running[0] == 32
    assert all(one >= two for one, two in pairwise(running[:first]))
    assert max(running[first:]) == 8
    assert running.count(8) > 50


async def test_a_budget_of_one_token_starves_nobody_that_runs(story: Story) -> None:
    starve = story.phases[2]

    assert starve["tokens"] == [20] * 32  # each of 20 steps had one for each
    assert starve["budget"] == 32


async def test_changes_at_any_time_fail_nothing_and_change_no_answer(
    story: Story,
) -> None:
    shake = story.phases[3]

    assert shake["changes"] >= story.changes
    assert shake["refused"] == []
    assert shake["steps"] >= 0.9 * story.changes
    assert shake["distinct"] > 40  # so a difference would be seen
    assert shake["different"] == 0


async def test_a_probe_that_blows_leaves_the_start_up_values(story: Story) -> None:
    assert story.phases[4] == {
        "before": 4,
        "after": [32, 512],
        "refused": "the probe switched itself off: for a test",
    }
    assert story.limits[-1].by == "the probe"
    assert not story.limits[-1].in_force


async def test_limits_are_told_in_order_with_the_steps_that_go_by_them(
    story: Story,
) -> None:
    assert story.limits[0].change == "start"
    versions = [each.version for each in story.limits]
    assert versions == sorted(versions)
    assert len(versions) > 0.9 * story.changes

    now = story.limits[0]
    previous, checked = 0, 0
    for reading in story.readings:
        if isinstance(reading, LiveLimits):
            now = reading
        elif isinstance(reading, Step):
            assert reading.start_ns >= now.t_ns
            assert reading.running <= max(now.max_num_seqs, previous)
            tokens = reading.prefill_tokens + reading.decode_tokens
            assert tokens <= max(now.max_num_batched_tokens, previous, 1)
            previous = reading.running
            checked += now.in_force
    assert checked > story.changes / 2


async def test_what_is_shown_follows_the_limits(story: Story) -> None:
    model, looked = Model(), 0
    for number, reading in enumerate(story.readings):
        model.fold(reading)
        if not isinstance(reading, LiveLimits) or number % 50 == 0:
            continue
        shown = model.snapshot(
            reading.t_ns, SnapshotQuery(Window.TEN_SECONDS, requests=False)
        )
        (engine,), looked = shown.engines, looked + 1
        assert engine.max_num_seqs == reading.max_num_seqs
        assert engine.max_num_batched_tokens == reading.max_num_batched_tokens
        assert shown.settings["max_num_seqs"] == reading.max_num_seqs
        assert shown.live_limits == (reading,)
        assert (shown.flow.budget_usage or 0) <= 1
    assert looked > story.changes / 2


async def test_what_binds_follows_the_limits(story: Story) -> None:
    drained = [each.version for each in story.limits].index(3)
    seqs, end = story.limits[drained], story.limits[drained + 1].t_ns
    assert seqs.max_num_seqs == 8
    steps = [each for each in story.readings if isinstance(each, Step)]
    lowered = [each for each in steps if seqs.t_ns <= each.start_ns < end]

    assert {str(each.bound_by) for each in lowered if each.waiting} == {"seqs"}


async def test_nothing_was_noted_but_the_end_and_no_socket_is_left(
    story: Story,
) -> None:
    notes = [each for each in story.readings if isinstance(each, Note)]
    told = [each.text for each in notes if each.kind is NoteKind.PROBE]

    assert [text.endswith("off: for a test") for text in told] == [True]
    assert story.left == []
