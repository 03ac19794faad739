"""A recorded session of real vLLM under load that comes with inferwatch."""

import lzma
import os
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path

from platformdirs import user_cache_path

from inferwatch.errors import StorageError

PACKED = "sample.db.xz"


def sample_file() -> Path:
    """The record of the sample, unpacked where it can be migrated and marked.

    Raises:
        StorageError: it is missing, or there is no room for it.
    """
    try:
        packed = files("inferwatch.sample").joinpath(PACKED).read_bytes()
        name = f"sample-{blake2b(packed, digest_size=6).hexdigest()}.db"
        path = user_cache_path("inferwatch") / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.write_bytes(lzma.decompress(packed))
            fresh.replace(path)  # whole or not at all
    except OSError as error:
        raise StorageError(f"The sample session cannot be had: {error}") from error
    return path
