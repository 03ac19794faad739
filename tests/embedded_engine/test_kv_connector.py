"""Tokens that a KV connector brought, as a real vLLM's probe tells them."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from collectors.readings import BlockMap, EventKind, PromptBlocks
from embedded_engine.config import demo_config
from embedded_engine.launch import Engine
from tests.embedded_engine.test_truth import (
    DONE,
    client_of,
    complete,
    running,
    until,
    watching,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("kv connector"),
]

PROMPT = list(range(300, 400))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connected(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """It keeps no prefixes itself, but stores them in files."""
    home = tmp_path_factory.mktemp("connected")
    asked = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(home / "kv")},
    }
    flags = ("--kv-transfer-config", json.dumps(asked), "--no-enable-prefix-caching")
    config = demo_config()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFERWATCH_RUNTIME_DIR", str(home / "run"))
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        async with running(replace(config, flags=(*config.flags, *flags))) as engine:
            yield engine


async def test_what_came_from_elsewhere_is_told_apart(connected: Engine) -> None:
    async with client_of(connected) as client, watching(connected) as recorded:
        await complete(client, PROMPT, 5)
        await complete(client, PROMPT, 300)
        await until(recorded.at_rest)

    scheduled = recorded.events(EventKind.SCHEDULED, DONE).values()
    told = [(e.cached_tokens, e.external_tokens) for e in scheduled]
    assert told == [(0, 0), (96, 96)]
    # Nothing is kept here for reuse, so nobody tells of content; blocks are held.
    assert not [r for r in recorded.readings if isinstance(r, PromptBlocks)]
    maps = [r for r in recorded.readings if isinstance(r, BlockMap)]
    assert any(told.holders for told in maps)
    assert not any(told.cached for told in maps)
