"""Reads and writes small files in directories where others may write, too.

A path there may be a pipe nobody writes to, a symbolic link or an endless file; none of
these may block us or be trusted.
"""

import errno
import os
import stat
import tempfile
from pathlib import Path

OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_plain(path: Path, most_bytes: int, *, only_ours: bool = False) -> bytes:
    """Content of a regular file; never blocks on a pipe.

    With ``only_ours`` it must belong to this user, be writable by nobody else and be no
    symbolic link, so only this user or root can have written it.

    Raises:
        OSError: it cannot be read, is not a regular file or is too large.
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    if only_ours:
        flags |= os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        if only_ours and (status.st_uid != os.geteuid() or status.st_mode & OF_OTHERS):
            raise OSError(errno.EPERM, "others can write it", str(path))
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def write_plain(path: Path, content: bytes) -> None:
    """Create or replace a private file atomically.

    An existing file is never written through, so a symbolic link is not followed.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(name).replace(path)
