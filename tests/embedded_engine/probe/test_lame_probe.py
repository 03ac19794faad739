"""A probe that finds names moved, or breaks, costs the engine nothing but itself."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import dataclass

import platformdirs
import pytest
import pytest_asyncio

from collectors.contract.clock import SessionClock
from collectors.contract.collector import SourceLostError
from collectors.contract.readings import (
    AnyReading,
    EngineInfo,
    EngineSettings,
    EventKind,
    ModelConfig,
    Note,
    NoteKind,
    RequestEvent,
    Stage,
    StartupStage,
    Step,
    WorkerMemory,
)
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.startup import make_tiny_model
from tests.embedded_engine.loaded_vllm import loaded_vllm

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("loaded vLLM"),
]

UNSEEN = "stages of the start cannot be seen"
PROGRAM = "tests.embedded_engine.lame_engine"
DEADLINE_S = 200.0


@dataclass(frozen=True)
class Story:
    """What the engine really did in its two phases, and what its probe told."""

    first: dict[str, int]
    second: dict[str, int]
    readings: list[AnyReading]

    @property
    def notes(self) -> list[str]:
        notes = [r for r in self.readings if isinstance(r, Note)]
        return [note.text for note in notes if note.kind is NoteKind.PROBE]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def story(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Story]:
    home = tmp_path_factory.mktemp("lame")
    model = await make_tiny_model(
        platformdirs.user_cache_path("inferwatch", appauthor=False)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFERWATCH_RUNTIME_DIR", str(home))
        patch.setenv("INFERWATCH_PROBE", "1")
        patch.setenv("INFERWATCH_ENGINE_ID", "lame")
        stream = ProbeStream(SessionClock(), "lame")
        listening = asyncio.create_task(everything(stream))
        with closing(loaded_vllm().run(home / "log", PROGRAM, str(model))) as engine:
            async with asyncio.timeout(DEADLINE_S):
                first = await engine.told()
                engine.go_on()
                second = await engine.told()
                engine.go_on()
                readings = await listening
        await stream.close()
        yield Story(first, second, readings)


async def everything(stream: ProbeStream) -> list[AnyReading]:
    readings: list[AnyReading] = []
    with suppress(SourceLostError):
        async for batch in stream.batches():
            readings += batch
    return readings


async def test_a_moved_name_is_noted_once_and_all_else_goes_on(story: Story) -> None:
    moved = [text for text in story.notes if "has no" in text]
    assert sorted(moved) == [
        f"vLLM 0.32.0 has no ModelRunner.moved_capture: {UNSEEN}",
        "vLLM 0.32.0 has no Scheduler._moved: preemptions cannot be seen",
        "vLLM 0.32.0 has no Scheduler.moved_queue",
    ]

    steps = [r for r in story.readings if isinstance(r, Step)]
    made = sum(step.output_tokens for step in steps)
    assert made == story.first["tokens"] == 24 * 40
    events = [r for r in story.readings if isinstance(r, RequestEvent)]
    ended = [e for e in events if e.kind is EventKind.FINISHED]
    assert [e.output_tokens for e in ended] == [40] * 48  # by engine and front end


async def test_a_broken_hook_ends_the_probe_and_no_request(story: Story) -> None:
    assert story.second["tokens"] == 4 * 10
    assert story.notes[-1].startswith("the probe in core")
    assert story.notes[-1].endswith(
        "switched itself off: Scheduler.schedule: LookupError('out of order')"
    )


async def test_sleep_and_new_weights_are_told(story: Story) -> None:
    states = (NoteKind.ASLEEP, NoteKind.AWAKE, NoteKind.WEIGHTS)
    told = [r for r in story.readings if isinstance(r, Note) and r.kind in states]

    assert [each.text for each in told] == [
        *("asleep, level 0", "awake again", "asleep, level 1"),
        *("weights updated (reload_weights)", "awake again"),
    ]
    assert told[3].duration_ns


async def test_idle_cached_blocks_are_counted_exactly(story: Story) -> None:
    assert story.first["compared"] > 30
    assert story.first["wrong_counts"] == 0


async def test_model_and_cache_are_as_large_as_their_tensors(story: Story) -> None:
    info = next(r for r in story.readings if isinstance(r, EngineInfo))
    tokens = ((info.num_kv_blocks or 0) + 1) * (info.kv_block_tokens or 0)

    assert tokens == 48 * 32
    assert info.weight_bytes == story.first["weights"] > 1_000_000
    assert info.kv_bytes_per_token is not None
    assert info.kv_bytes_per_token * tokens == story.first["caches"]
    assert info.gpus == []  # it runs on the CPU


async def test_an_engine_tells_what_its_model_is_and_what_it_is_set_to(
    story: Story,
) -> None:
    config = next(r for r in story.readings if isinstance(r, ModelConfig))
    shape = json.loads(config.config)
    assert (shape["num_hidden_layers"], shape["hidden_size"]) == (8, 256)
    assert (config.dtype, config.kv_dtype) == ("bfloat16", "bfloat16")
    assert "_name_or_path" not in shape

    settings = next(r for r in story.readings if isinstance(r, EngineSettings)).settings
    assert settings["max_num_seqs"] == 16
    assert settings["max_num_batched_tokens"] == 256
    assert settings["num_gpu_blocks_override"] == 48
    assert settings["enforce_eager"] is True
    assert settings["scheduling_policy"] == "fcfs"

    told = [r for r in story.readings if isinstance(r, StartupStage)]
    assert [each.stage for each in told] == [
        *(Stage.DEVICE, Stage.BUILD, Stage.LOAD_WEIGHTS, Stage.PROCESS),
        *(Stage.PROFILE, Stage.KV, Stage.WARM_UP),
    ]  # without imports: no server, but an application has this engine
    assert {each.worker for each in told} == {0}
    assert all(each.duration_ns >= 0 for each in told)
    ends = [each.t_ns + each.duration_ns for each in told]
    assert all(a <= b.t_ns + 1_000_000 for a, b in zip(ends, told[1:], strict=False))
    by_stage = {each.stage: each for each in told}
    # the checkpoint is float32, and read whole
    assert by_stage[Stage.LOAD_WEIGHTS].n_bytes == story.first["weights"] * 2
    assert by_stage[Stage.KV].n_bytes == story.first["caches"]

    [memory] = [r for r in story.readings if isinstance(r, WorkerMemory)]
    assert memory.weight_bytes == story.first["weights"]
    assert memory.kv_bytes == story.first["caches"]
    assert memory.total_bytes is not None
    assert memory.total_bytes > 1 << 30
    assert memory.allowed_bytes is None  # the size of its cache was given
