"""Traces are read in a process of its own, which ends with us."""

import asyncio
from pathlib import Path

import psutil
import pytest

from inferwatch.errors import StorageError
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
