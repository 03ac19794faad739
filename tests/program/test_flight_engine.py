"""``inferwatch demo --record-on``: what led to it, on real vLLM."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collectors.readings import EngineInfo, Step, Tick
from inferwatch.metrics.model import Model
from inferwatch.metrics.snapshot import Window
from inferwatch.storage.recorded_readings import RecordedReadings
from inferwatch.storage.sessions.sessions import find

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("flight demo")]


def demo(home: Path, *flags: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "inferwatch.cli", "demo", "--json", *flags],
        env={
            **os.environ,
            "INFERWATCH_DB": str(home / "sessions.db"),
            "INFERWATCH_RUNTIME_DIR": str(home / "run"),
        },
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


async def test_a_rule_that_holds_leaves_a_session_with_what_was_before(
    tmp_path: Path,
) -> None:
    found, said = demo(
        tmp_path,
        *("--duration", "20", "--keep", "8s", "--record-after", "1min"),
        *("--record-on", "finished>40|p99(ttft_s)>100"),
    )

    assert found["session_ids"] == ["s1"]
    assert "finished>40: finished" in said
    row = find(tmp_path / "sessions.db", "s1")
    model, steps, infos, seen = Model(), [], [], []
    async for batch in RecordedReadings(tmp_path / "sessions.db", "s1").batches():
        for reading in batch:
            model.fold(reading)
            if isinstance(reading, Step):
                steps.append(reading)
            if isinstance(reading, EngineInfo):
                infos.append(reading)
            if isinstance(reading, Tick):
                seen.append(reading.t_ns)
    assert len(infos) == 1
    assert row.unrecorded == 0
    assert len(seen) >= 8
    # The engine's steps of the seconds before the rule held are there.
    alerts = [note for note in model.notes if "finished>40" in note.text]
    before = [step for step in steps if step.end_ns < alerts[0].t_ns - 4 * 10**9]
    assert len(before) > 50
    last = model.snapshot(seen[-1], Window.TEN_SECONDS)
    assert last.flow.finished > 20
    assert last.engines[0].model
    assert min(step.end_ns for step in steps) >= 0


def test_a_rule_that_never_holds_leaves_nothing(tmp_path: Path) -> None:
    found, said = demo(
        tmp_path, "--duration", "6", "--record-on", "waiting>5000|p99(ttft_s)>1"
    )

    assert found["session_id"] is None
    assert found["session_ids"] == []
    assert "nothing was recorded" in said
    assert "p99(ttft_s)>1 could not be judged" in said  # too few requests for it
    assert not (tmp_path / "sessions.db").exists()
