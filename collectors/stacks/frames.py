"""Stacks as text: short file names, and no more of them than people read."""

import re
from collections.abc import Iterable

from collectors.contract.readings import ThreadStack

MOST_THREADS = 200
MOST_FRAMES = 64
LONGEST = 200
"""Characters kept of a name."""
MAIN = "MainThread"
GONE = "the process is gone"
PACKAGES = re.compile(r".*/(?:site|dist)-packages/|.*/lib/python3\.\d+/|.*/(?=vllm/)")
"""What precedes the path of a file in its package."""


class StacksError(Exception):
    """The stacks of a process could not be read; the message is fit to show."""

    paused_ns: int | None = None
    """How long the process was paused at most though nothing was read."""


def frame_text(function: str, path: str, line: int) -> str:
    """A frame as text, with the path inside its package; of others the file's name.

    >>> frame_text("get", "/usr/lib/python3.11/queue.py", 171)
    'get (queue.py:171)'
    >>> frame_text("f", "/venv/lib/python3.11/site-packages/vllm/v1/a.py", 7)
    'f (vllm/v1/a.py:7)'
    >>> frame_text("main", "/home/ada/secret/app.py", 9)
    'main (app.py:9)'
    """
    package = PACKAGES.match(path)
    short = path[package.end() :] if package else path.rpartition("/")[2]
    return f"{function[:LONGEST]} ({short[-LONGEST:]}:{line})"


def kept_threads(threads: Iterable[ThreadStack]) -> list[ThreadStack]:
    """The threads, the main one first, no more than ``MOST_THREADS``."""
    ordered = sorted(threads, key=lambda each: each.name != MAIN)
    return ordered[:MOST_THREADS]
