"""The block map, rebuilt from what is told, is the pool of a real vLLM."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import platformdirs
import pytest
import pytest_asyncio

from collectors.contract.clock import SessionClock
from collectors.contract.collector import SourceLostError
from collectors.contract.readings import (
    AnyReading,
    BlockMap,
    EngineInfo,
    EventKind,
    Note,
    PromptBlocks,
    RequestEvent,
    Step,
    Vantage,
)
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.startup import make_tiny_model
from inferwatch.metrics.cache.memory import BlockState
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.embedded_engine.loaded_vllm import loaded_vllm

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("loaded vLLM"),
]

PROGRAM = "tests.embedded_engine.mapped_engine"
DEADLINE_S = 200.0


@dataclass
class Rebuilt:
    """A pool as its maps tell it."""

    lists: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    cached: set[int] = field(default_factory=set)
    sequence: int | None = None

    def apply(self, told: BlockMap) -> None:
        assert self.sequence is None or told.sequence == self.sequence + 1
        self.sequence = told.sequence
        if told.whole:
            self.lists, self.cached = {}, set()
        self.cached -= set(told.uncached)
        for gone in told.gone:
            mine = [key for key in self.lists if key[0] == gone]
            assert mine, "it never held any"
            for key in mine:
                del self.lists[key]
        groups = told.groups or [0] * len(told.holders)
        for holder, group, kept, blocks in zip(
            told.holders, groups, told.kept, told.blocks, strict=True
        ):
            before = self.lists.get((holder, group), [])
            assert kept <= len(before)
            self.lists[holder, group] = before[:kept] + blocks
        self.cached |= set(told.cached)

    @property
    def references(self) -> Counter[int]:
        return Counter(block for held in self.lists.values() for block in held if block)


@dataclass(frozen=True)
class Story:
    """What the engine's pool really was like, and what its probe told."""

    kind: str
    truth: dict[str, Any]
    readings: list[AnyReading]
    late: list[AnyReading]
    """What somebody heard who came later."""
    start_ns: int

    def maps(self, readings: Iterable[AnyReading]) -> list[BlockMap]:
        """From the first whole one on: those before tell of what others know."""
        maps = [r for r in readings if isinstance(r, BlockMap)]
        moments = self.truth["moments"]
        first = next(
            at
            for at, told in enumerate(maps)
            if told.whole and str(told.t_ns + self.start_ns) in moments
        )
        assert not any(told.holders for told in maps[:first] if told.whole)
        assert first * 0.02 < 2 * 0.7, "a newcomer waits too long"
        return maps[first:]

    def at(self, told: BlockMap) -> dict[str, Any]:
        moment: dict[str, Any] = self.truth["moments"][str(told.t_ns + self.start_ns)]
        return moment


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["one group", pytest.param("hybrid", marks=pytest.mark.soak)],
)
async def story(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Story]:
    home = tmp_path_factory.mktemp("mapped")
    clock = SessionClock()
    model = await make_tiny_model(
        platformdirs.user_cache_path("inferwatch", appauthor=False)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFERWATCH_RUNTIME_DIR", str(home))
        patch.setenv("INFERWATCH_PROBE", "1")
        patch.setenv("INFERWATCH_ENGINE_ID", "mapped")
        streams = [ProbeStream(clock, "mapped") for _ in range(2)]
        first = asyncio.create_task(
            everything(streams[0], until_map := asyncio.Event())
        )
        program = loaded_vllm().run(home / "log", PROGRAM, str(model), request.param)
        with closing(program) as engine:
            truth = asyncio.create_task(engine.told())
            await asyncio.wait_for(until_map.wait(), DEADLINE_S)
            await asyncio.sleep(1.0)
            second = asyncio.create_task(everything(streams[1], asyncio.Event()))
            found = await asyncio.wait_for(truth, DEADLINE_S)
            await asyncio.sleep(1.0)  # what it told last is on its way
        heard = await asyncio.wait_for(first, DEADLINE_S)
        late = await asyncio.wait_for(second, DEADLINE_S)
        for stream in streams:
            await stream.close()
        yield Story(request.param, found, heard, late, clock.start_ns)


async def everything(stream: ProbeStream, mapped: asyncio.Event) -> list[AnyReading]:
    readings: list[AnyReading] = []
    with suppress(SourceLostError):
        async for batch in stream.batches():
            readings += batch
            if any(isinstance(each, BlockMap) for each in batch):
                mapped.set()
    return readings


async def test_the_map_is_the_pool_at_every_moment(story: Story) -> None:
    rebuilt = Rebuilt()
    compared = shared = 0
    events = [r for r in story.readings if isinstance(r, RequestEvent)]
    names = {e.ordinal: e.request_id for e in events if e.ordinal is not None}

    for told in story.maps(story.readings):
        rebuilt.apply(told)
        truth = story.at(told)
        references = {int(block): n for block, n in truth["references"].items()}
        assert dict(rebuilt.references) == references
        assert rebuilt.cached == set(truth["cached"])
        assert told.num_blocks - 1 - len(rebuilt.references) == truth["free"]
        held = [[names[o], group, ids] for (o, group), ids in rebuilt.lists.items()]
        assert sorted(held) == sorted(truth["held"])
        compared += 1
        shared += any(count > 1 for count in references.values())

    assert compared > 100
    assert shared > 20
    assert story.truth["preempted"] > 5
    assert any(
        told.uncached and not told.cleared for told in story.maps(story.readings)
    )


async def test_layers_that_look_back_a_little_are_told_apart(story: Story) -> None:
    maps = story.maps(story.readings)
    groups = {group for told in maps for group in told.groups}
    given_up = any(0 in blocks for told in maps for blocks in told.blocks)

    assert groups == ({0, 1} if story.kind == "hybrid" else set())
    assert given_up == (story.kind == "hybrid")


async def test_the_first_is_whole_and_so_is_one_now_and_then(story: Story) -> None:
    assert next(r for r in story.readings if isinstance(r, BlockMap)).whole
    for readings in (story.readings, story.late):
        maps = story.maps(readings)
        assert sum(told.whole for told in maps) > 2
        assert sum(told.whole for told in maps) < len(maps) / 3


async def test_who_comes_late_soon_knows_the_same(story: Story) -> None:
    early, late = Rebuilt(), Rebuilt()
    for told in story.maps(story.readings):
        early.apply(told)
    for told in story.maps(story.late):
        late.apply(told)

    assert story.maps(story.late)[0].sequence > 0
    assert late == early
    losses = [r for r in story.late if isinstance(r, Note)]
    assert [note.text for note in losses] == []
    steps = [
        [s.index for s in r if isinstance(s, Step)]
        for r in (story.readings, story.late)
    ]
    assert steps[0] == steps[1]  # the ring lacks maps, and nothing else


async def test_forgetting_on_demand_is_told_as_such(story: Story) -> None:
    (cleared,) = [told for told in story.maps(story.readings) if told.cleared]

    assert cleared.uncached
    assert not story.at(cleared)["cached"]


async def test_at_rest_nobody_holds_anything(story: Story) -> None:
    rebuilt = Rebuilt()
    for told in story.maps(story.readings):
        rebuilt.apply(told)

    assert not rebuilt.references
    assert rebuilt.cached


async def test_each_request_with_a_full_block_tells_what_it_was(story: Story) -> None:
    info = next(r for r in story.readings if isinstance(r, EngineInfo))
    told = {r.ordinal: r for r in story.readings if isinstance(r, PromptBlocks)}
    events = [r for r in story.readings if isinstance(r, RequestEvent)]
    asked = {
        e.ordinal: e.prompt_tokens or 0 for e in events if e.kind is EventKind.ADDED
    }
    made = {
        e.ordinal: e.output_tokens or 0
        for e in events
        if e.kind is EventKind.FINISHED and e.vantage is Vantage.ENGINE
    }
    size = info.kv_block_tokens or 0
    begun = {e.ordinal for e in events if e.kind is EventKind.SCHEDULED}
    full = {o: (asked[o] // size, (asked[o] + made[o]) // size) for o in begun}

    assert begun < made.keys()  # some were given up before they began

    assert {o: (r.prompt_blocks, r.total_blocks) for o, r in told.items()} == {
        ordinal: blocks for ordinal, blocks in full.items() if blocks[1]
    }
    assert all(len(r.hashes) == r.total_blocks and not r.places for r in told.values())
    begins = Counter(r.hashes[0] for r in told.values() if r.prompt_blocks > 3)
    assert max(begins.values()) > 20  # the prefix that half of them share
    assert {r.block_tokens for r in told.values()} == {size}


def moment_of(reading: AnyReading) -> int:
    """A map is told some time after the steps that were done when it was taken."""
    t_ns = reading.end_ns if isinstance(reading, Step) else getattr(reading, "t_ns", 0)
    return int(t_ns) + isinstance(reading, BlockMap)


async def test_the_model_draws_that_pool(story: Story) -> None:
    model, compared, held_tokens = Model(), 0, 0
    began = id(story.maps(story.readings)[0])
    drawn = False
    for reading in sorted(story.readings, key=moment_of):
        model.fold(reading)
        drawn |= id(reading) == began
        if not drawn or not isinstance(reading, BlockMap):
            continue
        shown = model.snapshot(reading.t_ns, SnapshotQuery(Window.MINUTE))
        (picture,), truth = shown.block_maps, story.at(reading)
        references = {int(block): n for block, n in truth["references"].items()}
        told = {block: n for block, n in enumerate(picture.references) if n}
        assert told == references
        idle = {b for b, s in enumerate(picture.states) if s == BlockState.CACHED}
        assert idle == set(truth["cached"]) - references.keys()
        assert picture.counts[0] + picture.counts[1] == truth["free"]
        held: dict[str, list[int]] = {}
        for name, _, blocks in sorted(truth["held"]):
            held.setdefault(name, []).extend(filter(None, blocks))
        assert sorted(map(list, picture.held)) == sorted(held.values())
        memory = shown.memory
        assert memory is not None
        assert memory.shared_blocks == sum(n > 1 for n in references.values())
        size = shown.kv.block_tokens or 1
        for holder in memory.holders:
            if holder.tokens is not None and story.kind != "hybrid":
                needed = -(-holder.tokens // size)
                assert needed <= holder.blocks <= needed + 1, holder
                held_tokens += 1
        compared += 1
    assert compared > 100
    assert held_tokens > 500 or story.kind == "hybrid"


async def test_reuse_distances_tell_what_the_engine_hit(story: Story) -> None:
    model = Model()
    for reading in story.readings:
        model.fold(reading)

    memory = model.snapshot(
        story.maps(story.readings)[-1].t_ns, SnapshotQuery(Window.SESSION)
    ).memory

    assert memory is not None
    assert memory.hit_rate
    rates = [point.hit_rate for point in memory.hit_curve]
    if story.kind != "hybrid":  # there each layer has blocks of its own
        assert rates[0] == pytest.approx(memory.hit_rate, abs=0.1)
    assert rates == sorted(rates)
