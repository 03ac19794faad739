"""On real vLLM: a priority that starves, and a tenant that makes others wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from collectors.contract.readings import EventKind, RequestEvent, Vantage
from embedded_engine.engine.config import demo_config
from embedded_engine.engine.launch import Engine
from embedded_engine.probe_settings import ProbeSettings
from inferwatch.live.load.priorities import POLICY
from inferwatch.metrics.findings.finding import Finding
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from tests.conftest import living_in
from tests.program.test_planted_findings_engine import Ask, Here, watching

pytestmark = [
    pytest.mark.engine,
    pytest.mark.soak,  # two boots, and floods that leave others little of the machine
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("two sequences"),
]

HEADER = "x-tenant"
WITHIN_S = 60
CALM_S = 20
NUMBERS = count()


@asynccontextmanager
async def two_at_once(home: Path, *flags: str) -> AsyncIterator[Here]:
    """An engine of two sequences that tells of tenants, and a session of it."""
    config = demo_config(ProbeSettings(group_header=HEADER))
    given = ("--max-num-seqs=2", "--num-gpu-blocks-override=512", *flags)
    names = {flag.partition("=")[0] for flag in given}
    kept = [each for each in config.flags if each.partition("=")[0] not in names]
    with living_in(home):
        engine = await Engine.start(
            replace(config, flags=(*kept, *given)), lambda _: None
        )
        try:
            async with watching(engine) as here:
                yield here
        finally:
            await engine.stop()


async def ask(
    here: Here, tenant: str, prompt: int, tokens: int, priority: int = 0
) -> None:
    """One request, which has to be answered."""
    number = next(NUMBERS)
    begin = [300 + number % 97, 300 + number // 97 % 97]
    answer = await here.client.post(
        "/v1/completions",
        json={
            "model": "tiny-llama",
            "prompt": (begin + [400] * prompt)[:prompt],
            "max_tokens": tokens,
            "ignore_eos": True,
            "priority": priority,
        },
        headers={HEADER: tenant},
    )
    assert answer.status_code == 200, answer.text


@asynccontextmanager
async def asking(clients: int, ask: Ask, pause_s: float = 0.0) -> AsyncIterator[None]:
    """So many clients that ask again when they are answered; all get their answers."""
    going = True

    async def client() -> None:
        while going:
            await ask()
            await asyncio.sleep(pause_s)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(client())
        yield
        going = False


@asynccontextmanager
async def flood(here: Here) -> AsyncIterator[None]:
    """More of a good priority than two sequences serve, and a few of a bad one."""
    async with (  # the flood ends first, so that the others end at all
        asking(2, lambda: ask(here, "batch", 16, 40, priority=10)),
        asking(8, lambda: ask(here, "chat", 16, 40)),
    ):
        yield


async def found(here: Here, name: str, within_s: int = WITHIN_S) -> Finding | None:
    """The finding of this name, wherever it ranks, once it holds."""
    for _ in range(within_s):
        await asyncio.sleep(1)
        here.pipeline.tick(here.clock.now_ns())
        for each in here.model.findings:
            if each.name == name:
                return each
    return None


async def test_a_flood_of_better_priority_starves_the_rest(tmp_path: Path) -> None:
    async with (
        two_at_once(tmp_path, "--scheduling-policy=priority") as here,
        flood(here),
    ):
        finding = await found(here, "starved_priority")

    assert finding is not None, here.model.findings
    assert "of priority 10 wait, the oldest for" in finding.sentence
    assert "of better priority that came later" in finding.evidence[0].text
    assert finding.evidence[0].key is not None
    assert any((each.flag or "").startswith("--max-num-seqs") for each in finding.knobs)


async def test_without_priorities_a_tenant_with_long_prompts_is_the_noisy_one(
    tmp_path: Path,
) -> None:
    async with two_at_once(tmp_path) as here, AsyncExitStack() as asked:
        heard: list[RequestEvent] = []
        fold = here.model.fold

        def listen(reading: object) -> None:
            if isinstance(reading, RequestEvent):
                heard.append(reading)
            fold(reading)  # type: ignore[arg-type]

        here.model.fold = listen  # type: ignore[method-assign]
        async with flood(here):  # vLLM takes priorities, and heeds none
            assert await found(here, "starved_priority", CALM_S) is None
        shown = here.model.snapshot(here.clock.now_ns(), SnapshotQuery(Window.SESSION))
        assert shown.settings[POLICY] == "fcfs"
        assert {row.priority for row in shown.requests} == {None}

        await asked.enter_async_context(
            asking(2, lambda: ask(here, "bulk", 1_800, 120), 0.5)
        )
        await asked.enter_async_context(asking(6, lambda: ask(here, "chat", 16, 4)))
        finding = await found(here, "noisy_tenant")
        assert finding is not None, here.model.findings
        assert finding.sentence.startswith("bulk sends ")
        await asked.aclose()
        await asyncio.sleep(4)
        here.pipeline.tick(here.clock.now_ns())
        query = SnapshotQuery(Window.SESSION, tenants=True)
        tenants = here.model.snapshot(here.clock.now_ns(), query).tenants

    assert tenants is not None
    by_name = {each.name: each for each in tenants.tenants}
    assert by_name.keys() == {"bulk", "chat", "batch"}
    bulk, chat = by_name["bulk"], by_name["chat"]
    assert bulk.requests < chat.requests
    assert (bulk.caused_share or 0) > 0.2  # of the flood's queue, too
    ended = [
        each
        for each in heard
        if (each.kind, each.vantage) == (EventKind.FINISHED, Vantage.FRONTEND)
    ]
    assert tenants.requests == len({each.request_id for each in ended})
    assert sum(each.output_tokens for each in tenants.tenants) == sum(
        each.output_tokens or 0 for each in ended
    )
    assert sum(each.gpu_ns or 0 for each in tenants.tenants) == tenants.gpu_ns
