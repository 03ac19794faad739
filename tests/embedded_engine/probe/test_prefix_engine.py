"""Prompts that miss the prefix cache of a real vLLM for a known reason are told it."""

import random
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
import pytest_asyncio

from collectors.contract.readings import BlockMap, PromptBlocks
from embedded_engine.engine.launch import Engine
from inferwatch.metrics.cache.miss_finder import EndedPrompt, MissFinder, PromptMiss
from inferwatch.metrics.cache.misses import MissCause, PrefixMisses
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.sampling import Sampled
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.connections import reading
from inferwatch.record.lookup.recorded_prompts import ended_prompts, prefix_misses
from inferwatch.record.lookup.recorded_sampling import recorded_sampling
from inferwatch.record.writing.recorder import Recorder
from tests.embedded_engine.probe.test_truth import Recorded, measured, until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("shared engine"),
]
BLOCK = 32
"""Tokens of a block of the shared engine, which has 256 blocks."""
END_NS = 1 << 62
SAMPLING = {"max_tokens": 2, "top_p": 0.75, "temperature": 0.5, "ignore_eos": True}
dice = random.Random(33)


def tokens(blocks: float) -> list[int]:
    return dice.choices(range(300, 4_000), k=int(blocks * BLOCK))


SHARED, STAMPED, SALTED, IDLE = tokens(8), tokens(8), tokens(6), tokens(7)
CHANGED = [*SHARED[: 3 * BLOCK], 299, *SHARED[3 * BLOCK + 1 :]]
PLANTED: list[tuple[str, list[int], str | None, MissCause | None]] = [
    ("new", SHARED, None, MissCause.NEW),
    ("again", SHARED, None, None),
    ("block 3", CHANGED, None, MissCause.DIFFERS_LATER),
    ("a time stamp", [298, *STAMPED[1:]], None, MissCause.NEW),
    ("another time stamp", [297, *STAMPED[1:]], None, MissCause.FIRST_DIFFERS),
    ("a salt", SALTED, "a", MissCause.NEW),
    ("another salt", SALTED, "b", MissCause.OTHER_SALT),
    ("too short", SHARED[:BLOCK], None, MissCause.TOO_SHORT),
    ("far too short", SHARED[:5], None, MissCause.TOO_SHORT),
    ("before others", IDLE, None, MissCause.NEW),
    *((f"other {n}", tokens(60), None, MissCause.NEW) for n in range(5)),
    ("evicted", IDLE, None, MissCause.EVICTED),
]
WITH_BLOCKS = sum(len(prompt) >= BLOCK for _, prompt, *_ in PLANTED)
Told = TypeVar("Told")


@dataclass(frozen=True)
class Missed:
    """What was told of the planted prompts, one after another."""

    told: list[PromptBlocks]
    misses: dict[str, PromptMiss]
    recorded: PrefixMisses
    live: PrefixMisses
    sampled: Sampled


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def missed(
    shared_engine: Engine,
    shared_home: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Missed]:
    from tests.conftest import living_in  # noqa: PLC0415 - not a plugin's

    path = tmp_path_factory.mktemp("missed") / "missed.db"
    with living_in(shared_home):
        async with measured(shared_engine) as (client, recorded, _):
            # Blocks are told from the first map on, which comes by itself.
            await until(lambda: bool(of_kind(recorded, BlockMap)))
            for name, prompt, salt, _cause in PLANTED:
                await complete(client, name, prompt, salt)
            await until(lambda: len(of_kind(recorded, PromptBlocks)) == WITH_BLOCKS)
    model = Model()
    with closing(Recorder.open(path, name="missed", floor_bytes=0)) as recorder:
        for ordinal, each in enumerate(recorded.readings):
            recorder.put(ordinal, each)
            model.fold(each)
    with reading(path) as connection:
        prompts = list(ended_prompts(connection, 1, END_NS, sources_of(connection)))
        whole = prefix_misses(connection, 1, END_NS)
        answers = recorded_sampling(connection, 1, END_NS)
    assert whole is not None
    live = model.snapshot(END_NS, SnapshotQuery(Window.SESSION, misses=True))
    assert live.prefix_misses is not None
    told = of_kind(recorded, PromptBlocks)
    yield Missed(told, named(prompts), whole, live.prefix_misses, answers)


def of_kind(recorded: Recorded, kind: type[Told]) -> list[Told]:
    return [each for each in recorded.readings if isinstance(each, kind)]


def sources_of(connection: object) -> dict[int, str]:
    rows = connection.execute("SELECT source, name FROM sources")  # type: ignore[attr-defined]
    return dict(rows.fetchall())


def named(prompts: list[EndedPrompt]) -> dict[str, PromptMiss]:
    finder = MissFinder()
    found = [finder.take(each) for each in prompts]
    return {
        name: miss
        for (name, *_), miss in zip(PLANTED, found, strict=True)
        if miss is not None
    }


async def complete(
    client: httpx.AsyncClient, name: str, prompt: list[int], salt: str | None
) -> None:
    body = {"model": "tiny-llama", "prompt": prompt, **SAMPLING}
    if salt is not None:
        body["cache_salt"] = salt
    headers = {"X-Request-Id": name.replace(" ", "-")}
    response = await client.post("/v1/completions", json=body, headers=headers)
    response.raise_for_status()


async def test_each_planted_prompt_is_told_why_it_missed(missed: Missed) -> None:
    causes = {name: miss.main for name, miss in missed.misses.items()}

    assert causes == {name: cause for name, _, _, cause in PLANTED}


async def test_where_prompts_differ_is_told_by_block(missed: Missed) -> None:
    assert missed.misses["block 3"].differs_at == 3
    assert missed.misses["block 3"].hit_tokens == 3 * BLOCK
    assert missed.misses["block 3"].reordered == 3 * BLOCK  # 4, 5 and 6, not the last
    assert missed.misses["another time stamp"].differs_at == 0


async def test_what_was_evicted_had_been_idle(missed: Missed) -> None:
    miss = missed.misses["evicted"]

    assert miss.unlimited == 6 * BLOCK
    assert miss.idle_ns
    assert min(miss.idle_ns) > 0


async def test_the_live_answer_is_that_of_the_record(missed: Missed) -> None:
    live, recorded = missed.live, missed.recorded

    assert live.total.missed == recorded.total.missed
    assert live.total.hit_tokens == recorded.total.hit_tokens
    assert live.total.reordered_tokens == recorded.total.reordered_tokens
    assert len(live.groups) == len(recorded.groups)


async def test_how_answers_were_sampled_is_told(missed: Missed) -> None:
    (group,) = missed.sampled.groups

    assert group.name == "temp 0.5, top-p 0.75, max 2"
    assert (group.answers, group.cut) == (len(PLANTED), len(PLANTED))
    assert group.output_tokens.max == 2


async def test_what_is_told_tells_no_token(missed: Missed) -> None:
    salts = {each.salt for each in missed.told}

    assert len(salts) == 3  # two, and none
    numbers = {n for each in missed.told for n in (*each.plain, *each.hashes)}
    assert all(number > 1 << 32 for number in numbers)
