"""Reads the traces of a profile in a process of its own, which may take its time.

The process is niced, so that it takes nothing from the engine, and ends with us.
"""

import asyncio
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import structs

from inferwatch.errors import StorageError
from inferwatch.profiles.join import join
from inferwatch.profiles.nsys_file import is_nsys, read_nsys
from inferwatch.profiles.report import ProfileReport, ReportJob
from inferwatch.profiles.trace_file import ProfileTrace, read_trace
from inferwatch.profiles.trace_span import SpanJob, TraceSpan, span_of

LONGEST_S = 600.0
LARGEST_REPORT = 64 << 20
MOST_MEMORY = 8 << 30
"""Bytes that reading may take, or half of the host's memory if that is less."""
NICE = 10
READ_BYTES = 1 << 20
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Numpy would start one for each core, each with memory of its own."""
_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG`` of ``prctl``."""


async def read_profile(
    job: ReportJob, on_progress: Callable[[float], None] | None = None
) -> ProfileReport:
    """Read the traces of one profile; ``on_progress`` hears the share that was read.

    Raises:
        StorageError: none of them could be read.
    """
    return msgspec.json.decode(await _answer(job, on_progress), type=ProfileReport)


async def read_span(path: Path) -> TraceSpan:
    """Read when a trace was taken.

    Raises:
        StorageError: it is no trace, or tells of nothing.
    """
    job = SpanJob(file=str(path))
    return msgspec.json.decode(await _answer(job), type=TraceSpan)


async def _answer(
    job: ReportJob | SpanJob, on_progress: Callable[[float], None] | None = None
) -> bytes:
    """Return what the process that reads traces answers.

    Raises:
        StorageError: it could not do what it was asked for.
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inferwatch.profiles"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | ONE_THREAD,
    )
    stdin, stdout, stderr = child.stdin, child.stdout, child.stderr
    try:
        async with asyncio.timeout(LONGEST_S):
            if stdin is None or stdout is None or stderr is None:
                raise StorageError("the reader of traces has no pipes")
            with suppress(ConnectionError):
                stdin.write(msgspec.json.encode(job) + b"\n")
                await stdin.drain()
                stdin.close()
            # Both at once: a long report would wait for us while we wait for progress.
            said, answer = await asyncio.gather(
                _follow(stderr, on_progress), _all_of(stdout)
            )
            status = await child.wait()
    except TimeoutError as error:
        raise StorageError(
            f"its traces were not read within {LONGEST_S:g} s"
        ) from error
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    if status:
        raise StorageError(said or f"the reader of traces ended with {status}")
    return answer


async def _all_of(stdout: asyncio.StreamReader) -> bytes:
    """Return what comes until its end.

    Raises:
        StorageError: it is larger than any report.
    """
    answer = bytearray()
    while read := await stdout.read(READ_BYTES):
        answer += read
        if len(answer) > LARGEST_REPORT:
            raise StorageError(f"its report is larger than {LARGEST_REPORT >> 20} MiB")
    return bytes(answer)


async def _follow(
    stderr: asyncio.StreamReader, on_progress: Callable[[float], None] | None
) -> str:
    """Pass progress on; return the last line that is none."""
    said = ""
    async for line in stderr:
        text = line.decode(errors="replace").strip()
        try:
            share = float(text)
        except ValueError:
            said = text or said
            continue
        if on_progress is not None:
            on_progress(share)
    return said


def read_traces(
    path: Path, on_progress: Callable[[float], None] | None = None
) -> list[ProfileTrace]:
    """Read a file of torch's profiler or of Nsight Systems: a trace of each worker.

    Raises:
        StorageError: it cannot be read, or is neither.
    """
    if path.suffix in {".nsys-rep", ".qdrep"}:
        raise StorageError(
            f"{path}: export it first: nsys export --type sqlite -o "
            f"{path.with_suffix('.sqlite').name} {path.name}"
        )
    if is_nsys(path):
        return read_nsys(path, on_progress)
    return [read_trace(path, on_progress)]


def report_of(
    job: ReportJob, on_progress: Callable[[float], None] | None = None
) -> ProfileReport:
    """Read the traces here and now.

    Raises:
        StorageError: none of them could be read.
    """
    ranks, problems = [], []
    for place, file in enumerate(job.files):

        def partly(share: float, place: int = place) -> None:
            if on_progress is not None:
                on_progress((place + share) / len(job.files))

        try:
            traces = read_traces(Path(file), partly)
        except StorageError as error:
            problems.append(str(error))
            continue
        engine_rank = job.engine_ranks.get(file)
        for trace in traces:
            rank, found = join(
                trace, job.steps, job.realtime_offset_ns, job.costs, engine_rank
            )
            ranks.append(structs.replace(rank, engine_rank=engine_rank))
            of = f"{trace.name}, {rank.label}" if len(traces) > 1 else trace.name
            problems += [f"{of}: {each}" for each in (*trace.problems, *found)]
    if not ranks:
        raise StorageError("; ".join(problems) or "there is no trace to read")
    ranks.sort(key=lambda each: (each.engine_rank or 0, each.rank or 0))
    return ProfileReport(ranks=ranks, problems=problems)


def main() -> int:
    """Read the job from standard input; write the report, and progress as errors."""
    with suppress(OSError, AttributeError):  # not Linux: we end with our pipes
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with suppress(OSError):
        os.nice(NICE)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=ReportJob | SpanJob)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = min(MOST_MEMORY, physical // 2)
    with suppress(OSError, ValueError):  # a lower limit is set
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        answer = (
            span_of(read_traces(Path(job.file), _say))
            if isinstance(job, SpanJob)
            else report_of(job, _say)
        )
    except StorageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except MemoryError:
        most, _ = resource.getrlimit(resource.RLIMIT_DATA)
        sys.stderr.write(f"its traces take more than {most / 1e9:.1f} GB to read\n")
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


def _say(share: float) -> None:
    sys.stderr.write(f"{share:.3f}\n")
    sys.stderr.flush()
