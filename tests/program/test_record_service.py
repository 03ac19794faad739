"""``inferwatch record`` as a service: it ends cleanly, begins again, is followed."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx
import pytest

from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.replay.player import Player
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.record.tables.session_state import SessionState
from tests.collectors.http_server import Serving, serving
from tests.collectors.made_up_engine import MadeUpEngine

pytestmark = pytest.mark.process
PATIENCE_S = 40.0
FURTHER_NS = 1_000_000_000


class Service:
    """A running ``inferwatch record``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def says(self, text: str) -> str:
        """Wait for a line on stderr with that text."""
        assert self.process.stderr is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for line in self.process.stderr:
                    self.said.append(line.decode())
                    if text in self.said[-1]:
                        return self.said[-1]
        except TimeoutError:
            pass
        raise AssertionError(f"{text!r} is not in: {''.join(self.said)}")

    async def ended(self, number: signal.Signals) -> tuple[int, str]:
        """End it; its exit status and what it printed at the end."""
        self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE_S):
            out, _ = await self.process.communicate()
        return self.process.returncode or 0, out.decode()


@asynccontextmanager
async def service(path: Path, *arguments: str) -> AsyncIterator[Service]:
    """A service that records into that file, ended with the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inferwatch", "record", *arguments, "--db", str(path)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "INFERWATCH_RUNTIME_DIR": str(path.parent / "run")},
    )
    try:
        yield Service(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    engine = MadeUpEngine()
    for _ in range(20):
        engine.request(ttft_s=0.1, itl_s=0.02)
    engine.running.set(4)
    async with serving({"/metrics": engine.text}) as serving_:
        yield serving_


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


async def test_sigterm_ends_the_record_cleanly_and_sums_it_up_and_sigkill_is_told(
    server: Serving, tmp_path: Path
) -> None:
    path = tmp_path / "sessions.db"
    async with service(path, server.url) as running:
        await running.says("answers")
        await running.ended(signal.SIGKILL)
    async with service(path, server.url) as running:
        await running.says("goes on from s1, which was interrupted")
        await running.says("running")
        status, summary = await running.ended(signal.SIGTERM)

    after, before = list_sessions(path)
    assert status == 0
    assert "watched · session s2" in summary
    assert before.state is SessionState.INTERRUPTED
    assert (after.command, after.state) == ("record", SessionState.COMPLETE)
    assert rows(path, "SELECT 1 FROM engine_samples WHERE session = 2")
    notes = rows(path, "SELECT text FROM notes WHERE session = 2")
    assert ("goes on from s1, which was interrupted",) in notes


async def test_it_outlives_a_server_that_is_restarted(
    server: Serving, tmp_path: Path
) -> None:
    async with service(tmp_path / "sessions.db", server.url) as running:
        await running.says("answers")
        await server.stop()
        await running.says("does not answer")
        server.answers["/metrics"] = MadeUpEngine().text
        await server.start()
        await running.says("was restarted")
        status, _ = await running.ended(signal.SIGTERM)

    assert status == 0


async def test_what_is_being_recorded_is_followed_by_a_replay(
    server: Serving, tmp_path: Path
) -> None:
    path = tmp_path / "sessions.db"
    async with service(path, server.url) as running:
        await running.says("running")
        player = await asyncio.to_thread(Player.open, path, "last")
        playing = asyncio.create_task(player.run())
        seen_ns = player.playback.span_ns[1]
        async with asyncio.timeout(PATIENCE_S):
            while player.playback.span_ns[1] < seen_ns + FURTHER_NS:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await player.playback.seek(player.playback.span_ns[1])
        shown = player.snapshot(SnapshotQuery(Window.MINUTE))
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        status, _ = await running.ended(signal.SIGTERM)

    assert shown.now_ns > seen_ns
    assert [(each.answers, each.running) for each in shown.servers] == [(True, 4)]
    assert status == 0


async def test_others_scrape_it_and_several_watch_at_once(
    server: Serving, tmp_path: Path
) -> None:
    path = tmp_path / "sessions.db"
    async with (
        service(path, server.url, "--listen", "0") as one,
        service(path, server.url) as other,
    ):
        line = await one.says("metrics at http://127.0.0.1:")
        url = line.partition("metrics at ")[2].strip()
        await one.says("answers")
        await other.says("answers")
        async with httpx.AsyncClient(trust_env=False) as client:
            async with asyncio.timeout(PATIENCE_S):
                while "inferwatch_requests_running" not in (  # noqa: ASYNC110
                    text := (await client.get(url)).text
                ):
                    await asyncio.sleep(0.1)
        for each in (one, other):
            assert (await each.ended(signal.SIGTERM))[0] == 0

    assert 'inferwatch_server_up{model_name="tiny",' in text
    assert {row.state for row in list_sessions(path)} == {SessionState.COMPLETE}


async def test_a_port_that_is_taken_is_said_before_anything_is_recorded(
    server: Serving, tmp_path: Path
) -> None:
    port = server.url.rpartition(":")[2]
    async with service(tmp_path / "s.db", server.url, "--listen", port) as running:
        await running.says(f"cannot listen on 127.0.0.1:{port}")
        await running.process.communicate()

    assert running.process.returncode == 2
