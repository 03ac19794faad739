"""Results of other tools, compared as they are, alone, by directory, with sessions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferwatch.cli.main import main
from inferwatch.cli.running.compare import result_sessions
from inferwatch.studies.compare.runs.selection import ComparisonRequest
from inferwatch.ui.app import InferwatchApp
from inferwatch.ui.compare.screen import CompareHead
from inferwatch.ui.pages import ComparePage
from tests.inferwatch.studies.compare.conftest import TinyEngine, write
from tests.inferwatch.studies.compare.test_compare_screen import ready, text_of

Run = Callable[..., tuple[int, str, str]]
SAMPLES = Path(__file__).parents[2] / "printing" / "export" / "samples"
BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)


def vllm_bench(
    path: Path, seed: int = 1, *, slow: float = 1.0, minutes: int = 0, **other: Any
) -> Path:
    """A result with 300 requests, as ``vllm bench serve --save-detailed`` saves it."""
    random = np.random.default_rng(seed)
    n, tokens = 300, 8
    start = np.cumsum(random.exponential(0.1, n))
    ttft = slow * 0.05 * np.exp(0.1 * random.standard_normal(n))
    itls = slow * 0.02 * np.exp(0.1 * random.standard_normal((n, tokens - 1)))
    ended = BEGAN + timedelta(minutes=minutes)
    document = {
        "date": ended.strftime("%Y%m%d-%H%M%S"),
        "backend": "openai",
        "model_id": "tiny",
        "request_rate": 10.0,
        "burstiness": 1.0,
        "duration": float(start[-1] + 1),
        "completed": n,
        "input_lens": [32] * n,
        "output_lens": [tokens] * n,
        "ttfts": ttft.tolist(),
        "itls": itls.tolist(),
        "start_times": (1_000 + start).tolist(),
        "queue_times": [0.0] * n,
        "errors": [""] * n,
    }
    path.write_text(json.dumps(document | other))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where imports go meanwhile; no record is there."""
    kept = tmp_path / "temporary"
    kept.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(kept))
    monkeypatch.setenv("INFERWATCH_DB", str(tmp_path / "none.db"))
    return kept


def names_of(text: str) -> list[tuple[str, list[str]]]:
    """Of each side: its name, and those of its runs."""
    return [(side["name"], side["sessions"]) for side in json.loads(text)["sides"]]


def test_two_results_are_compared_and_nothing_is_left(
    run_command: Run, folder: Path, tmp_path: Path
) -> None:
    before = vllm_bench(tmp_path / "before.json")
    after = vllm_bench(tmp_path / "after: slow.json", 2, slow=1.5)

    status, text, _ = run_command(before, after, "--json")

    found = json.loads(text)
    assert status == 0
    assert names_of(text) == [
        ("before", ["before"]),
        ("after: slow", ["after: slow"]),
    ]
    tpot = found["pairs"][0]["metrics"]["client.tpot_p50_s"]
    assert tpot["verdict"] == "worse"
    assert tpot["b"] / tpot["a"] == pytest.approx(1.5, abs=0.05)
    assert list(folder.iterdir()) == []
    assert not (tmp_path / "none.db").exists()


@pytest.mark.soak
def test_directories_of_results_are_sides_and_their_order_is_seen(
    run_command: Run, folder: Path, tmp_path: Path
) -> None:
    for side, later in (("old", 0), ("new", 5)):
        (tmp_path / side).mkdir()
        for run in range(3):
            path = tmp_path / side / f"{run}.json"
            vllm_bench(path, 10 * later + run, minutes=10 * run + later)

    _, text, _ = run_command(tmp_path / "old", tmp_path / "new", "--json")

    found = json.loads(text)
    assert [name for name, _ in names_of(text)] == ["old ×3", "new ×3"]
    checks = {each["subject"]: each for each in found["pairs"][0]["quality"]}
    assert "A B A B A B" in checks["order"]["sentence"]
    assert checks["order"]["quality"] == "good"
    assert list(folder.iterdir()) == []


def test_results_sessions_and_files_of_sessions_mix(
    run_command: Run, folder: Path, tmp_path: Path
) -> None:
    del folder
    record, other = tmp_path / "record.db", tmp_path / "other.db"
    write(record, "mine", TinyEngine(1).run(20))
    write(other, "theirs", TinyEngine(2).run(20))
    result = vllm_bench(tmp_path / "result.json")

    words = ("mine", result, "--", other, SAMPLES / "guidellm.json")
    _, text, _ = run_command("--db", record, *words, "--json")

    assert names_of(text) == [
        ("mine … result ×2", ["mine", "result"]),
        ("theirs … guidellm ×2", ["theirs", "guidellm"]),
    ]


def test_a_folder_of_aiperf_is_one_run_whatever_stands_beside_it(
    run_command: Run, folder: Path, tmp_path: Path
) -> None:
    del folder
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    for name in ("profile_export.jsonl", "profile_export_aiperf.json"):
        shutil.copy(SAMPLES / name, artifacts)
    (artifacts / "inputs.json").write_text('{"data": []}')

    _, text, _ = run_command(artifacts, SAMPLES / "guidellm.json", "--json")

    assert names_of(text)[0] == ("profile_export", ["profile_export"])


def test_results_of_one_name_are_told_apart_by_their_folders(
    run_command: Run, folder: Path, tmp_path: Path
) -> None:
    del folder
    files = []
    for place, name in enumerate(("monday", "friday")):
        (tmp_path / name).mkdir()
        files.append(vllm_bench(tmp_path / name / "result.json", place))

    _, text, _ = run_command(*files, "--json")

    assert [name for name, _ in names_of(text)] == ["monday/result", "friday/result"]


def test_a_result_that_is_not_there_is_no_session_to_look_for(
    run_command: Run, folder: Path, tmp_path: Path
) -> None:
    del folder
    there = vllm_bench(tmp_path / "there.json")

    status, _, errors = run_command(there, tmp_path / "their.json")

    assert status == 2
    assert "their.json: there is no such file" in errors


def several(path: Path) -> Path:
    """A report of guidellm with two benchmarks."""
    report = json.loads((SAMPLES / "guidellm.json").read_text())
    report["benchmarks"] *= 2
    path.write_text(json.dumps(report))
    return path


def test_a_run_of_a_file_with_several_is_named(
    run_command: Run, folder: Path, tmp_path: Path
) -> None:
    del folder
    sweep = several(tmp_path / "sweep.json")

    status, _, errors = run_command(sweep, SAMPLES / "vllm_bench.json")
    _, text, _ = run_command(f"{sweep}:1", f"{sweep}:sweep-2", "--json")

    assert status == 2
    assert f"holds 2 runs: name one, as {sweep}:1 (sweep-1, sweep-2)" in errors
    assert [name for name, _ in names_of(text)] == ["sweep-1", "sweep-2"]


def summary(**more: object) -> str:
    """As ``inferwatch load --json`` prints it, in part."""
    return json.dumps({"run_id": "load-1", "cross_check": None, **more})


NO_RESULTS = [
    ("nonsense", "expected a result of `vllm bench serve"),
    ("", "expected a result of `vllm bench serve"),
    ("{}", "expected a result of `vllm bench serve"),
    ("[" * 100_000, "expected a result of `vllm bench serve"),
    ('{"model_id": "m", "completed": 3}', "no interval can be made"),
    ('{"model_id": "m", "completed": 3}', "--save-detailed"),
    ('{"aiperf_version": "1"}', "its requests, profile_export.jsonl, are not"),
    (summary(session_id="s7"), "in the record, as session s7"),
    (summary(session_id=None), "--format vllm-bench"),
]
"""What is in a file, and what is said of it."""


@pytest.mark.parametrize(
    ("in_a_folder", "content", "why"),
    [
        pytest.param(
            *(in_a_folder, content, why),
            marks=() if in_a_folder == (number % 2 == 0) else pytest.mark.soak,
        )
        for in_a_folder in (False, True)
        for number, (content, why) in enumerate(NO_RESULTS)
    ],
    ids=lambda each: str(each)[:30],
)
def test_what_is_no_result_is_named_and_says_why(
    run_command: Run,
    folder: Path,
    tmp_path: Path,
    content: str,
    why: str,
    in_a_folder: bool,
) -> None:
    good = vllm_bench(tmp_path / "good.json")
    runs = tmp_path / "runs"
    runs.mkdir()
    vllm_bench(runs / "a.json", 2)
    (runs / "broken.json").write_text(content)

    word = runs if in_a_folder else runs / "broken.json"
    status, _, errors = run_command(good, word)

    assert status == 2
    assert "broken.json" in errors
    assert why in errors
    assert list(folder.iterdir()) == []


def test_a_copy_of_a_result_is_no_second_run(
    run_command: Run, folder: Path, tmp_path: Path
) -> None:
    first = vllm_bench(tmp_path / "first.json")
    shutil.copy(first, tmp_path / "copy.json")
    other = vllm_bench(tmp_path / "other.json", 2)

    for words in (
        (first, tmp_path / "copy.json", "--", other),
        (first, tmp_path / "copy.json"),
    ):
        status, _, errors = run_command(*words)
        assert status == 2
        assert "copy.json is a copy of" in errors
    status, _, errors = run_command(first, first)
    assert "first is given twice" in errors
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_says_so(
    run_command: Run, folder: Path, tmp_path: Path
) -> None:
    del folder
    secret = vllm_bench(tmp_path / "secret.json")
    secret.chmod(0)

    status, _, errors = run_command(secret, vllm_bench(tmp_path / "b.json", 2))

    assert status == 2
    assert "secret.json: Permission denied" in errors


def test_all_is_removed_by_the_whole_program_too(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the group of commands, whose contexts end otherwise."""
    files = [vllm_bench(tmp_path / f"{place}.json", place) for place in (1, 2)]
    ask = ["--fail-if", "client.tpot_p50_s > -90%", "--text"]

    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, files), *ask])

    assert ended.value.code == 1
    assert "FAILED" in capsys.readouterr().out
    assert list(folder.iterdir()) == []


async def test_the_screen_compares_results_and_directories(
    folder: Path, tmp_path: Path
) -> None:
    """Once more without the warm-up: each file is imported only once."""
    runs = tmp_path / "runs"
    runs.mkdir()
    for seed in (2, 3):
        vllm_bench(runs / f"{seed}.json", seed, slow=1.5)
    words = str(vllm_bench(tmp_path / "before.json")), str(runs)

    with result_sessions() as results:
        wanted = ComparisonRequest(
            database=tmp_path / "none.db", sessions=words, results=results
        )
        app = InferwatchApp(ComparePage(wanted))
        async with app.run_test(size=(120, 40)) as pilot:
            for key in ("w", None):
                await ready(pilot)
                head = text_of(app, CompareHead)
                assert "runs ×2" in head
                assert "before" in head
                imported = sorted(path.name for path in folder.glob("*/*.db"))
                assert imported == ["1.db", "2.db", "3.db"]
                if key:
                    await pilot.press(key)
    assert list(folder.iterdir()) == []


@pytest.mark.process
def test_nothing_is_left_after_ctrl_c(tmp_path: Path) -> None:
    kept = tmp_path / "temporary"
    kept.mkdir()
    files = [vllm_bench(tmp_path / f"{place}.json", place) for place in range(40)]
    words = [*map(str, files[:20]), "--", *map(str, files[20:])]
    running = subprocess.Popen(
        [sys.executable, "-m", "inferwatch.cli", "compare", *words],
        env={**os.environ, "TMPDIR": str(kept)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    # Before its folder, Python tries the place out with a file of its own.
    while not any(map(Path.is_dir, kept.iterdir())):
        assert time.monotonic() < deadline, "it made no folder to import into"
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)

    assert running.returncode == 130
    assert "Traceback" not in errors
    assert list(kept.iterdir()) == []
