"""Exports of Nsight Systems are read as traces, one of each worker."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from inferwatch.errors import ReadFailedError, StorageError
from inferwatch.profiles.nsys_file import NO_START, WHOLE_GRAPHS, read_nsys
from inferwatch.profiles.reading import read_traces, report_of
from inferwatch.profiles.report import KernelClass, ReportJob, StepSpan
from inferwatch.profiles.trace_file import Category
from tests.inferwatch.profiles.nsys_database import (
    BEGUN_NS,
    GRAPHS,
    MS,
    SCHEMA,
    NsysDatabase,
    global_pid,
    global_tid,
    ns,
)

STEP = "execute_context_0(0)_generation_4(4)"
FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Params)"


@pytest.fixture
def export(tmp_path: Path) -> NsysDatabase:
    """Two steps of one worker."""
    export = NsysDatabase(tmp_path / "steps.sqlite")
    for at, is_id in ((0, False), (10, True)):
        export.step(STEP, at, at + 4, global_tid(7, 7), is_id=is_id)
        export.kernel("nvjet_tst_64x8", at + 1, at + 5, at + 0.5, at + 1)
        export.kernel(FLASH, at + 5, at + 7, at + 0.6, at + 2)
    return export


def test_steps_of_an_export_are_those_of_the_engine(export: NsysDatabase) -> None:
    steps = [
        StepSpan(
            index=index,
            start_ns=ns(at - 0.2),
            end_ns=ns(at + 8),
            duration_ns=ns(8.2),
            prefill_tokens=0,
            decode_tokens=4,
            requests=4,
            decode_only=True,
        )
        for index, at in ((41, 0), (42, 10))
    ]

    report = report_of(
        ReportJob(files=[str(export.path)], realtime_offset_ns=BEGUN_NS, steps=steps)
    )

    (rank,) = report.ranks
    assert report.problems == []
    assert [each.index for each in rank.steps] == [41, 42]
    for step in rank.steps:
        assert step.times_ns == {
            KernelClass.GEMM: 4 * MS,
            KernelClass.ATTENTION: 2 * MS,
        }
        assert step.launches == 2
    assert rank.steps[1].begin_ns == ns(9.8)
    assert rank.steps[1].host_ns == ns(1.2)
    assert (rank.skipped, rank.events) == (0, 10)
    assert rank.trace_bytes == export.path.stat().st_size


def test_moments_are_those_of_the_wall_clock(export: NsysDatabase) -> None:
    (trace,) = read_nsys(export.path)

    kernels = trace.begin_ns[trace.category == Category.KERNEL]
    assert kernels.min() == BEGUN_NS + MS
    assert {trace.threads[each] for each in trace.thread} == {(0, 13), (7, 7)}


def test_calls_are_named_without_the_version_of_cuda(export: NsysDatabase) -> None:
    export.kernel("k", 20, 21, 19, 99, call="cudaGraphLaunch_v10000")

    (trace,) = read_nsys(export.path)

    calls = trace.label[trace.category == Category.RUNTIME]
    assert {trace.names[each] for each in calls} == {
        "cudaLaunchKernel",
        "cudaGraphLaunch",
    }


def test_copies_have_names_and_belong_to_their_step(export: NsysDatabase) -> None:
    where = (0, 1, 13, 77, global_pid(7))
    export.row("CUPTI_ACTIVITY_KIND_MEMCPY", ns(17), ns(18), *where, 4096, 1)
    export.row("CUPTI_ACTIVITY_KIND_MEMSET", ns(18), ns(19), *where, 0, 64)
    export.call("cudaMemcpyAsync_v3020", 13, 77)

    (rank,) = report_of(ReportJob(files=[str(export.path)])).ranks

    assert rank.steps[1].times_ns[KernelClass.COPY] == 2 * MS
    assert {"Memcpy HtoD", "Memset"} <= {each.name for each in rank.kernels}


def test_each_process_with_kernels_is_a_worker_by_its_device(tmp_path: Path) -> None:
    export = NsysDatabase(tmp_path / "steps.sqlite")
    # Numbers of calls repeat between processes, and the first to start is device 1.
    for process, device, name in ((5, 1, "gemm_of_one"), (6, 0, "gemm_of_zero")):
        export.step(STEP, 0, 9, global_tid(process, process), is_id=False)
        export.kernel(name, 1, 3 + device, 0.5, 1, process, device)
    export.call("cudaFree_v3020", 1, 9, process=4)  # the front end's, without kernels

    report = report_of(ReportJob(files=[str(export.path)]))

    assert [each.rank for each in report.ranks] == [0, 1]
    assert [each.kernels[0].name for each in report.ranks] == [
        "gemm_of_zero",
        "gemm_of_one",
    ]
    assert [each.steps[0].times_ns[KernelClass.GEMM] for each in report.ranks] == [
        2 * MS,
        3 * MS,
    ]
    sizes = sum(each.trace_bytes for each in report.ranks)
    assert sizes <= export.path.stat().st_size


def test_graphs_that_were_recorded_whole_are_said(tmp_path: Path) -> None:
    export = NsysDatabase(tmp_path / "steps.sqlite", SCHEMA + GRAPHS)
    export.step(STEP, 0, 2, global_tid(7, 7), is_id=False)
    export.row(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        *(ns(1), ns(5), 0, 1, 13, 5, global_pid(7), 3, 4),
    )
    export.call("cudaGraphLaunch_v10000", 0.5, 5)

    report = report_of(ReportJob(files=[str(export.path)]))

    assert report.problems == [f"steps.sqlite: {WHOLE_GRAPHS}"]
    assert report.ranks[0].steps[0].times_ns == {KernelClass.OTHER: 4 * MS}
    assert report.ranks[0].steps[0].graph_launches == 1


def test_an_export_without_its_beginning_says_so(tmp_path: Path) -> None:
    export = NsysDatabase(tmp_path / "steps.sqlite", begun_ns=None)
    export.kernel("gemm", 1, 2, 0, 1)

    (trace,) = read_nsys(export.path)

    assert trace.problems == [NO_START]


def test_rows_that_are_no_events_are_counted_and_left_out(
    export: NsysDatabase,
) -> None:
    where = (0, 1, 13, 50, global_pid(7), 1, 1, 1, None)
    for begin, end in ((9, 5), ("soon", 5), (1 << 62, (1 << 62) + 1)):
        export.row("CUPTI_ACTIVITY_KIND_KERNEL", begin, end, *where)
    # Marks and names of threads are no ranges: not read, and no fault either.
    mark = (None, None, None, "mark", global_tid(7, 7), None, None, 0)
    export.row("NVTX_EVENTS", 3, None, 34, *mark)

    (trace,) = read_nsys(export.path)

    assert trace.skipped == 3
    assert trace.events == 10


def test_wrong_values_in_other_columns_are_no_end(export: NsysDatabase) -> None:
    where = ("x", 1, 1.5, "y", global_pid(7), "name", 1, 1, None)
    export.row("CUPTI_ACTIVITY_KIND_KERNEL", 1, 5, *where)

    (trace,) = read_nsys(export.path)

    assert trace.events == 11
    assert "name" in trace.names


def test_progress_ends_with_the_whole(export: NsysDatabase) -> None:
    heard: list[float] = []

    read_traces(export.path, heard.append)

    assert heard == sorted(heard)
    assert heard[-1] == 1.0


def test_reading_leaves_the_file_and_its_folder_as_they_are(
    export: NsysDatabase,
) -> None:
    before, folder = export.path.read_bytes(), export.path.parent
    export.path.chmod(0o400)

    read_nsys(export.path)

    assert export.path.read_bytes() == before
    assert [each.name for each in folder.iterdir()] == [export.path.name]


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE engines (name TEXT)")
    database.close()

    with pytest.raises(StorageError, match="no export of Nsight Systems with kernels"):
        read_nsys(path)


def test_a_view_is_not_taken_for_a_table(tmp_path: Path) -> None:
    path = tmp_path / "trap.sqlite"
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
            "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start FROM n"
        )
    database.close()

    with pytest.raises(StorageError, match="no export of Nsight Systems with kernels"):
        read_nsys(path)


@pytest.mark.parametrize("rest", [b"", b"\xff" * 4096])
def test_a_damaged_database_is_said_in_a_line(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "steps.sqlite"
    path.write_bytes(b"SQLite format 3\x00" + rest)

    with pytest.raises(StorageError, match="no export of Nsight Systems"):
        read_traces(path)


def test_an_export_that_was_cut_short_is_said(export: NsysDatabase) -> None:
    whole = export.path.read_bytes()
    export.path.write_bytes(whole[: len(whole) // 2])

    with pytest.raises(StorageError, match="no export of Nsight Systems"):
        read_nsys(export.path)


def test_a_disk_that_fails_says_nothing_of_the_export(
    export: NsysDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = sqlite3.OperationalError("disk I/O error")
    failure.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ

    def fails(*_: Any, **__: Any) -> Any:
        raise failure

    monkeypatch.setattr(sqlite3, "connect", fails)
    with pytest.raises(ReadFailedError, match="disk I/O error"):
        read_nsys(export.path)


def test_a_report_is_to_be_exported_first(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nsys export --type sqlite"):
        read_traces(tmp_path / "steps.nsys-rep")
