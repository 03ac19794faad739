"""Adapters, priorities, a KV connector and held prompts, as told by a real probe."""

import asyncio
import json
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import platformdirs
import pytest

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.collector import SourceLostError
from collectors.contract.readings import (
    BlockMap,
    BoundBy,
    Deferral,
    EventKind,
    Note,
    NoteKind,
    PromptBlocks,
    Step,
)
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.startup import make_tiny_model
from embedded_engine.probe_settings import ProbeSettings
from inferwatch.metrics.causes.cause import Cause
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.embedded_engine.kinds_engine import (
    ADAPTERS,
    COMPILES_S,
    EVERY,
    FETCHED_S,
)
from tests.embedded_engine.loaded_vllm import loaded_vllm
from tests.embedded_engine.probe.test_truth import DONE, SEEN, Recorded

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("loaded vLLM")]

PROGRAM = "tests.embedded_engine.kinds_engine"
DEADLINE_S = 120.0


async def recorded_of(
    kind: str, home: Path, settings: ProbeSettings | None = None
) -> Recorded:
    """All that its probe told, to its end."""
    model = await make_tiny_model(
        platformdirs.user_cache_path("inferwatch", appauthor=False)
    )
    probed = {"INFERWATCH_PROBE": "1", "INFERWATCH_ENGINE_ID": kind}
    probed["INFERWATCH_RUNTIME_DIR"] = str(home)
    stream = ProbeStream(SessionClock(), kind)
    recorded = Recorded(stream)
    listening = asyncio.create_task(hear(recorded))
    asked = (str(model), kind, str(home))
    chosen = (settings or ProbeSettings()).environment
    with closing(
        loaded_vllm().run(home / "log", PROGRAM, *asked, **probed, **chosen)
    ) as engine:
        async with asyncio.timeout(DEADLINE_S):
            await engine.told()
            while not recorded.at_rest():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
    await asyncio.wait_for(listening, DEADLINE_S)
    await stream.close()
    return recorded


async def hear(recorded: Recorded) -> None:
    with suppress(SourceLostError):
        async for batch in recorded.stream.batches():
            recorded.readings += batch


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))
    return tmp_path


async def test_adapter_and_priority_are_told_and_who_lacks_a_slot_is_deferred(
    home: Path,
) -> None:
    recorded = await recorded_of("adapters", home, ProbeSettings(block_map=False))

    added = recorded.events(EventKind.ADDED, DONE).values()
    told = Counter((event.lora, event.priority) for event in added)
    expected = [(name, priority) for name in ADAPTERS for priority in (0, 3)]
    assert told == Counter([*expected, (None, 0)])
    waited = [step for step in recorded.steps if step.waiting]
    told_of = {(step.bound_by, step.deferred_by) for step in waited}
    assert told_of == {(BoundBy.DEFERRED, Deferral.ADAPTER)}
    assert {step.deferred for step in waited} == {step.waiting for step in waited}
    assert len(waited) > 20
    assert {event.external_tokens for event in added} == {None}

    at_ns, model = waited[5].end_ns, Model()
    for reading in recorded.readings:
        if getattr(reading, "t_ns", getattr(reading, "end_ns", 0)) <= at_ns:
            model.fold(reading)
    flow = model.snapshot(at_ns, SnapshotQuery(Window.SESSION)).flow
    assert (flow.adapters, flow.adapters_waiting) == (1, 1)

    # Nobody asked for block maps, so the pool is left alone.
    span_ns = recorded.steps[-1].end_ns - recorded.steps[0].start_ns
    assert span_ns > NS_PER_S / 4  # many maps would have come
    kinds_of_readings = {type(reading) for reading in recorded.readings}
    assert Step in kinds_of_readings
    assert not kinds_of_readings & {BlockMap, PromptBlocks}


@pytest.mark.soak
async def test_what_a_kv_connector_brought_is_told_apart(home: Path) -> None:
    recorded = await recorded_of("connector", home)

    scheduled = recorded.events(EventKind.SCHEDULED, DONE).values()
    told = [(e.cached_tokens, e.external_tokens) for e in scheduled]
    assert told == [(0, 0), (96, 96)]
    waited = [step.deferred_before for step in recorded.steps if step.prefill_requests]
    assert waited == [None, Deferral.TRANSFER]
    # Nothing is kept here for reuse, so nobody tells of content; blocks are held.
    assert not [r for r in recorded.readings if isinstance(r, PromptBlocks)]
    maps = [r for r in recorded.readings if isinstance(r, BlockMap)]
    assert any(told.holders for told in maps)
    assert not any(told.cached for told in maps)


@pytest.mark.soak
async def test_prompts_that_are_held_are_told_though_there_is_room(home: Path) -> None:
    recorded = await recorded_of("held", home)

    held = [step for step in recorded.steps if step.deferred_by is not None]
    assert {step.deferred_by for step in held} == {Deferral.HELD}
    assert not any(step.prefill_tokens for step in held)
    waited = [step for step in recorded.steps if step.waiting]
    assert waited
    assert {(step.bound_by, step.deferred_by) for step in waited} == {
        (BoundBy.DEFERRED, Deferral.HELD)
    }
    # The budget cuts the last prompt, whose rest is held with nobody in the queue.
    began = [step for step in held if not step.waiting]
    assert len(began) == EVERY - 1
    assert {step.bound_by for step in began} == {BoundBy.NOTHING}

    model = Model()
    for reading in recorded.readings:
        model.fold(reading)
    now_ns = recorded.steps[-1].end_ns + 1
    parts = model.snapshot(now_ns, SnapshotQuery(Window.SESSION)).steps
    assert set(parts.share_by_deferral) == {Deferral.HELD}


async def test_thinking_is_counted_where_a_request_ends(home: Path) -> None:
    recorded = await recorded_of("thinking", home)

    outputs = json.loads((home / "outputs").read_text("utf-8"))
    ended = outputs["thinks"].index(True) + 1
    told = recorded.events(EventKind.FINISHED, DONE).values()
    thinking = {
        each.request_id.rpartition("-")[0]: each.thinking_tokens for each in told
    }
    assert thinking == {"thinks": ended, "ends not": None}
    assert 0 < ended < 30


async def test_a_renderer_tells_when_images_were_fetched_and_preprocessed(
    home: Path,
) -> None:
    model = await make_tiny_model(
        platformdirs.user_cache_path("inferwatch", appauthor=False)
    )
    asked = (str(model), "rendered", str(home))
    with closing(
        loaded_vllm().run(home / "log", PROGRAM, *asked, INFERWATCH_PROBE="1")
    ) as program:
        async with asyncio.timeout(DEADLINE_S):
            told = await program.told()

    took_s = []
    for name, cached in (("fetched", 0), ("again", 1)):
        each = told[name]
        assert (each["items"], each["cached"]) == (1, cached)
        (asked_ns, came_ns), preprocessed = each["fetched"], each["preprocessed"]
        moments = [each["arrived"], asked_ns, came_ns, *preprocessed, each["rendered"]]
        assert moments == sorted(moments)
        took_s.append((came_ns - asked_ns) / NS_PER_S)
    assert took_s[1] < FETCHED_S < took_s[0] < 2


@pytest.mark.soak
async def test_images_are_fetched_and_preprocessed_before_their_request_is_queued(
    home: Path,
) -> None:
    recorded = await recorded_of("images", home)

    came = recorded.events(EventKind.ARRIVED, SEEN)
    told = {each.request_id.rpartition("-")[0]: each for each in came.values()}
    text, fetched, again = (told[name] for name in ("text", "fetched", "again"))
    assert (text.media_items, text.fetch_start_ns) == (None, None)
    assert (fetched.media_items, fetched.media_cached) == (1, 0)
    assert (again.media_items, again.media_cached) == (1, 1)
    took_s = []
    for each in (fetched, again):
        moments = (
            *(each.t_ns, each.fetch_start_ns, each.fetch_end_ns),
            *(each.preprocess_start_ns, each.preprocess_end_ns, each.tokenised_ns),
        )
        known = [moment for moment in moments if moment is not None]
        assert len(known) == len(moments)
        assert known == sorted(known)
        took_s.append((known[2] - known[1]) / NS_PER_S)
    assert took_s[1] < FETCHED_S < took_s[0] < 2


async def test_what_is_compiled_while_serving_makes_its_tokens_late(
    home: Path,
) -> None:
    recorded = await recorded_of("compiling", home)

    (note,) = [
        each
        for each in recorded.readings
        if isinstance(each, Note) and each.kind is NoteKind.COMPILATION
    ]
    assert note.text.startswith("compiled while serving: torch.compile ")
    assert note.duration_ns is not None
    assert note.duration_ns > COMPILES_S * NS_PER_S
    (slow,) = [each for each in recorded.steps if each.duration_ns > note.duration_ns]
    assert slow.start_ns < note.t_ns < note.t_ns + note.duration_ns < slow.end_ns

    model = Model()
    for reading in recorded.readings:
        model.fold(reading)
    now_ns = recorded.steps[-1].end_ns + 1
    shown = model.snapshot(now_ns, SnapshotQuery(Window.SESSION, requests=True))
    assert {each.itl_cause for each in shown.requests} == {Cause.COMPILATION}
