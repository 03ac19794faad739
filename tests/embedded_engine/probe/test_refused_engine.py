"""Refused requests of real clients: counted to the last one, and named."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import httpx
import pytest

from collectors.contract.readings import REFUSED, RefusalReason, Refusals
from collectors.servers.exposition import Exposition
from collectors.servers.families.vllm import VLLM
from embedded_engine.engine.launch import Engine
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.requests.refusals import RefusedGroup
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.embedded_engine.probe.test_truth import client_of, until, watching

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("shared engine"),
]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MODEL = "tiny-llama"
GOOD = {"model": MODEL, "prompt": [300] * 20, "max_tokens": 2}
SAID = [{"role": "user", "content": "my secret"}]
PLANTED = (
    (COMPLETIONS, GOOD | {"prompt": [300] * 3_100}, 400),
    (COMPLETIONS, GOOD | {"n": 2, "temperature": 0}, 400),
    (CHAT, {"model": MODEL, "messages": SAID, "temperature": -1}, 400),
    (CHAT, {"model": MODEL, "messages": "my secret"}, 400),
    (COMPLETIONS, GOOD | {"model": "my secret"}, 404),
)
"""One in twenty of all requests."""


async def test_every_refused_request_is_counted_and_named(engine: Engine) -> None:
    asked = [(COMPLETIONS, GOOD, 200)] * 95 + [*PLANTED]
    random.Random(7).shuffle(asked)
    async with client_of(engine) as client, watching(engine) as recorded:
        before = await scraped(client)
        await until(lambda: any(isinstance(r, Refusals) for r in recorded.readings))
        known = model_of(recorded.readings)
        for start in range(0, len(asked), 10):
            sent = asked[start : start + 10]
            answers = [client.post(path, json=body) for path, body, _ in sent]
            for answer, (*_, status) in zip(
                await asyncio.gather(*answers), sent, strict=True
            ):
                assert answer.status_code == status, answer.text
        await client.get("/v1/my/secret")
        await client.get("/my/secret")
        await until(lambda: new(known, model_of(recorded.readings)).total() == 7)
        after = await scraped(client)
    found = model_of(recorded.readings)

    assert new(known, found) == {
        (COMPLETIONS, "400", RefusalReason.TOO_LONG, None): 1,
        (COMPLETIONS, "400", RefusalReason.INVALID, None): 1,  # vLLM does not say: n
        (CHAT, "400", RefusalReason.INVALID, "temperature"): 1,
        (CHAT, "400", RefusalReason.INVALID, "messages"): 1,
        (COMPLETIONS, "404", RefusalReason.UNKNOWN_MODEL, None): 1,
        ("other", "404", RefusalReason.OTHER, None): 2,
    }
    (long,) = (each for each in found if each.reason is RefusalReason.TOO_LONG)
    assert (long.asked_tokens, long.allowed_tokens) == (3_100, 2_048)
    assert "secret" not in repr([r for r in recorded.readings if "efus" in repr(r)])
    rise = {kind: after[kind] - before.get(kind, 0) for kind in after}
    assert rise == {
        f"{REFUSED}{{{COMPLETIONS} 4xx}}": 3,
        f"{REFUSED}{{{CHAT} 4xx}}": 2,
        f"{REFUSED}{{queue full}}": 0,
    }


def model_of(readings: Sequence[object]) -> tuple[RefusedGroup, ...]:
    model = Model()
    for each in readings:
        if isinstance(each, Refusals):
            model.fold(each)
    return model.snapshot(10**15, SnapshotQuery(Window.SESSION)).refused


def new(
    before: tuple[RefusedGroup, ...], after: tuple[RefusedGroup, ...]
) -> Counter[tuple[object, ...]]:
    """How many were refused in between, by kind."""
    counts = Counter[tuple[object, ...]]()
    for groups, by in ((after, 1), (before, -1)):
        for each in groups:
            kind = each.route, each.status, each.reason, each.parameter
            counts[kind] += by * each.count
    return +counts


async def scraped(client: httpx.AsyncClient) -> dict[str, float]:
    page = (await client.get("/metrics")).text
    (sample,) = Exposition(VLLM).read(page).samples
    return {k: n for k, n in sample.others.items() if k.startswith(REFUSED)}
