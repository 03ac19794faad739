"""The flight recorder as a service: nothing until something happens, then what led."""

import asyncio
import json
import os
import shlex
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from collectors.contract.readings import EngineSample, Note, NoteKind, ServerInfo, Tick
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.record.tables.session_state import SessionState
from tests.collectors.http_server import Serving, serving
from tests.collectors.made_up_engine import MadeUpEngine
from tests.program.test_record_service import rows, service

pytestmark = pytest.mark.process
SAMPLES = "SELECT 1 FROM engine_samples"
TELL = """
import json, os, sys
told = {key: value for key, value in os.environ.items() if "INFERWATCH_ALERT_" in key}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({"argv": sys.argv[2:], **told}) + chr(10))
"""


@pytest.fixture
def engine() -> MadeUpEngine:
    made_up = MadeUpEngine()
    made_up.running.set(1)
    return made_up


@pytest.fixture
async def server(engine: MadeUpEngine) -> AsyncIterator[Serving]:
    async with serving({"/metrics": engine.text}) as serving_:
        yield serving_


def runs(server: Serving, engine: MadeUpEngine, requests: int) -> None:
    """What it tells from now on."""
    engine.running.set(requests)
    server.answers["/metrics"] = engine.text


async def test_what_never_happens_leaves_no_record(
    server: Serving, tmp_path: Path
) -> None:
    path = tmp_path / "sessions.db"
    flags = ("--record-on", "running>3|lost", "--duration", "2")
    async with service(path, server.url, *flags) as running:
        await running.says("nothing was recorded")
        assert await running.process.wait() == 0

    assert not path.exists()


async def test_what_happens_is_recorded_with_what_was_before_and_told(
    server: Serving, engine: MadeUpEngine, tmp_path: Path
) -> None:
    path, told = tmp_path / "sessions.db", tmp_path / "told; $(touch no)"
    script = tmp_path / "tell it.py"
    script.write_text(TELL)
    command = shlex.join([sys.executable, str(script), str(told), "$HOME", "a b"])
    flags = ("--record-on", "running>3", "--record-after", "2s", "--alert-every", "1s")
    asked = (server.url, *flags, "--on-alert", command)
    async with service(path, *asked) as running:
        await running.says("running")
        await asyncio.sleep(2)  # what was before is asked for every second
        runs(server, engine, 7)
        await running.says("running>3: running 7.00 > 3.00")
        runs(server, engine, 0)
        await running.says("no rule has held for 2 s: s1 ends")
        runs(server, engine, 8)
        await running.says("running>3: running 8.00 > 3.00")
        status, summary = await running.ended(signal.SIGTERM)

    assert status == 0
    assert "session s2" in summary
    first, second = sorted(list_sessions(path), key=lambda row: row.session)
    assert {first.state, second.state} == {SessionState.COMPLETE}
    assert (first.name or "").startswith("running>3 ")
    readings = [
        reading
        async for batch in RecordedReadings(path, "s1").batches()
        for reading in batch
    ]
    samples = [each for each in readings if isinstance(each, EngineSample)]
    assert samples[0].running == 1  # what was before is in it
    assert {each.running for each in samples} >= {1, 7, 0}
    assert any(isinstance(each, ServerInfo) for each in readings)
    assert any(map(is_alert, readings))
    ticks = [each.t_ns for each in readings if isinstance(each, Tick)]
    assert ticks == sorted(ticks)
    alerts = [json.loads(line) for line in told.read_text().splitlines()]
    assert [each["argv"] for each in alerts] == [["$HOME", "a b"]] * 2
    assert [each["INFERWATCH_ALERT_SESSION"] for each in alerts] == ["s1", "s2"]
    assert not (tmp_path / "no").exists()


def is_alert(reading: object) -> bool:
    return isinstance(reading, Note) and reading.kind is NoteKind.ALERT


async def test_a_kill_loses_nothing_that_was_recorded(
    server: Serving, engine: MadeUpEngine, tmp_path: Path
) -> None:
    path = tmp_path / "sessions.db"
    runs(server, engine, 9)
    flags = ("--record-on", "running>3", "--keep", "1min")
    async with service(path, server.url, *flags) as running:
        await running.says("running 9.00 > 3.00")
        for _ in range(100):
            with suppress(sqlite3.OperationalError):  # it is not all made yet
                if len(rows(path, SAMPLES)) > 3:
                    break
            await asyncio.sleep(0.2)
        os.kill(running.process.pid, signal.SIGKILL)
        await running.process.wait()

    (row,) = list_sessions(path)
    assert row.state is SessionState.INTERRUPTED
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert len(rows(path, SAMPLES)) > 3
