"""What sets requests apart, as a real vLLM's probe tells it: a header, a grammar.

Adapters and priorities need another engine: see ``test_engine_kinds``.
"""

import asyncio
from typing import Any

import httpx
import pytest

from collectors.contract.readings import BoundBy, Deferral, EventKind, Note, NoteKind
from embedded_engine.engine.launch import Engine
from embedded_engine.probe_settings import LONGEST_VALUE
from inferwatch.metrics.causes.cause import QUEUE_CAUSES, Cause
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.conftest import GROUP_HEADER
from tests.embedded_engine.probe.test_truth import (
    DONE,
    SEEN,
    client_of,
    until,
    watching,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("shared engine"),
]

WORDS = 400
"""Enough of them, and a grammar takes longer than some steps."""
GRAMMAR_TOKENS = 60


async def ask(client: httpx.AsyncClient, **more: Any) -> None:
    headers = more.pop("headers", {})
    body = {"model": "tiny-llama", "prompt": [300] * 40, "ignore_eos": True}
    response = await client.post("/v1/completions", json=body | more, headers=headers)
    response.raise_for_status()


async def ask_for_words(client: httpx.AsyncClient, kind: str) -> None:
    """Ask for one of many words: the grammar is new for each kind."""
    words = [f"word {n} {kind} that somebody might say" for n in range(WORDS)]
    schema = {"type": "object", "properties": {"it": {"enum": words}}}
    await ask(
        client,
        max_tokens=GRAMMAR_TOKENS,
        ignore_eos=False,
        structured_outputs={"json": schema | {"required": ["it"]}},
    )


async def test_who_waits_for_a_grammar_is_deferred(engine: Engine) -> None:
    async with client_of(engine) as client, watching(engine) as recorded:
        decoding = asyncio.create_task(ask(client, max_tokens=200))
        await until(lambda: len(recorded.steps) > 5)
        await ask_for_words(client, "of many")
        await decoding
        await until(recorded.at_rest)

    waited = [step for step in recorded.steps if step.waiting]
    assert waited
    told = {(step.bound_by, step.deferred_by) for step in waited}
    assert told == {(BoundBy.DEFERRED, Deferral.GRAMMAR)}
    assert {step.deferred for step in waited} == {1}


async def test_grammars_of_several_add_up_to_their_time_in_the_queue(
    engine: Engine,
) -> None:
    """Also while nothing else is to do, when vLLM makes no steps."""
    async with client_of(engine) as client, watching(engine) as recorded:
        await ask(client, max_tokens=2)  # without a step before, less is known
        await ask_for_words(client, "alone")
        decoding = asyncio.create_task(ask(client, max_tokens=400))
        arrived = recorded.events
        await until(lambda: len(arrived(EventKind.FINISHED, DONE)) == 2)
        await asyncio.gather(*(ask_for_words(client, f"{n}") for n in range(3)))
        await decoding
        await until(recorded.at_rest)

    model = Model()
    for reading in recorded.readings:
        model.fold(reading)
    now_ns = recorded.steps[-1].end_ns + 1
    shown = model.snapshot(now_ns, SnapshotQuery(Window.SESSION, requests=True))
    rows = [each for each in shown.requests if each.max_tokens == GRAMMAR_TOKENS]
    assert len(rows) == 4
    for row in rows:
        parts = dict(row.ttft_parts)
        queued = {each: parts[each] for each in QUEUE_CAUSES if each in parts}
        assert set(queued) <= {Cause.QUEUE_STEP, Cause.QUEUE_GRAMMAR}
        assert queued[Cause.QUEUE_GRAMMAR] > 0.5 * sum(queued.values())
        # On their way to the queue they waited for the running step, too.
        assert queued[Cause.QUEUE_GRAMMAR] <= (row.queue_s or 0) + 1e-9
        assert (row.queue_s or 0) <= sum(queued.values()) + 1e-9
        assert sum(parts.values()) == pytest.approx(row.ttft_s, abs=1e-9)
        assert parts.get(Cause.UNKNOWN, 0.0) == 0


async def test_the_one_header_is_told_of_every_request_that_has_it(
    engine: Engine,
) -> None:
    tenants = ["acme", "übermorgen", "x" * 500, None, "acme", ""]
    values = [None if t is None else t.encode() for t in tenants]
    name = GROUP_HEADER.upper()  # names of headers have no case
    sent = [{} if v is None else {name.encode(): v} for v in values]
    async with client_of(engine) as client, watching(engine) as recorded:
        await asyncio.gather(
            *(ask(client, headers=h, max_tokens=5 + n) for n, h in enumerate(sent))
        )
        await chat(client, {name: "talker", "Authorization": "Bearer of-secrets"})
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


async def test_nothing_was_missing(engine: Engine) -> None:
    async with client_of(engine) as client, watching(engine, backfill=True) as recorded:
        await ask(client, max_tokens=5)
        # Whoever watches next is not to hear of its end.
        await until(lambda: bool(recorded.steps) and recorded.last_has_ended())

    notes = [r for r in recorded.readings if isinstance(r, Note)]
    assert [n.text for n in notes if n.kind is NoteKind.PROBE] == []
