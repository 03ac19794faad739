"""Traces are read in a process of its own, which ends with us."""

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from inferwatch.errors import StorageError
from inferwatch.profiles import reading
from inferwatch.profiles.reading import read_profile, report_of
from inferwatch.profiles.report import ReportJob

REAL = Path(__file__).parent / "cpu_vllm_0.32.json.gz"


def test_a_trace_that_is_damaged_is_a_problem_and_not_the_end(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("no trace")

    report = report_of(ReportJob(files=[str(bad), str(REAL)]))

    assert len(report.ranks) == 1
    assert str(bad) in report.problems[0]


def test_without_a_trace_there_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no trace to read"):
        report_of(ReportJob(files=[]))
    with pytest.raises(StorageError, match="No such file"):
        report_of(ReportJob(files=[str(tmp_path / "gone.json")]))


def test_progress_is_that_of_all_traces() -> None:
    heard: list[float] = []

    report_of(ReportJob(files=[str(REAL)] * 4), heard.append)

    assert heard == sorted(heard)
    assert heard[0] == 0.25
    assert heard[-1] == 1.0


@pytest.mark.process
async def test_the_process_reports_what_we_would() -> None:
    job, heard = ReportJob(files=[str(REAL)]), list[float]()

    report = await read_profile(job, heard.append)

    assert report == report_of(job)
    assert heard[-1] == 1.0


@pytest.mark.process
async def test_what_goes_wrong_there_is_said_here(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("no trace")

    with pytest.raises(StorageError, match="no trace of torch's profiler"):
        await read_profile(ReportJob(files=[str(path)]))


@pytest.mark.process
async def test_who_stops_waiting_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + " " * (200 << 20))
    reading = asyncio.create_task(read_profile(ReportJob(files=[str(path)])))
    ours = psutil.Process()
    while not ours.children():  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)

    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    assert ours.children() == []


@pytest.mark.process
def test_a_trace_that_would_fill_the_memory_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    event = '{"ph": "X", "cat": "cpu_op", "name": "%s", "ts": 1, "dur": 1}'
    names = (event % f"{number}{'x' * 100_000}" for number in range(3_000))
    path.write_text('{"traceEvents": [' + ", ".join(names) + "]}")
    reader = f"ulimit -d 200000; exec {sys.executable} -m inferwatch.profiles"

    done = subprocess.run(
        ["/bin/sh", "-c", reader],
        input=msgspec.json.encode(ReportJob(files=[str(path)])) + b"\n",
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 1
    said = done.stderr.decode().splitlines()
    assert said[-1] == "its traces take more than 0.2 GB to read"
    assert done.stdout == b""


@pytest.mark.process
async def test_a_report_larger_than_any_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "LARGEST_REPORT", 1_000)

    with pytest.raises(StorageError, match="its report is larger than"):
        await read_profile(ReportJob(files=[str(REAL)]))
