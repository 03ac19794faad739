"""The folder beside the record in which traces of profiles are kept, by session.

An engine writes its traces where it was told to; whoever asked for them moves them
here. Unlike checkpoints they cannot be made again.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

FOLDER_END = "-profiles"
REPORT_END = ".report.json"
"""End of the name of what was read of a profile's traces."""
NAMED = re.compile(r"(?a)\w[\w.-]{0,199}")
"""What a trace's name may begin with: no separator, and no dot at its start."""
SQLITE = ".sqlite"
"""End of the name of an export of Nsight Systems."""
IS_TRACE = re.compile(rf"(\.json(\.gz)?|{re.escape(SQLITE)})$")
TABLE_END = ".profiler_out.txt"
"""End of the name of vLLM's table of operators."""
COPIED_BYTES = 1 << 20


def traces_folder(database: Path, session_id: str) -> Path:
    """The folder with a session's traces, whether it exists or not."""
    return _folder(database) / session_id


def is_trace(path: Path) -> bool:
    """Whether a file is a trace by its name: of torch's profiler or of Nsight."""
    return bool(IS_TRACE.search(path.name)) and not path.name.endswith(REPORT_END)


def traces_in(directory: Path, prefixes: Iterable[str]) -> list[Path]:
    """Traces in a directory whose names begin with a prefix and ``_``, by name.

    Links are left out; without the directory there are none.
    """
    return [each for each in _named(directory, prefixes) if is_trace(each)]


def move_traces(directory: Path, prefixes: Iterable[str], folder: Path) -> list[Path]:
    """Move traces from where an engine wrote them; returns where they are now.

    The table of operators that vLLM writes beside them comes along.

    Raises:
        OSError: one cannot be moved; those before it were.
    """
    moved = []
    for each in _named(directory, prefixes):
        if not is_trace(each) and not each.name.endswith(TABLE_END):
            continue
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = folder / each.name
        try:
            each.rename(place)
        except OSError:  # on another file system
            copy_plain(each, place)
            each.unlink()
        moved.append(place)
    return moved


def copy_plain(path: Path, place: Path) -> None:
    """Copy a regular file; the copy has its name once it is complete.

    Raises:
        OSError: it is no regular file, or cannot be copied.
    """
    partial = place.with_name(f".{place.name}.part")
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        with os.fdopen(handle, "rb") as source, partial.open("wb") as copy:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                raise OSError(f"{path} is no regular file")
            os.fchmod(copy.fileno(), 0o600)
            shutil.copyfileobj(source, copy, COPIED_BYTES)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


def trace_sizes(database: Path) -> dict[int, int]:
    """Bytes of traces by session, deleted sessions included."""
    return {
        number: sum(_sizes(folder)) for number, folder in _folders(_folder(database))
    }


def forget_traces(database: Path, session: int) -> None:
    """Delete a session's traces, and the folder of all sessions with the last."""
    folder = _folder(database)
    for number, each in [*_folders(folder)]:
        if number == session:
            shutil.rmtree(each, ignore_errors=True)
    with suppress(OSError):  # others' are there
        folder.rmdir()


def copy_traces(database: Path, into: Path) -> None:
    """Give another file the traces of this one, as far as that goes."""
    for number, folder in _folders(_folder(database)):
        target = traces_folder(into, f"s{number}")
        with suppress(OSError):
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            for each in folder.iterdir():
                if _is_plain(each):
                    _link(each, target / each.name)


def _link(path: Path, place: Path) -> None:
    try:
        place.hardlink_to(path)  # which takes no room
    except OSError:
        copy_plain(path, place)


def _named(directory: Path, prefixes: Iterable[str]) -> list[Path]:
    """Return regular files whose names begin with a prefix and ``_``, by name."""
    starts = tuple(f"{each}_" for each in prefixes if NAMED.fullmatch(each))
    try:
        return sorted(
            each
            for each in directory.iterdir()
            if each.name.startswith(starts) and _is_plain(each)
        )
    except (OSError, ValueError):  # the latter if it has a NUL
        return []


def _folder(database: Path) -> Path:
    return database.with_name(database.name + FOLDER_END)


def _folders(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the number and the folder of each session."""
    with suppress(OSError):
        for each in folder.iterdir():
            number = each.name.removeprefix("s")
            if number.isdecimal() and each.is_dir() and not each.is_symlink():
                yield int(number), each


def _sizes(folder: Path) -> Iterator[int]:
    with suppress(OSError):
        for each in folder.iterdir():
            with suppress(OSError):
                yield each.lstat().st_size


def _is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
