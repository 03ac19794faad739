"""A tune without a screen: its lines, its result, its exit status."""

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inferwatch.cli.running.tune import (
    carry_out,
    list_tunes,
    print_result,
    recorded_tune,
)
from inferwatch.cli.running.tune_plan import TuneOptions
from inferwatch.errors import SourceError
from inferwatch.studies.tune.running.journal import stored_tune
from tests.inferwatch.cli.test_tune_options import options_of
from tests.inferwatch.studies.tune.scripted_tune import Bench, plan_of

SCORES = {"32": 10.0, "4": 4.0, "8": 12.0, "16": 20.0}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "sessions.db", SCORES, refused={})


def asked(*words: str) -> TuneOptions:
    return options_of("demo", "--vary", "max-num-seqs=8,16", "--headless", *words)


def test_the_result_is_on_stdout_and_progress_on_stderr(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    status = carry_out(bench.run(plan_of(4, 8, 16)), asked())

    said = capsys.readouterr()
    assert status == 0
    assert "max-num-seqs 16" in said.out.splitlines()[0]
    assert "--max-num-seqs=16" in said.out
    assert "#1 max-num-seqs 32: 10.0 good requests/s" in said.err
    assert "recorded as tune t1: `inferwatch tune --show t1`" in said.err
    assert "#1 " not in said.out


def test_json_is_one_object_and_nothing_else(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    carry_out(bench.run(plan_of(4, 16)), asked("--json"))

    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["tune_id"] == "t1"
    assert found["outcome"] == "done"
    assert found["best"] == {"max-num-seqs": "16"}
    assert len(found["trials"]) == len(bench.loads)


def test_markdown_and_a_page_are_written(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "tune.html"

    carry_out(bench.run(plan_of(4, 16)), asked("--markdown", "--html", str(page)))

    assert "|" in capsys.readouterr().out
    assert "max-num-seqs" in page.read_text("utf-8")


def test_colours_are_for_terminals_that_want_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    run = bench.run(plan_of(4, 16))
    carry_out(run, asked())
    printed = {}
    capsys.readouterr()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for wish in ("", "1"):
        monkeypatch.setenv("NO_COLOR", wish)
        print_result(run, asked())
        printed[wish] = capsys.readouterr().out

    assert "\x1b[32m" in printed[""]
    assert "\x1b" not in printed["1"]


def test_what_does_not_start_is_told_and_the_others_are_measured(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.refused["64"] = "no memory for the KV cache"

    status = carry_out(bench.run(plan_of(8, 64)), asked())

    said = capsys.readouterr()
    assert status == 0
    assert "no memory for the KV cache" in said.out
    assert "max-num-seqs 64: did not start: no memory for the KV cache" in said.err


def test_interrupted_it_tells_what_it_has_and_how_it_goes_on(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.on_load = lambda number, stop: stop.set() if number == 3 else None

    status = carry_out(bench.run(plan_of(4, 8, 16)), asked())

    said = capsys.readouterr()
    assert status == 130
    assert (
        "tune t1 interrupted; continue with `inferwatch tune --resume t1`" in said.err
    )
    assert "max-num-seqs" in said.out


def test_resumed_it_comes_to_the_same_result(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.on_load = lambda number, stop: stop.set() if number == 3 else None
    carry_out(bench.run(plan_of(4, 8, 16)), asked())
    bench.on_load = lambda *_: None
    before = len(stored_tune(bench.database, "t1").records)
    capsys.readouterr()

    status = carry_out(bench.resumed(), asked("--json"))

    said = capsys.readouterr()
    found = json.loads(said.out)
    assert status == 0
    assert before == 2
    assert "goes on after trial 2" in said.err
    assert "#2 " not in said.err
    assert "#3 " in said.err
    assert found["best"] == {"max-num-seqs": "16"}


def test_nothing_measured_is_status_1(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.refused |= dict.fromkeys(("4", "8", "16", "32"), "no memory")

    status = carry_out(bench.run(plan_of(4, 8)), asked())

    assert status == 1
    assert "no memory" in capsys.readouterr().out


def test_what_was_measured_before_a_failure_is_told(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(number: int, stop: asyncio.Event) -> None:
        del stop
        if number == 3:
            raise SourceError("the engine is gone")

    bench.on_load = fail

    with pytest.raises(SourceError, match="is gone"):
        carry_out(bench.run(plan_of(4, 8, 16)), asked())

    said = capsys.readouterr()
    assert "max-num-seqs 32" in said.out
    assert "--resume t1" in said.err


def test_tunes_of_the_record_are_listed_the_latest_first(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    carry_out(bench.run(plan_of(4, 16, name="nightly")), asked())
    capsys.readouterr()

    assert list_tunes(bench.database, as_json=False) == 0
    line = capsys.readouterr().out
    assert list_tunes(bench.database, as_json=True) == 0
    (found,) = json.loads(capsys.readouterr().out)

    assert line.split()[0] == "t1"
    assert "done" in line
    assert "nightly demo goodput" in line
    assert "max-num-seqs=4,16" in line
    assert found["tune_id"] == "t1"
    assert found["vary"] == {"max-num-seqs": ["4", "16"]}
    assert found["trials"] == len(bench.loads)


def test_a_tune_whose_sessions_are_gone_is_told_of_all_the_same(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    carry_out(bench.run(plan_of(4, 16)), asked())
    capsys.readouterr()

    found = recorded_tune(bench.database, "t1")
    shown = replace(found, outcome=found.outcome)
    status = print_result(shown, asked())

    assert found.outcome == "done"
    assert status == 1  # its sessions hold no load: nothing can be told
    assert "cannot be read" in " ".join(found.progress.said)
