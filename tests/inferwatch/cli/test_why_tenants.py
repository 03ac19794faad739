"""``inferwatch why --tenants`` tells who made whom wait."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from collectors.contract.clock import SessionClock, monotonic_ns
from inferwatch.cli.main import inferwatch
from inferwatch.errors import UsageError
from inferwatch.live.pipeline import Pipeline
from inferwatch.metrics.model.model import Model
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import SnapshotQuery
from inferwatch.metrics.tenants.view import Tenants
from inferwatch.printing.summary.tenants import (
    HEADING,
    fairness_sentence,
    tenant_rows,
)
from inferwatch.record.writing.recorder import Recorder
from tests.inferwatch.metrics.findings.planted import SHARED
from tests.inferwatch.metrics.findings.simulated_engine import S

SECONDS = 30
NAMES = {False: "chat\x1b[31m", True: "長" * 40}


@pytest.fixture
def recorded(
    record: Callable[..., Recorder], path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parent / "cache"))
    named = replace(SHARED, header_of=lambda prompt: NAMES[prompt > 1_000])
    recorder = record(clock=SessionClock(monotonic_ns() - SECONDS * S))
    pipeline = Pipeline(Model(), recorder)
    for reading in named.run(SECONDS):
        pipeline.take([reading])
    pipeline.close()
    recorder.close()
    return path


def shared() -> Tenants:
    model = Model()
    for reading in SHARED.run(130):
        model.fold(reading)
    query = SnapshotQuery(Window.SESSION, tenants=True)
    found = model.snapshot(130 * S, query).tenants
    assert found is not None
    return found


def test_text_fits_a_terminal_and_is_safe(recorded: Path) -> None:
    result = CliRunner().invoke(inferwatch, ["why", str(recorded), "--tenants"])

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert "\x1b" not in result.stdout
    assert "of the queue time of all others" in " ".join(lines)
    assert any(line.startswith("chat") for line in lines)


def test_its_queue_is_told_apart_from_that_of_the_breakdown(recorded: Path) -> None:
    result = CliRunner().invoke(inferwatch, ["why", str(recorded), "--tenants"])

    text = " ".join(result.stdout.split())
    assert "in the engine's queue, without the wait for the running step" in text


def test_names_that_begin_alike_are_told_apart_by_their_end() -> None:
    names = [f"team-platform-research-{number}" for number in range(2)]
    tenants = shared()
    alike = [
        replace(each, name=name)
        for each, name in zip(tenants.tenants, names, strict=True)
    ]

    rows = tenant_rows(replace(tenants, tenants=tuple(alike)))

    assert [row[0] for row in rows] == ["…rm-research-0", "…rm-research-1"]


def test_fairness_says_what_it_does_not_see() -> None:
    said = fairness_sentence(shared())

    assert said is not None
    assert "by what was left over at the end of a minute" in said


@pytest.mark.parametrize(
    ("has_engine", "why"), [(True, "No request had ended"), (False, "takes a probe")]
)
def test_why_nobody_is_told_of_is_said(
    recorded: Path, has_engine: bool, why: str
) -> None:
    if not has_engine:
        with closing(sqlite3.connect(recorded)) as file, file:
            file.execute("DELETE FROM engines")
    arguments = ["why", str(recorded), "--tenants", "--at", "0s"]

    assert why in CliRunner().invoke(inferwatch, arguments).stdout


def test_json_adds_up(recorded: Path) -> None:
    arguments = ["why", str(recorded), "--tenants", "--json"]
    told = json.loads(CliRunner().invoke(inferwatch, arguments).stdout)["tenants"]

    rows = told["tenants"]
    assert {each["name"] for each in rows} == set(NAMES.values())
    for name in ("requests", "queue_ns", "gpu_ns"):
        assert sum(each[name] for each in rows) == told[name]
    caused = sum(each["caused_ns"] for each in rows)
    assert caused == sum(each["queue_by_others_ns"] for each in rows) > 0


def test_summaries_and_pages_tell_of_several_tenants(
    recorded: Path, tmp_path: Path
) -> None:
    def printed(*arguments: str) -> str:
        result = CliRunner().invoke(inferwatch, [*arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    summary = json.loads(printed("replay", str(recorded), "--json"))
    page = tmp_path / "session.html"
    printed("export", str(recorded), "-o", str(page))

    why = json.loads(printed("why", str(recorded), "--tenants", "--json"))["tenants"]
    assert summary["tenants"] == why
    assert HEADING in page.read_text()


def test_of_one_request_it_is_wrong_usage(recorded: Path) -> None:
    arguments = ["why", str(recorded), "r1", "--tenants"]
    result = CliRunner().invoke(inferwatch, arguments, standalone_mode=False)

    assert isinstance(result.exception, UsageError)
    assert "leave REQUEST out" in str(result.exception)
