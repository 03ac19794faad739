"""Traces are read in a process of its own, which ends with us."""

import asyncio
import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from inferwatch.errors import ReadFailedError, StorageError
from inferwatch.profiles import reading
from inferwatch.profiles.reading import read_profile, report_of
from inferwatch.profiles.report import ProfileReport, ReportJob

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
    with pytest.raises(ReadFailedError, match="No such file"):
        report_of(ReportJob(files=[str(tmp_path / "gone.json")]))


def test_a_trace_that_is_damaged_is_no_failure_to_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("no trace")

    assert not report_of(ReportJob(files=[str(bad), str(REAL)])).is_partial
    with pytest.raises(StorageError) as told:
        report_of(ReportJob(files=[str(bad)]))
    assert not isinstance(told.value, ReadFailedError)


@pytest.mark.parametrize("error", [MemoryError(), OSError(5, "Input/output error")])
def test_a_report_that_lacks_a_trace_by_a_failure_is_partial(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    read = gzip.open

    def fails_once(*_: Any) -> Any:
        monkeypatch.setattr(gzip, "open", read)
        raise error

    monkeypatch.setattr(gzip, "open", fails_once)
    report = report_of(ReportJob(files=[str(REAL)] * 2))

    assert report.is_partial
    assert len(report.ranks) == len(report.problems) == 1
    assert str(REAL) in report.problems[0]


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


def large(tmp_path: Path) -> ReportJob:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + " " * (200 << 20))
    return ReportJob(files=[str(path)])


async def begun(job: ReportJob) -> tuple[asyncio.Task[ProfileReport], psutil.Process]:
    """Begin to read; return who waits, and the process that reads."""
    us, before = psutil.Process(), {*psutil.Process().children()}
    task = asyncio.create_task(read_profile(job))
    while not (mine := {*us.children()} - before):  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)
    return task, mine.pop()


@pytest.mark.process
async def test_a_reader_that_was_ended_has_failed(tmp_path: Path) -> None:
    task, reader = await begun(large(tmp_path))
    reader.kill()

    with pytest.raises(ReadFailedError, match="ended with -9"):
        await task


@pytest.mark.process
async def test_a_report_that_has_no_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "LARGEST_REPORT", 1000)

    with pytest.raises(StorageError, match="report is larger"):
        await read_profile(ReportJob(files=[str(REAL)]))


@pytest.mark.process
def test_a_trace_that_takes_all_memory_ends_its_reader_with_a_sentence(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [' + "{}," * 2_000_000 + "{}]}")
    program = (
        "import sys; from inferwatch.profiles import reading; "
        "reading.MOST_MEMORY = 100 << 20; sys.exit(reading.main())"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        input=msgspec.json.encode(ReportJob(files=[str(path)])) + b"\n",
        capture_output=True,
        check=False,
    )

    assert done.returncode == reading.READ_FAILED
    assert b"more memory was needed" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.process
async def test_who_stops_waiting_leaves_no_process(tmp_path: Path) -> None:
    task, reader = await begun(large(tmp_path))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not reader.is_running()
