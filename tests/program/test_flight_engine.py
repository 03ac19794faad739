"""``--record-on``: what led to it, on real vLLM."""

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from collectors.contract.readings import AnyReading, EngineInfo, Step, Tick
from embedded_engine.engine.launch import Engine
from inferwatch.cli.main import inferwatch
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.record.lookup.recorded_readings import RecordedReadings
from inferwatch.record.sessions.sessions import find
from tests.program.conftest import PROGRAM, Home, asking

pytestmark = pytest.mark.engine


@pytest.mark.xdist_group("shared engine")
def test_a_rule_that_holds_leaves_a_session_with_what_was_before(
    engine: Engine, tmp_path: Path
) -> None:
    path = tmp_path / "sessions.db"
    flags = (
        *("--duration", "6", "--keep", "8s", "--record-after", "1min"),
        *("--record-on", "finished>3|p99(ttft_s)>100", "--db", str(path)),
    )
    with asking(engine, clients=2, tokens=40):
        run = CliRunner().invoke(
            inferwatch, ["record", str(engine.url), "--json", *flags]
        )

    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["session_ids"] == ["s1"]
    assert "finished>3: finished" in run.stderr
    led_to_it(path, "finished>3", before_s=0, ticks=4, finished=3)


def led_to_it(
    path: Path, rule: str, *, before_s: int, ticks: int, finished: int
) -> list[Step]:
    """So many seconds before the rule held, the engine's steps are there already."""
    row = find(path, "s1")
    model, steps, infos, seen = Model(), [], [], []
    for reading in asyncio.run(readings_of(path)):
        model.fold(reading)
        if isinstance(reading, Step):
            steps.append(reading)
        if isinstance(reading, EngineInfo):
            infos.append(reading)
        if isinstance(reading, Tick):
            seen.append(reading.t_ns)
    assert len(infos) == 1
    assert row.unrecorded == 0
    assert len(seen) >= ticks
    alerts = [note for note in model.notes if rule in note.text]
    before = [step for step in steps if step.end_ns < alerts[0].t_ns - before_s * 10**9]
    assert len(before) > 50
    last = model.snapshot(seen[-1], SnapshotQuery(Window.TEN_SECONDS))
    assert last.flow.finished > finished
    assert last.engines[0].model
    return steps


async def readings_of(path: Path) -> list[AnyReading]:
    batches = RecordedReadings(path, "s1").batches()
    return [reading async for batch in batches for reading in batch]


def demo(home: Path, *flags: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [*PROGRAM, "demo", "--json", *flags],
        env=Home(home).environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.soak
def test_a_demo_of_which_a_rule_holds_leaves_a_session_with_what_was_before(
    tmp_path: Path,
) -> None:
    found, said = demo(
        tmp_path,
        *("--duration", "20", "--keep", "8s", "--record-after", "1min"),
        *("--record-on", "finished>40|p99(ttft_s)>100"),
    )

    assert found["session_ids"] == ["s1"]
    assert "finished>40: finished" in said
    path = tmp_path / "sessions.db"
    steps = led_to_it(path, "finished>40", before_s=4, ticks=8, finished=10)
    assert min(step.end_ns for step in steps) >= 0


@pytest.mark.soak
def test_a_demo_of_which_no_rule_ever_holds_leaves_nothing(tmp_path: Path) -> None:
    """As test_flight_terminal shows it on a stand-in for vLLM."""
    found, said = demo(
        tmp_path, "--duration", "6", "--record-on", "waiting>5000|p99(ttft_s)>1"
    )

    assert found["session_id"] is None
    assert found["session_ids"] == []
    assert "nothing was recorded" in said
    assert "p99(ttft_s)>1 could not be judged" in said  # too few requests for it
    assert not (tmp_path / "sessions.db").exists()
