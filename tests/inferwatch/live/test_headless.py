"""A watch without a screen says what came of it, and no more than that."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.readings import Note, NoteKind
from embedded_engine.engine.errors import EngineError
from inferwatch.cli.options import WatchOptions
from inferwatch.cli.running.session import HeadlessProgress, watch_headless
from inferwatch.errors import SourceError
from inferwatch.live.engine.engine_session import EngineSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery


class NoEngine:
    """A source whose engine never comes up."""

    served = False
    can_restart = False
    log_path = None

    def prepare(self) -> str:
        return "engine-1"

    async def open(self, on_stage: object) -> Any:  # noqa: ARG002 - it never gets so far
        raise EngineError("no room on the GPU")


async def start_that_fails(*, as_json: bool) -> None:
    watch = EngineSession(SessionClock(), Pipeline(Model()), NoEngine())
    with pytest.raises(SourceError, match="no room on the GPU"):
        await watch_headless(watch, WatchOptions(headless=True, as_json=as_json))


async def test_a_start_that_fails_is_told_by_its_cause_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await start_that_fails(as_json=False)

    assert capsys.readouterr().out == ""


async def test_a_start_that_fails_is_one_valid_object_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await start_that_fails(as_json=True)

    found = json.loads(capsys.readouterr().out)
    assert found["engine"] is None


def test_of_a_note_that_carries_a_log_the_first_line_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "EngineCore (pid 7) exited\nTraceback (most recent call last):"
    lost = Note(t_ns=NS_PER_S, kind=NoteKind.LOST, text=text)
    watch: Any = SimpleNamespace(notes=(lost,))

    HeadlessProgress(watch, None)._tell_stages()

    assert capsys.readouterr().err == "   1.0 s  EngineCore (pid 7) exited\n"


class Runs:
    """A watch that records and ends at once."""

    def __init__(self) -> None:
        self.failure, self.came_up, self.alarms, self.faults = None, True, None, ()
        self.record = SimpleNamespace(message=None, flight=None, session_id="s2")
        self.lost, self.begun, self.settled = (asyncio.Event() for _ in range(3))
        self.settled.set()

    async def run(self) -> None:
        """Do nothing."""

    def whole(self) -> Any:
        return Model().snapshot(0, SnapshotQuery(Window.SESSION))


async def test_it_ends_with_how_to_open_it_again_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch: Any = Runs()
    database = tmp_path / "a b.db"

    await watch_headless(
        watch, WatchOptions(once=True, as_json=True, database=database)
    )

    said = capsys.readouterr()
    assert json.loads(said.out)
    assert said.err.strip() == (
        f"inferwatch: recorded as s2: `inferwatch replay s2 --db '{database}'` opens "
        "it again."
    )
