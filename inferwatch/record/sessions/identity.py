"""What tells a session from all others, in whichever file it is."""

from contextlib import closing
from pathlib import Path

from inferwatch.record.connections import open_for_reading

SELECT = "SELECT started_ns, boot_id, pid FROM sessions WHERE session = ?"


def session_identity(path: Path, session: int) -> str | None:
    """When and by which process a session was begun; None if it is gone.

    Its id does not tell it apart, as each file counts from ``s1``, nor does its file,
    which may be copied or renamed.

    Raises:
        StorageError: the file cannot be read.
    """
    with closing(open_for_reading(path)) as connection:
        row = connection.execute(SELECT, (session,)).fetchone()
    return None if row is None else " ".join(map(str, row))
