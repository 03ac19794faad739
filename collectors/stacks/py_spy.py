"""Reads the stacks of a process from outside, with py-spy's command.

It reads without pausing the process first: the stacks of one that is stalled do not
change meanwhile, and a process that is stopped cannot be paused. Native frames would
need a pause, and so are left out; locals are never asked for.
"""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Timer

import msgspec

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import ThreadStack
from collectors.stacks.frames import (
    LONGEST,
    MAIN,
    MOST_FRAMES,
    StacksError,
    frame_text,
    kept_threads,
)

NAME = "py-spy"
OLDEST = "0.4"
LIMIT_S = 5.0
LONGEST_PAUSE_S = 1.0
MOST_BYTES = 8_000_000
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
REFUSED = ("permission denied", "operation not permitted", "eperm")
SCOPES = {
    1: "kernel.yama.ptrace_scope is 1, so a process reads its own children alone: "
    "root may, or sysctl kernel.yama.ptrace_scope=0",
    2: "kernel.yama.ptrace_scope is 2, so only root may",
    3: "kernel.yama.ptrace_scope is 3, so nobody may until the next boot",
}
NO_CAPABILITY = (
    "the kernel does not let us read its memory: in a container that needs SYS_PTRACE "
    "(docker run --cap-add SYS_PTRACE), or root"
)


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: int | None = None


_decoder = msgspec.json.Decoder(list[_Thread])


def tool() -> Path | None:
    """The command: beside this Python, else on PATH; None if none is new enough."""
    beside = Path(sys.executable).parent / NAME
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(NAME)
    return Path(found) if found and _is_new_enough(found) else None


@cache
def _is_new_enough(command: str) -> bool:
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(
            (command, "--version"), capture_output=True, timeout=LIMIT_S, check=True
        )
        version = re.search(rb"(\d+)\.(\d+)", said.stdout)
        oldest = tuple(map(int, OLDEST.split(".")))
        return version is not None and tuple(map(int, version.groups())) >= oldest
    return False


def read_by_py_spy(command: Path, pid: int) -> tuple[list[ThreadStack], int]:
    """The threads of a process, and for how many nanoseconds it was paused at most.

    Takes 6 s at most.

    Raises:
        StacksError: py-spy failed or was refused.
    """
    first = _output(command, pid, LIMIT_S, "--nonblocking")
    with suppress(StacksError):
        return _threads(first, pid), 0
    if _is_refused(first):
        raise StacksError(why_refused())
    # It changed while it was read, so that it runs: now it may be paused.
    began_ns = monotonic_ns()
    try:
        second = _output(command, pid, LONGEST_PAUSE_S)
        return _threads(second, pid), monotonic_ns() - began_ns
    except StacksError as error:
        error.paused_ns = monotonic_ns() - began_ns
        raise


def why_refused() -> str:
    """Why the kernel refuses to let one process read another, in plain words."""
    with suppress(OSError, ValueError):
        scope = int(YAMA.read_text("ascii"))
        if scope in SCOPES:
            return SCOPES[scope]
    return NO_CAPABILITY


_running = set[subprocess.Popen[bytes]]()


def end_running() -> None:
    """End every py-spy that reads now; for whoever leaves."""
    while _running:
        _end(_running.pop())


def _output(command: Path, pid: int, limit_s: float, *more: str) -> bytes:
    """What py-spy printed, on either stream."""
    arguments = [str(command), "dump", "--json", *more, "--pid", str(pid)]
    quiet = {**os.environ, "RUST_LOG": "off", "RUST_BACKTRACE": "0"}
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=quiet,
            start_new_session=True,
        )
    except OSError as error:
        raise StacksError(f"{command} cannot be run: {error.strerror}") from error
    _running.add(process)
    late = Timer(limit_s, _end, [process])
    late.daemon = True
    late.start()
    try:
        with process.stdout or io.BytesIO() as printed:
            output = printed.read(MOST_BYTES + 1)
    finally:
        hangs = not late.is_alive()
        late.cancel()
        was_ended = process not in _running
        _running.discard(process)
        _end(process)
        process.wait()
    if hangs:
        raise StacksError(f"{NAME} did not answer within {limit_s:.0f} s")
    if was_ended:
        raise StacksError(f"{NAME} was ended")
    if len(output) > MOST_BYTES:
        raise StacksError(f"{NAME} printed more than {MOST_BYTES // 1_000_000} MB")
    return output


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _threads(output: bytes, pid: int) -> list[ThreadStack]:
    try:
        read = _decoder.decode(output)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StacksError(f"{NAME} read nothing: {_reason(output)}") from error
    return kept_threads(
        ThreadStack(
            name=_name(each, pid)[:LONGEST],
            frames=[
                frame_text(frame.name, frame.filename, frame.line)
                for frame in each.frames[:MOST_FRAMES]
            ],
        )
        for each in read
    )


def _name(thread: _Thread, pid: int) -> str:
    if thread.thread_name:
        return thread.thread_name
    main = thread.os_thread_id == pid
    return MAIN if main else f"thread {thread.os_thread_id or '?'}"


def _is_refused(output: bytes) -> bool:
    text = output.decode("utf-8", "replace").lower()
    return any(word in text for word in REFUSED)


def _reason(output: bytes) -> str:
    """The first line that says something, shortened."""
    lines = output[:4_000].decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in lines if line.strip()), "nothing said")[:300]
