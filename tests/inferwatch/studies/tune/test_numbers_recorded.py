"""What is read of recorded loads is what ``inferwatch load`` itself found."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.studies.tune.plan import Goal, TunePlan
from inferwatch.studies.tune.reading.numbers import numbers_of

COMMAND = [sys.executable, "-P", "-m", "inferwatch.cli", "load"]
SLO = "ttft_s<150ms"


def loaded(url: str, database: Path, *options: str) -> dict[str, Any]:
    asked = ("--slo", SLO, "--seed", "7", "--json", "--db", str(database))
    done = subprocess.run(
        [*COMMAND, url, *asked, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tune_plan(goal: Goal = Goal.GOODPUT) -> TunePlan:
    load = LoadPlan(run_id="x", url="http://x", model="m", slo=SLO)
    return TunePlan(tune_id="t1", model="m", vary=(), goal=goal, load=load)


@pytest.mark.process
def test_a_run_has_the_same_numbers(truth_url: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    short = ("--rate", "40", "--duration", "2", "--output-tokens", "5")
    said = loaded(truth_url, path, *short, "--warmup", "0.5")

    found = numbers_of(path, said["session_id"], tune_plan())

    assert found.requests == said["requests"]["sent"] > 40
    assert found.tokens_per_s == said["tokens"]["output_per_s"]
    assert found.goodput_per_s == said["slo"]["goodput_per_s"]
    assert found.good_share == said["slo"]["share"]
    for name in ("ttft_s", "tpot_s", "itl_s", "e2el_s"):
        assert found.latencies[name].quantiles.p99 == said[name]["p99"]


@pytest.mark.process
@pytest.mark.soak
def test_a_search_has_the_same_knee(truth_url: str, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    said = loaded(
        truth_url,
        path,
        *("--find-rate", "--rate", "18", "--arrival", "constant", "--duration", "1"),
        *("--model", "ttft=0.05,itl=0.001,slots=2", "--output-tokens", "2"),
    )

    found = numbers_of(path, said["session_id"], tune_plan(Goal.KNEE))

    assert said["find_rate"]["ended"]
    assert found.knee_per_s == said["find_rate"]["highest_held_per_s"]
