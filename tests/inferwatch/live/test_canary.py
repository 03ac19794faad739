"""A canary meets what clients of a server meet, and its requests are not a load run."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from collectors.contract.clock import SessionClock
from collectors.contract.readings import CanaryRequest
from inferwatch.live.live_session import LiveSession
from inferwatch.live.load.canary import TOKENS, Canaries, CanarySender
from inferwatch.live.load.load_desk import LoadTarget
from inferwatch.live.pipeline import Pipeline
from inferwatch.loadgen.plan.plan import Api
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery

S = 1_000_000_000


def target(url: str) -> LoadTarget:
    return LoadTarget(url=url, model="ttft=0.05,itl=0.02")


async def some(sender: CanarySender, count: int) -> list[CanaryRequest]:
    """The first of its requests."""
    got: list[CanaryRequest] = []

    async def take() -> None:
        async for batch in sender.batches():
            got.extend(each for each in batch if isinstance(each, CanaryRequest))

    taking = asyncio.create_task(take())
    async with asyncio.timeout(30):
        while len(got) < count:  # noqa: ASYNC110 - it is not ours to signal
            await asyncio.sleep(0.02)
    await sender.close()
    await taking
    return got


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


async def test_it_tells_what_the_server_did(truth_url: str) -> None:
    clock = SessionClock()
    sender = CanarySender(clock, "truth", target(truth_url), every_s=0.3)

    for asked in await some(sender, 2):
        assert asked.source == "truth"
        assert asked.failure is None
        assert asked.output_tokens == TOKENS == len(asked.gaps_ns) + 1
        assert asked.first_token_ns is not None
        assert 0.05 * S <= asked.first_token_ns - asked.sent_ns < 2 * S
        assert sum(asked.gaps_ns) >= 0.015 * S * (TOKENS - 1)
        assert 0 < asked.sent_ns < clock.now_ns()


@pytest.mark.process
async def test_where_nobody_listens_it_tells_so_and_tries_again() -> None:
    nowhere = target("http://127.0.0.1:9")
    sender = CanarySender(SessionClock(), "gone", nowhere, every_s=0.3)

    first, second, *_ = await some(sender, 2)

    assert first.failure == second.failure == "refused"
    assert first.first_token_ns is None
    assert first.gaps_ns == []


@asynccontextmanager
async def only_chats() -> AsyncIterator[str]:
    """A server without completions, and what it was asked for."""

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split()[0])
        await reader.readexactly(length)
        if "/chat/" not in head:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            said = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
            end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
            body = said + end + b"data: [DONE]\n\n"
            kind = b"Content-Type: text/event-stream\r\nConnection: close\r\n\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\n" + kind + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.process
async def test_a_server_that_only_chats_is_asked_so() -> None:
    async with only_chats() as url:
        sender = CanarySender(SessionClock(), "chat", target(url), every_s=0.3)
        (asked, *_) = await some(sender, 1)

    assert asked.failure is None
    assert sender._plan.endpoint is Api.CHAT


async def test_it_is_switched_on_and_off_and_noted(truth_url: str) -> None:
    session = LiveSession(SessionClock(), Pipeline(Model(), None))
    canaries = Canaries(
        session, lambda: {"a": target(truth_url), "b": target(truth_url)}
    )

    assert canaries.targets(None) == ("a", "b")
    canaries.start("b")
    canaries.start("b")
    assert canaries.on == ("b",)
    await canaries.stop()

    assert not canaries.on
    assert not canaries.pids
    ours = psutil.Process().children(recursive=True)
    assert not any(map(generates, ours))
    notes = [each.text for each in session.snapshot(Window.SESSION).notes]
    assert notes == ["b: canary: a request every 10 s", "b: canary stopped"]


def generates(process: psutil.Process) -> bool:
    """It is a load generator; what has ended, and is not buried yet, is none."""
    with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
        return "inferwatch.loadgen" in process.cmdline()
    return False


Asked = Callable[..., CanaryRequest]


@pytest.fixture
def asked() -> Asked:
    def make(second: float, ttft_ms: float = 20, **fields: Any) -> CanaryRequest:
        sent_ns = int(second * S)
        first_ns = sent_ns + int(ttft_ms * 1e6)
        told = {"source": "a", "first_token_ns": first_ns, "gaps_ns": [5_000_000]}
        return CanaryRequest(
            sent_ns=sent_ns,
            prompt_tokens=16,
            output_tokens=2,
            **{**told, **fields},
        )

    return make


def test_the_window_decides_what_is_counted_and_the_source_whose(asked: Asked) -> None:
    model = Model()
    assert model.snapshot(0, SnapshotQuery(Window.MINUTE)).canary is None
    for each in (asked(1, 500), asked(100), asked(110, 40), asked(111, source="b")):
        model.fold(each)
    model.fold(asked(115, failure="timeout", first_token_ns=None, gaps_ns=[]))

    canary = model.snapshot(120 * S, SnapshotQuery(Window.MINUTE, source="a")).canary

    assert canary is not None
    assert (canary.sent, canary.failed, canary.tokens) == (3, 1, 54)
    assert (canary.ttft_s.n, canary.ttft_s.max) == (2, 0.04)
    assert canary.itl_s.p50 == 0.005
    assert canary.last is not None
    assert canary.last.failure == "timeout"
    whole = model.snapshot(120 * S, SnapshotQuery(Window.SESSION)).canary
    assert whole is not None
    assert whole.ttft_s.max == 0.5
    assert whole.sent == 5


def test_of_a_server_that_counts_no_tokens_it_is_not_known_how_many_it_took(
    asked: Asked,
) -> None:
    model = Model()
    model.fold(replace(asked(1), output_tokens=None))

    canary = model.snapshot(2 * S, SnapshotQuery(Window.MINUTE)).canary

    assert canary is not None
    assert canary.tokens is None


def test_it_is_no_load_run(asked: Asked) -> None:
    model = Model()
    model.fold(asked(1))

    assert model.snapshot(2 * S, SnapshotQuery(Window.MINUTE)).client is None
