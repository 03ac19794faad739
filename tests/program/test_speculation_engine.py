"""Drafts of real vLLM are counted to the token, by its probe and by its metrics."""

import asyncio
import json
import random
import re
from pathlib import Path

import httpx
import pytest

from collectors.contract.readings import EngineInfo, EngineSample, EngineSettings, Step
from collectors.http.server import Server
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.steps.speculation import METHOD, Speculation
from tests.program.test_attach_truth_engine import (
    API_SERVER,
    PROBED,
    SCRAPED,
    Kinds,
    Watched,
    attached,
    machine,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("attach truth"),
]

TOKENS = 4
NGRAM = {"method": "ngram", "num_speculative_tokens": TOKENS, "prompt_lookup_max": 4}
BY_PROBE: Kinds = (EngineInfo, EngineSettings, Step)
NAMES = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
DRAFTS = "spec_decode_num_drafts"


def counted(page: str) -> tuple[list[int], list[int]]:
    """What the server says it drafted and accepted, and accepted by position."""

    def count(name: str, labels: str = "") -> int:
        pattern = rf"^vllm:spec_decode_{name}_total\{{[^}}]*{labels}[^}}]*\}} (\S+)$"
        (number,) = re.findall(pattern, page, re.MULTILINE)
        return round(float(number))

    by_position = [
        count("num_accepted_tokens_per_pos", f'position="{place}"')
        for place in range(TOKENS)
    ]
    return [count(name) for name in NAMES], by_position


def settings(watched: Watched) -> list[EngineSettings]:
    """What is told of them; a scrape knows fewer than the probe."""
    return watched.of(PROBED, EngineSettings)


def told(watched: Watched, kinds: Kinds) -> Speculation:
    """What would be shown if nothing else had been heard."""
    model = Model()
    for reading in watched.of(PROBED, *kinds):
        model.fold(reading)
    now_ns = watched.session.clock.now_ns()
    shown = model.snapshot(now_ns, SnapshotQuery(Window.SESSION)).speculation
    assert shown is not None
    return shown


async def asked(url: str) -> str:
    """The server's metrics after prompts that promise to go on as they began.

    An answer that repeats itself is drafted well; others are not, nor is its beginning.
    """
    chance = random.Random(5)
    async with httpx.AsyncClient(trust_env=False, timeout=120, base_url=url) as client:
        async with asyncio.TaskGroup() as tasks:
            for number in range(12):
                body = {
                    "model": "tiny",
                    "prompt": chance.choices(range(300, 900), k=8) * 12,
                    "max_tokens": 60,
                    "ignore_eos": True,
                    "temperature": 0.3 * (number % 3),
                    "seed": number,
                }
                tasks.create_task(client.post("/v1/completions", json=body))
        return (await client.get("/metrics")).text


async def test_drafts_are_those_that_vllm_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    config = json.dumps(NGRAM).replace("{", "{{").replace("}", "}}")
    engine = await machine(
        *(tmp_path, PROBED, *API_SERVER, "--speculative-config", config),
        VLLM_PLUGINS="inferwatch",
        INFERWATCH_PROBE="1",
        INFERWATCH_RUNTIME_DIR=str(tmp_path / "run"),
    )
    engine.start()
    try:
        await engine.up()
        async with attached([Server(url=engine.url, name=PROBED)], None) as watched:
            await watched.until(
                lambda: bool(
                    watched.of(PROBED, EngineSample)
                    and any(METHOD in s.settings for s in settings(watched))
                ),
                "it is watched in both ways",
            )
            before = told(watched, BY_PROBE), told(watched, SCRAPED)
            page = await asked(engine.url)
            (drafts, drafted, accepted), by_position = counted(page)
            await watched.until(
                lambda: (
                    watched.of(PROBED, EngineSample)[-1].others[DRAFTS] == drafts
                    and sum(s.drafts or 0 for s in watched.of(PROBED, Step)) >= drafts
                ),
                "all was told",
            )
            views = told(watched, BY_PROBE), told(watched, SCRAPED)
    finally:
        engine.kill()

    assert all(each.drafted_tokens in {0, None} for each in before)  # and yet it is on
    assert drafted > accepted > 0
    for view in views:
        assert view.drafts == drafts
        assert view.drafted_tokens == drafted
        assert view.accepted_tokens == accepted
        assert view.accepted_by_position == tuple(by_position)
        assert view.acceptance_length == pytest.approx(1 + accepted / drafts)
    assert [each.vantage for each in views] == ["engine", "scrape"]
    assert (views[0].method, views[0].num_speculative_tokens) == ("ngram", TOKENS)
