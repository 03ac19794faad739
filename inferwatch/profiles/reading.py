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

from inferwatch.errors import ReadFailedError, StorageError
from inferwatch.profiles.join import join
from inferwatch.profiles.nsys_file import is_nsys, read_nsys
from inferwatch.profiles.report import ProfileReport, RankProfile, ReportJob
from inferwatch.profiles.trace_file import ProfileTrace, read_trace
from inferwatch.profiles.trace_span import SpanJob, TraceSpan, span_of

LONGEST_S = 600.0
LARGEST_REPORT = 64 << 20
MOST_MEMORY = 4 << 30
"""Of address space, beyond what the reader has before it begins."""
NOTHING_TOLD, READ_FAILED = 3, 4
"""Exit statuses of the reader."""
TOO_LONG = f"its report is larger than {LARGEST_REPORT >> 20} MiB"
NO_MEMORY = "more memory was needed than there is for a reader"
NICE = 10
_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG`` of ``prctl``."""


async def read_profile(
    job: ReportJob, on_progress: Callable[[float], None] | None = None
) -> ProfileReport:
    """Read the traces of one profile; ``on_progress`` hears the share that was read.

    Raises:
        StorageError: there is nothing in them.
        ReadFailedError: none of them could be read this time.
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
                _follow(stderr, on_progress), _all_of(child, stdout)
            )
            status = await child.wait()
    except TimeoutError as error:
        raise ReadFailedError(
            f"its traces were not read within {LONGEST_S:g} s"
        ) from error
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    if len(answer) > LARGEST_REPORT:
        raise StorageError(TOO_LONG)
    if status == NOTHING_TOLD:
        raise StorageError(said)
    if status:
        how = f"the reader of traces ended with {status}"
        told = [said] if status == READ_FAILED else [how, said]
        raise ReadFailedError(": ".join(filter(None, told)))
    return answer


async def _all_of(
    child: asyncio.subprocess.Process, stdout: asyncio.StreamReader
) -> bytes:
    """Return what a child writes; it ends where that is too long."""
    answer = bytearray()
    while chunk := await stdout.read(1 << 20):
        answer += chunk
        if len(answer) > LARGEST_REPORT:
            with suppress(ProcessLookupError):
                child.kill()
            break
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
        StorageError: there is nothing in them.
        ReadFailedError: none of them could be read this time.
    """
    ranks: list[RankProfile] = []
    problems: list[str] = []
    is_partial = False
    for place, file in enumerate(job.files):

        def partly(share: float, place: int = place) -> None:
            if on_progress is not None:
                on_progress((place + share) / len(job.files))

        try:
            told = _ranks(job, file, partly)
        except StorageError as error:
            problems.append(str(error))
            is_partial |= isinstance(error, ReadFailedError)
        else:
            ranks += [rank for rank, _ in told]
            problems += [problem for _, found in told for problem in found]
    if not ranks:
        why = "; ".join(problems) or "there is no trace to read"
        raise ReadFailedError(why) if is_partial else StorageError(why)
    ranks.sort(key=lambda e: (e.engine_rank or 0, e.rank is None, e.rank))
    return ProfileReport(ranks=ranks, problems=problems, is_partial=is_partial)


def _ranks(
    job: ReportJob, file: str, on_progress: Callable[[float], None]
) -> list[tuple[RankProfile, list[str]]]:
    """Return the workers of one file, each with what could not be joined."""
    engine_rank = job.engine_ranks.get(file)
    try:
        traces = read_traces(Path(file), on_progress)
        joined = [
            join(each, job.steps, job.realtime_offset_ns, job.costs, engine_rank)
            for each in traces
        ]
    except MemoryError as error:
        raise ReadFailedError(f"{file}: {NO_MEMORY}") from error
    ranks = []
    for trace, (rank, problems) in zip(traces, joined, strict=True):
        of = f"{trace.name}, {rank.label}" if len(traces) > 1 else trace.name
        told = [f"{of}: {each}" for each in (*trace.problems, *problems)]
        ranks.append((structs.replace(rank, engine_rank=engine_rank), told))
    return ranks


def main() -> int:
    """Read the job from standard input; write the report, and progress as errors."""
    with suppress(OSError, AttributeError):  # not Linux: we end with our pipes
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with suppress(OSError):
        os.nice(NICE)
    _limit_memory()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=ReportJob | SpanJob)
    try:
        answer = msgspec.json.encode(
            span_of(read_traces(Path(job.file), _say))
            if isinstance(job, SpanJob)
            else report_of(job, _say)
        )
    except StorageError as error:
        failed = isinstance(error, ReadFailedError)
        sys.stderr.write(f"{error}\n")
        return READ_FAILED if failed else NOTHING_TOLD
    except MemoryError:
        sys.stderr.write(f"{NO_MEMORY}\n")
        return READ_FAILED
    if len(answer) > LARGEST_REPORT:
        sys.stderr.write(f"{TOO_LONG}\n")
        return NOTHING_TOLD
    sys.stdout.buffer.write(answer)
    return 0


def _limit_memory() -> None:
    """Let a trace that is made to take all memory take no more than its share."""
    with suppress(OSError, ValueError):  # not Linux
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        limits = resource.getrlimit(resource.RLIMIT_AS)
        most = pages * resource.getpagesize() + MOST_MEMORY
        soft = min([most, *(each for each in limits if each != resource.RLIM_INFINITY)])
        resource.setrlimit(resource.RLIMIT_AS, (soft, limits[1]))


def _say(share: float) -> None:
    sys.stderr.write(f"{share:.3f}\n")
    sys.stderr.flush()
