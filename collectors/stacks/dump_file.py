"""Lets a process write down its own stacks: its probe has registered a signal for that.

The signal ends a process that does not expect it. It is sent only where the kernel says
that the process catches it, and that it holds its own dump file open: a PID that was
given to another process, or is of another container, does not.
"""

import fcntl
import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from collectors.contract.plain_file import read_plain
from collectors.contract.readings import ThreadStack
from collectors.contract.runtime_dir import RuntimeDirError, socket_dir
from collectors.stacks.frames import (
    GONE,
    MAIN,
    MOST_FRAMES,
    StacksError,
    frame_text,
    kept_threads,
)

SUFFIX = ".stacks"
MOST_BYTES = 2_000_000
"""faulthandler writes 100 frames of 100 threads at most."""
LIMIT_S = 2.0
LOOK_S = 0.02
SETTLED = 3
"""Looks at a file that no longer grows, after which it is complete."""
THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)[^\n]*$", re.MULTILINE)
CUT_OFF = re.compile(r"^\.\.\.$", re.MULTILINE)
"""What faulthandler writes in place of further threads."""
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def dump_path(engine_id: str, pid: int, number: int) -> Path:
    """Path for the dump file of an engine's process, which has its signal's number.

    Raises:
        RuntimeDirError: there is no usable runtime directory.
    """
    return socket_dir() / f"{engine_id}.{pid}.{number}{SUFFIX}"


def read_by_itself(pid: int) -> list[ThreadStack]:
    """The threads of a process, as it writes them down itself; takes 4 s at most.

    Raises:
        StacksError: it cannot, or did not in time.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        raise StacksError(GONE) from error
    try:
        path, number = _registered(pid)
        with _alone_at(path):
            os.truncate(path, 0)
            signal.pidfd_send_signal(descriptor, number)
            return parsed_dump(_written(path))
    except ProcessLookupError as error:
        raise StacksError(GONE) from error
    except OSError as error:
        raise StacksError(
            f"it cannot be asked for its stacks: {error.strerror}"
        ) from error
    finally:
        os.close(descriptor)


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        return text.rpartition(")")[2].split()[0] in "Tt"
    return False


def caught_signals(pid: int | str) -> int:
    """The signals that a process has handlers for, as the kernel's bit mask."""
    with suppress(OSError, ValueError):
        text = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
        mask = text.partition("\nSigCgt:")[2].partition("\n")[0]
        return int(mask or "0", 16)
    return 0


def dump_files() -> Iterator[tuple[Path, os.stat_result]]:
    """Our own regular dump files in the runtime directory."""
    with suppress(RuntimeDirError):
        for path in socket_dir().glob(f"*{SUFFIX}"):
            with suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    yield path, status


def _registered(pid: int) -> tuple[Path, int]:
    """The dump file that a process holds open, and its signal, which it catches."""
    mine = {(each.st_dev, each.st_ino): path for path, each in dump_files()}
    held = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir() if mine else ():
            with suppress(OSError):
                status = entry.stat()
                held.add((status.st_dev, status.st_ino))
    for place, path in mine.items():
        text = path.name.removesuffix(SUFFIX).rpartition(".")[2]
        number = int(text) if text.isdecimal() else 0
        is_ours = place in held and signal.SIGRTMIN <= number <= signal.SIGRTMAX
        if is_ours and caught_signals(pid) >> (number - 1) & 1:
            return path, number
    raise StacksError("it has no probe of ours that writes its stacks down")


@contextmanager
def _alone_at(path: Path) -> Iterator[None]:
    """Keep other watchers away: by a record lock, which the probe's flock allows."""
    deadline_s = time.monotonic() + LIMIT_S
    with path.open("rb+") as file:
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError) as error:
                if time.monotonic() > deadline_s:
                    raise StacksError("another watcher reads its stacks") from error
                time.sleep(LOOK_S)
        yield


def _written(path: Path) -> str:
    """The dump, once it no longer grows."""
    deadline_s, size, same = time.monotonic() + LIMIT_S, 0, 0
    while same < SETTLED:
        if time.monotonic() > deadline_s:
            raise StacksError(f"it wrote no stacks within {LIMIT_S:.0f} s")
        time.sleep(LOOK_S)
        before, size = size, path.stat().st_size
        same = same + 1 if size and size == before else 0
    return read_plain(path, MOST_BYTES, only_ours=True).decode("utf-8", "replace")


def parsed_dump(text: str) -> list[ThreadStack]:
    """The threads of the last dump of faulthandler, which names the main one last.

    Of more than 100 threads it leaves out the oldest, and so the main one.
    """
    heads = _of_last_dump(list(THREAD.finditer(text)))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    is_whole = not heads or CUT_OFF.search(text, heads[-1].end()) is None
    threads = [
        ThreadStack(
            name=MAIN if is_whole and head is heads[-1] else f"thread {head[1]}",
            frames=[
                frame_text(function, path, int(line))
                for path, line, function in FRAME.findall(text, head.end(), end)
            ][:MOST_FRAMES],
        )
        for head, end in zip(heads, ends, strict=True)
    ]
    if not threads:
        raise StacksError("it wrote no stacks that can be read")
    return kept_threads(threads)


def _of_last_dump(heads: list[re.Match[str]]) -> list[re.Match[str]]:
    """The heads after those of dumps before, which name the same threads."""
    seen = set[str]()
    for number in reversed(range(len(heads))):
        if heads[number][1] in seen:
            return heads[number + 1 :]
        seen.add(heads[number][1])
    return heads
