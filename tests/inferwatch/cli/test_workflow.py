"""The workflow of docs/compare.md: its steps are run, on a stand-in for vLLM."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inferwatch.cli.test_docs import ROOT, blocks

yaml = pytest.importorskip("yaml", reason="reads the workflow")

STAND_IN = """
import socket, sys
from inferwatch.loadgen.truth.server import TruthServer
port = int(sys.argv[sys.argv.index("--port") + 1])
TruthServer(socket.create_server(("127.0.0.1", port))).serve()
"""
ALONE = (" after2 after3", "")
Step = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def workflow() -> dict[str, Any]:
    """As GitHub reads it."""
    (text,) = (
        block.text
        for block in blocks(ROOT / "docs" / "compare.md")
        if block.language == "yaml"
    )
    read: dict[str, Any] = yaml.safe_load(text)
    return read


@pytest.fixture
def step(workflow: dict[str, Any], tmp_path: Path) -> Step:
    """Runs the step of that name, with less load, as a runner would."""
    programs = tmp_path / "bin"
    programs.mkdir()
    stand_in = programs / "stand_in.py"
    stand_in.write_text(STAND_IN)
    for name, words in (
        ("vllm", f"{stand_in}"),
        ("inferwatch", "-m inferwatch"),
    ):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        program.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (job,) = workflow["jobs"].values()
    runs = {each["name"]: each["run"] for each in job["steps"] if "name" in each}
    runner = {
        **os.environ,
        **workflow["env"],
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }

    def run(name: str, runs_a_side: int = 3) -> subprocess.CompletedProcess[str]:
        for usual, here in (
            ("8000", str(port)),
            ("--duration 120", "--duration 1"),
            ("--retry-delay 5", "--retry-delay 1"),
        ):
            runs[name] = runs[name].replace(usual, here)
        if runs_a_side == 1:
            for usual, here in (("1 2 3", "1"), (" before2 before3", ""), ALONE):
                runs[name] = runs[name].replace(usual, here)
        return subprocess.run(
            ["bash", "-e", "-c", runs[name]],
            cwd=tmp_path,
            env=runner,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


@pytest.mark.process
@pytest.mark.parametrize("runs", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_every_step_of_the_workflow_does_what_it_says(
    step: Step, tmp_path: Path, runs: int
) -> None:
    measured = step("Measure in turn, A B A B A B", runs)
    assert measured.returncode == 0, measured.stderr

    compared = step("Compare", runs)
    drawn = step("Draw", runs)

    assert compared.returncode == 4, compared.stderr
    summary = (tmp_path / "summary.md").read_text("utf-8")
    assert summary.startswith("### inferwatch compare: ")
    if runs == 1:
        assert "after1 against before1" in summary
    else:
        assert "after ×3 against before ×3" in summary
        assert "3 runs against 3" in summary
        assert "in turn: A B A B A B" not in summary  # good, so only its subject
        assert "order" in summary
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "change.html").read_text("utf-8").startswith("<!doctype html>")
