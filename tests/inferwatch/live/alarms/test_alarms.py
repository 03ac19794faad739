"""A rule that holds is told, recorded with what came before, and ends when it calms."""

import asyncio
import json
import stat
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectors.contract.clock import NS_PER_S, SessionClock
from collectors.contract.readings import Note, NoteKind
from inferwatch.feed import MarkKind
from inferwatch.live.alarms.alarms import CALM, Alarms, Alert, OnAlert
from inferwatch.live.alarms.options import AlarmOptions
from inferwatch.live.live_session import LiveSession
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.health import Health, Verdict
from inferwatch.record.connections import open_for_reading
from inferwatch.record.flight.flight_recorder import FlightRecorder
from inferwatch.record.flight.kept_readings import KeptReadings
from inferwatch.record.replay.marks import quick_marks
from inferwatch.record.sessions.sessions import list_sessions

ALERT = Alert(
    rule="waiting>20",
    sentence="waiting 30.0 > 20.0",
    session="s3",
    time="2026-01-02T03:04:05.678+00:00",
    session_s=12.5,
)


def at(second: float, waiting: int) -> Snapshot:
    return Snapshot(
        now_ns=round(second * NS_PER_S),
        window=Window.MINUTE,
        covered_ns=60 * NS_PER_S,
        verdict=Verdict(health=Health.HEALTHY, sentence=""),
        flow=Flow(waiting=waiting),
    )


def alarms(path: Path, **asked: Any) -> Alarms:
    options = AlarmOptions(**({"record_on": "waiting>20"} | asked))
    clock = SessionClock()
    kept = KeptReadings(300 * NS_PER_S, 10**8)
    recorder = FlightRecorder(path, clock, kept) if options.record_on else None
    session = LiveSession(clock, Pipeline(Model(), recorder))
    return Alarms(session, options, recorder)


def notes(watched: Alarms) -> list[Note]:
    told = watched.session.pipeline.notes
    return [note for note in told if note.kind is NoteKind.ALERT]


async def test_a_recording_begins_and_ends_when_no_rule_has_held(path: Path) -> None:
    watched = alarms(path, record_after_s=30.0)
    flight = watched.recorder
    assert flight is not None
    recorded: dict[int, bool] = {}

    for second in range(100):
        ended = watched.look(at(second, 30 if 10 <= second < 40 else 0))
        recorded[second] = flight.recording
        if ended is not None:
            await asyncio.to_thread(ended.close)

    assert [s for s in recorded if recorded[s]] == list(range(12, 69))
    assert [row.id for row in list_sessions(path)] == ["s1"]
    assert (list_sessions(path)[0].name or "").startswith("waiting>20 ")
    texts = [note.text for note in notes(watched)]
    assert texts[0] == "waiting>20: waiting 30.0 > 20.0"
    assert "no rule has held for 30 s" in texts[1]
    again = f"`inferwatch replay s1 --db {path}` opens it again."
    assert watched.farewell()[0] == f"recorded as s1: {again}"
    with closing(open_for_reading(path)) as connection:
        marks = quick_marks(connection, 1)
    alerts = [mark.text for mark in marks if mark.kind is MarkKind.ALERT]
    assert alerts == texts


async def test_a_rule_that_comes_back_is_recorded_but_not_told_too_often(
    path: Path,
) -> None:
    watched = alarms(path, record_after_s=5.0, alert_every_s=60.0)
    on = {*range(5), *range(20, 25), *range(70, 75)}

    for second in range(90):
        ended = watched.look(at(second, 30 if second in on else 0))
        if ended is not None:
            await asyncio.to_thread(ended.close)

    assert len(list_sessions(path)) == 3
    told = [n.text for n in notes(watched) if n.text.startswith("waiting")]
    assert len(told) == 2
    assert "1 time more" in told[1]


async def test_no_rule_is_looked_at_while_the_past_is_read(path: Path) -> None:
    watched = alarms(path)

    for second in range(5):
        past = replace(at(second, 30), catching_up=True)
        assert watched.look(past) is None

    assert not notes(watched)
    assert watched.recorder is not None
    assert not watched.recorder.recording


async def test_a_rule_that_is_only_told_records_nothing(path: Path) -> None:
    watched = alarms(path, record_on=None, alert="waiting>20")

    for second in range(CALM):
        assert watched.look(at(second, 30)) is None

    assert len(notes(watched)) == 1
    assert not path.exists()
    assert watched.farewell() == []


async def test_what_never_happened_is_said_at_the_end(path: Path) -> None:
    watched = alarms(path, record_on="waiting>20|p99(ttft_s)>1")

    for second in range(5):
        watched.look(at(second, 3))

    said = watched.farewell()
    assert said[0].endswith("nothing was recorded")
    assert said[1].startswith("p99(ttft_s)>1 could not be judged: no ttft_s")
    assert not path.exists()


# What is run then: real processes.


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "on alert $(touch injected).py"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


TELL = """
told = {key: value for key, value in os.environ.items() if "INFERWATCH_ALERT" in key}
facts = {"argv": sys.argv[1:], "env": told, "stdin": json.loads(sys.stdin.readline())}
open(sys.argv[1] + ".part", "w").write(json.dumps(facts))
os.rename(sys.argv[1] + ".part", sys.argv[1])
"""
Until = Callable[..., Awaitable[None]]


@pytest.mark.process
async def test_a_command_is_run_with_its_arguments_and_no_shell(
    tmp_path: Path, until: Until
) -> None:
    told, troubles = tmp_path / "told; rm -rf $HOME", list[str]()
    command = (script(tmp_path, TELL), str(told), "$(touch injected)", "a b")
    on_alert = OnAlert(command, troubles.append)

    on_alert.run(ALERT)
    await until(told.exists)
    await on_alert.close()

    facts = json.loads(told.read_text())
    assert facts["argv"] == [str(told), "$(touch injected)", "a b"]
    assert facts["env"] == {
        "INFERWATCH_ALERT_RULE": "waiting>20",
        "INFERWATCH_ALERT_SENTENCE": "waiting 30.0 > 20.0",
        "INFERWATCH_ALERT_SESSION": "s3",
        "INFERWATCH_ALERT_SESSION_S": "12.5",
        "INFERWATCH_ALERT_TIME": ALERT.time,
    }
    assert facts["stdin"]["sentence"] == ALERT.sentence
    assert not list(tmp_path.glob("injected"))
    assert troubles == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "trouble"),
    [
        ("sys.exit('no such channel')", "ended with status 1: no such channel"),
        ("time.sleep(60)", "took longer than 1 s"),
    ],
    ids=["fails", "hangs"],
)
async def test_a_command_that_goes_wrong_is_told_and_holds_nobody_up(
    tmp_path: Path, until: Until, body: str, trouble: str
) -> None:
    troubles: list[str] = []
    on_alert = OnAlert((script(tmp_path, body),), troubles.append, patience_s=1.0)

    on_alert.run(ALERT)
    await until(lambda: bool(troubles))

    assert trouble in troubles[0]
    await on_alert.close()


@pytest.mark.process
async def test_a_command_that_cannot_start_is_told(
    tmp_path: Path, until: Until
) -> None:
    troubles: list[str] = []
    on_alert = OnAlert((str(tmp_path / "absent"),), troubles.append)

    on_alert.run(ALERT)
    await until(lambda: bool(troubles))

    assert "did not start" in troubles[0]


@pytest.mark.process
async def test_no_more_than_a_few_run_at_once(tmp_path: Path) -> None:
    troubles: list[str] = []
    on_alert = OnAlert((script(tmp_path, "time.sleep(60)"),), troubles.append, 0.5)

    for _ in range(10):
        on_alert.run(ALERT)

    assert len(troubles) == 2
    assert "was not run" in troubles[0]
    await on_alert.close()
