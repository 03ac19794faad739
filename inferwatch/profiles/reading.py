"""Reads the traces of a profile in a process of its own, which may take its time.

The process is niced, so that it takes nothing from the engine, and ends with us.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from inferwatch.errors import StorageError
from inferwatch.profiles.join import join
from inferwatch.profiles.nsys_file import is_nsys, read_nsys
from inferwatch.profiles.report import ProfileReport, ReportJob
from inferwatch.profiles.trace_file import ProfileTrace, read_trace

LONGEST_S = 600.0
LARGEST_REPORT = 64 << 20
NICE = 10
_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG`` of ``prctl``."""


async def read_profile(
    job: ReportJob, on_progress: Callable[[float], None] | None = None
) -> ProfileReport:
    """Read the traces of one profile; ``on_progress`` hears the share that was read.

    Raises:
        StorageError: none of them could be read.
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inferwatch.profiles"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=LARGEST_REPORT,
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
                _follow(stderr, on_progress), stdout.read()
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
    return msgspec.json.decode(answer, type=ProfileReport)


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
            ranks.append(rank)
            of = f"{trace.name}, rank {rank.rank}" if len(traces) > 1 else trace.name
            problems += [f"{of}: {each}" for each in (*trace.problems, *found)]
    if not ranks:
        raise StorageError("; ".join(problems) or "there is no trace to read")
    ranks.sort(key=lambda each: (each.rank is None, each.rank))
    return ProfileReport(ranks=ranks, problems=problems)


def main() -> int:
    """Read the job from standard input; write the report, and progress as errors."""
    with suppress(OSError, AttributeError):  # not Linux: we end with our pipes
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with suppress(OSError):
        os.nice(NICE)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=ReportJob)
    try:
        report = report_of(job, _say)
    except StorageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(report))
    return 0


def _say(share: float) -> None:
    sys.stderr.write(f"{share:.3f}\n")
    sys.stderr.flush()
