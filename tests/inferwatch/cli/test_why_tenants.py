"""``inferwatch why --tenants`` tells who made whom wait."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from collectors.contract.clock import SessionClock
from inferwatch.cli.main import inferwatch
from inferwatch.errors import UsageError
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.record.writing.recorder import Recorder
from tests.inferwatch.metrics.findings.planted import SHARED
from tests.inferwatch.metrics.findings.simulated_engine import S

NAMES = {False: "chat\x1b[31m", True: "長" * 40}


@pytest.fixture
def recorded(
    record: Callable[..., Recorder], path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parent / "cache"))
    named = replace(SHARED, header_of=lambda prompt: NAMES[prompt > 1_000])
    recorder = record(clock=SessionClock(monotonic_ns() - 30 * S))
    pipeline = Pipeline(Model(), recorder)
    for reading in named.run(30):
        pipeline.take([reading])
    pipeline.close()
    recorder.close()
    return path


def test_text_fits_a_terminal_and_is_safe(recorded: Path) -> None:
    result = CliRunner().invoke(inferwatch, ["why", str(recorded), "--tenants"])

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert "\x1b" not in result.stdout
    assert "of the queue time of all others" in " ".join(lines)
    assert any(line.startswith("chat") for line in lines)


def test_json_adds_up(recorded: Path) -> None:
    arguments = ["why", str(recorded), "--tenants", "--json"]
    told = json.loads(CliRunner().invoke(inferwatch, arguments).stdout)["tenants"]

    rows = told["tenants"]
    assert {each["name"] for each in rows} == set(NAMES.values())
    for name in ("requests", "queue_ns", "gpu_ns"):
        assert sum(each[name] for each in rows) == told[name]
    caused = sum(each["caused_ns"] for each in rows)
    assert caused == sum(each["queue_by_others_ns"] for each in rows) > 0


def test_of_one_request_it_is_wrong_usage(recorded: Path) -> None:
    arguments = ["why", str(recorded), "r1", "--tenants"]
    result = CliRunner().invoke(inferwatch, arguments, standalone_mode=False)

    assert isinstance(result.exception, UsageError)
    assert "leave REQUEST out" in str(result.exception)
