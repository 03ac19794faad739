"""Reads and writes small files in places where others may put something, too.

What lies there may be a pipe that nobody writes to, a link to elsewhere, or endless:
none of that may hold us up or be believed.
"""

import errno
import os
import stat
import tempfile
from pathlib import Path

OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_plain(path: Path, most_bytes: int, *, only_ours: bool = False) -> bytes:
    """The content of a regular file; this never waits for anybody.

    With ``only_ours`` it must be this user's, writable for nobody else and no link:
    then nobody but this user or root has written it.

    Raises:
        OSError: it cannot be read, is something else or too large.
    """
    # Without O_NONBLOCK a pipe is waited at until somebody writes to it.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    if only_ours:
        flags |= os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        if only_ours and (found.st_uid != os.geteuid() or found.st_mode & OF_OTHERS):
            raise OSError(errno.EPERM, "others can write it", str(path))
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def write_plain(path: Path, content: bytes) -> None:
    """Make a private file, all at once, so that a reader never sees half of it.

    Whatever was there is replaced, and never written through.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(name).replace(path)
