"""What sets requests apart, as a real vLLM's probe tells it: adapter, priority, header.

The server has one LoRA slot and two adapters, so that requests wait for it.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import platformdirs
import pytest
import pytest_asyncio

from collectors.clock import NS_PER_S
from collectors.readings import (
    BlockMap,
    BoundBy,
    EventKind,
    Note,
    NoteKind,
    PromptBlocks,
    RequestEvent,
    Step,
)
from embedded_engine.config import demo_config
from embedded_engine.launch import Engine
from embedded_engine.probe_settings import LONGEST_VALUE, ProbeSettings
from embedded_engine.startup import make_tiny_model
from tests.embedded_engine.test_truth import (
    DONE,
    SEEN,
    Recorded,
    client_of,
    running,
    until,
    watching,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("request kinds"),
]

ADAPTERS = ("poet", "lawyer")
TENANT = "X-Tenant"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kinds(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    home = tmp_path_factory.mktemp("kinds")
    cache = platformdirs.user_cache_path("inferwatch", appauthor=False)
    model = await make_tiny_model(cache)
    adapters = [f"{name}={adapter(home / name, Path(model))}" for name in ADAPTERS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFERWATCH_RUNTIME_DIR", str(home / "run"))
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        config = demo_config(ProbeSettings(group_header=TENANT, block_map=False))
        flags = (
            *("--enable-lora", "--max-loras=1", "--max-lora-rank=8"),
            *("--lora-modules", *adapters, "--scheduling-policy=priority"),
        )
        async with running(replace(config, flags=(*config.flags, *flags))) as engine:
            yield engine


def adapter(directory: Path, model: Path) -> Path:
    """A LoRA adapter that changes nothing."""
    import torch  # noqa: PLC0415 - heavy
    from safetensors.torch import save_file  # noqa: PLC0415

    config = json.loads((model / "config.json").read_text("utf-8"))
    size = config["hidden_size"]
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    heads = config["num_attention_heads"]
    width = heads * config.get("head_dim", size // heads)
    directory.mkdir()
    save_file(
        {
            f"{layer}.lora_A.weight": torch.zeros(8, size),
            f"{layer}.lora_B.weight": torch.zeros(width, 8),
        },
        directory / "adapter_model.safetensors",
    )
    asked = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "bias": "none"}
    asked |= {"target_modules": ["q_proj"], "base_model_name_or_path": str(model)}
    (directory / "adapter_config.json").write_text(json.dumps(asked), "utf-8")
    return directory


async def ask(client: httpx.AsyncClient, *, model: str, **more: Any) -> None:
    headers = more.pop("headers", {})
    body = {"model": model, "prompt": [300] * 40, "max_tokens": 60, "ignore_eos": True}
    response = await client.post("/v1/completions", json=body | more, headers=headers)
    response.raise_for_status()


def added(recorded: Recorded) -> list[RequestEvent]:
    return list(recorded.events(EventKind.ADDED, DONE).values())


async def test_adapter_and_priority_are_told_and_who_lacks_a_slot_is_deferred(
    kinds: Engine,
) -> None:
    async with client_of(kinds) as client, watching(kinds) as recorded:
        await asyncio.gather(
            ask(client, model="tiny-llama", max_tokens=300),
            *(ask(client, model=name, priority=n) for n in (0, 3) for name in ADAPTERS),
        )
        await until(recorded.at_rest)

    told = Counter((event.lora, event.priority) for event in added(recorded))
    expected = [(name, priority) for name in ADAPTERS for priority in (0, 3)]
    assert told == Counter([*expected, (None, 0)])
    waited = [step for step in recorded.steps if step.waiting]
    assert {step.bound_by for step in waited} == {BoundBy.DEFERRED}
    assert len(waited) > 20
    assert {e.external_tokens for e in added(recorded)} == {None}


async def test_who_waits_for_a_grammar_is_deferred(kinds: Engine) -> None:
    words = [f"word {n} of many that somebody might say" for n in range(3000)]
    schema = {"type": "object", "properties": {"it": {"enum": words}}}
    schema["required"] = ["it"]
    async with client_of(kinds) as client, watching(kinds) as recorded:
        decoding = asyncio.create_task(ask(client, model="tiny-llama", max_tokens=800))
        await until(lambda: len(recorded.steps) > 5)
        await ask(
            client,
            model="tiny-llama",
            ignore_eos=False,
            structured_outputs={"json": schema},
        )
        await decoding
        await until(recorded.at_rest)

    waited = [step.bound_by for step in recorded.steps if step.waiting]
    assert waited
    assert set(waited) == {BoundBy.DEFERRED}


async def test_the_one_header_is_told_of_every_request_that_has_it(
    kinds: Engine,
) -> None:
    tenants = ["acme", "übermorgen", "x" * 500, None, "acme", ""]
    values = [None if t is None else t.encode() for t in tenants]
    sent = [{} if v is None else {TENANT.lower().encode(): v} for v in values]
    async with client_of(kinds) as client, watching(kinds) as recorded:
        await asyncio.gather(
            *(
                ask(client, model="tiny-llama", headers=h, max_tokens=5 + n)
                for n, h in enumerate(sent)
            )
        )
        await chat(client, {TENANT: "talker", "Authorization": "Bearer of-secrets"})
        await until(recorded.at_rest)

    arrived = recorded.events(EventKind.ARRIVED, SEEN).values()
    by_tokens = {e.max_tokens: e.header for e in arrived}
    assert [by_tokens[5 + n] for n in range(6)] == [
        *("acme", "übermorgen", "x" * LONGEST_VALUE, None, "acme", None)
    ]
    assert by_tokens[3] == "talker"
    assert "secrets" not in repr(recorded.readings)


async def chat(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    body = {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 3,
        "stream": True,
    }
    async with client.stream(
        "POST", "/v1/chat/completions", json=body, headers=headers
    ) as response:
        response.raise_for_status()
        async for _ in response.aiter_lines():
            pass


async def test_without_block_maps_the_pool_is_left_alone(kinds: Engine) -> None:
    async with client_of(kinds) as client, watching(kinds) as recorded:
        await ask(client, model="tiny-llama", max_tokens=400)
        await until(recorded.at_rest)

    span_ns = recorded.steps[-1].end_ns - recorded.steps[0].start_ns
    assert span_ns > NS_PER_S / 2  # two maps would have come
    kinds_of_readings = {type(reading) for reading in recorded.readings}
    assert Step in kinds_of_readings
    assert not kinds_of_readings & {BlockMap, PromptBlocks}


async def test_nothing_was_missing(kinds: Engine) -> None:
    async with watching(kinds, backfill=True) as recorded:
        await until(lambda: bool(recorded.steps))

    notes = [r for r in recorded.readings if isinstance(r, Note)]
    assert [n.text for n in notes if n.kind is NoteKind.PROBE] == []
