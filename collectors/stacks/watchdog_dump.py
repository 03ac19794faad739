"""Reads what vLLM's own watchdog wrote down (``--watchdog-config``, from 0.33 on).

It waits for five minutes without progress unless told otherwise, and logs the file.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from collectors.contract.plain_file import read_plain
from collectors.contract.readings import ThreadStack
from collectors.stacks.dump_file import MOST_BYTES, parsed_dump
from collectors.stacks.frames import StacksError

LOGGED = re.compile(r"\[Watchdog\]Dumped stack to (\S.*_(\d+)\.log) due to ")
HEAD = ">>> Call stack dump #"


def watchdog_threads(lines: Iterable[str], pid: int) -> list[ThreadStack]:
    """The threads in the latest dump of a process that a log names; empty without."""
    found = [each for line in lines if (each := LOGGED.search(line))]
    path = next((each[1] for each in reversed(found) if int(each[2]) == pid), None)
    if path is None:
        return []
    with suppress(OSError, StacksError):
        content = read_plain(Path(path), MOST_BYTES, only_ours=True)
        return parsed_dump(content.decode("utf-8", "replace").rpartition(HEAD)[2])
    return []
