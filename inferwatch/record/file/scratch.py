"""A folder to work in, which even Ctrl-C leaves nothing of."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Under the temporary directory, until the end of the context."""
    folder = TemporaryDirectory(prefix=f"inferwatch-{purpose}-")
    try:
        with folder:
            yield Path(folder.name)
    finally:
        folder.cleanup()  # Ctrl-C may have cut off the first removal
