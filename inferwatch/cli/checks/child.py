"""Runs in a child process what may hang or crash, or must not be imported here."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from signal import SIGKILL
from typing import Any

MOST_SAID = 1_000_000


class ChildError(Exception):
    """The child gave no answer; the message says why, fit to show."""


def ask_child(
    *arguments: str, limit_s: float, more: Mapping[str, str] | None = None
) -> Any:  # noqa: ANN401 - what it says
    """Run a child Python; return the last line that it prints, parsed as JSON.

    ``more`` are additional environment variables.

    Raises:
        ChildError: it failed, took too long, or printed something else.
    """
    with subprocess.Popen(
        [sys.executable, "-P", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(more or {})},
        start_new_session=True,
    ) as child:
        try:
            stdout, stderr = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, SIGKILL)  # not reaped yet: the pid is still its own
            raise ChildError(f"it took longer than {limit_s:g} s") from None
    lines = stdout[-MOST_SAID:].decode("utf-8", "replace").strip().splitlines()
    with suppress(ValueError, IndexError):
        return json.loads(lines[-1])
    if child.returncode < 0:
        raise ChildError(f"it was ended by signal {-child.returncode}")
    why = stderr[-MOST_SAID:].decode("utf-8", "replace").strip().splitlines()
    raise ChildError(why[-1][:300] if why else f"exit status {child.returncode}")
