"""Engine logs: one private file per engine, and what it says about a failure."""

import fcntl
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from collectors.contract.liveness import is_held

KEPT_LOGS = 20
LEFT_OUT = "…"
LONGEST_LINE = 2_000
"""Longer lines are cut before recording: they may hold a whole prompt."""
SEARCHED_BYTES = 1024 * 1024
"""Bytes at the start of a log that are searched for files vLLM leaves behind."""
TAIL_BYTES = 512 * 1024
"""Bytes at the end of a log that are ever read."""

PREFIX = re.compile(
    r"^(\((?P<process>\S+) pid=\d+\) )?"
    r"((?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d (\[\S+\] )?)?"
)
"""Prefix of a log line: ``(EngineCore pid=7) ERROR 11-20 10:00:00 [core.py:1]``."""
EXCEPTION = re.compile(
    r"^(?P<name>(\w+\.)*\w*(Error|Exception|Interrupt|Exit))(: .*)?$"
)
USAGE = re.compile(r"^[\w. ]+: error: (?P<text>.+)$")
INVALID = re.compile(
    r"^ +(Value|Assertion) error, (?P<text>.+?)( \[type=.*)?$", re.MULTILINE
)
"""Pydantic's reason, one line below "1 validation error for ..."."""
NOISE = re.compile(r"^(nanobind: | - (leaked|\.\.\. skipped)|See https://nanobind)")
SECRET = re.compile(
    r"""(?ix)
    (?P<head> (?: api[-_]?keys? | auth\w{0,20} | cookie | passw\w{0,10} | secret\w{0,20}
        | prompt | token_ids | (?: hf | access | bearer | auth ) [-_]? token )
      ["']? \s* [:=] \s* )
    (?: \[ (?: [^][] | \[ [^]]* \] )* (?: \] | $ )
      | ' (?: \\. | [^'\\] )* (?: ' | $ )
      | " (?: \\. | [^"\\] )* (?: " | $ )
      | (?: (?: Bearer | Basic ) \s+ )? [^\s,;)}\]]+ )
    """
)
"""A name with a confidential value: keys and prompts."""
KEY = re.compile(
    r"\b(?:hf_|sk-|nvapi-|gh[pousr]_)[\w-]{8,}|(?<=Bearer )\S+|(?<=://)[^\s/@]+(?=@)"
)
"""A key recognised by its form."""
GENERIC = (
    "Engine core initialization failed",
    "Engine core proc",
    "EngineCore encountered an issue",
    "WorkerProc initialization failed",
    "KeyboardInterrupt",
    "SystemExit",
    "CancelledError",
)
"""Exceptions that merely report another one, or an interruption."""
RENDEZVOUS = re.compile(r"file://(/\S+/vllm_dist_[0-9a-f]{32})\b")
"""Rendezvous file of vLLM's workers, which vLLM does not remove."""


def new_log_path(engine_id: str) -> Path:
    """Log path for a new engine; logs beyond the last 20 are removed."""
    directory = platformdirs.user_log_path("inferwatch", appauthor=False)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    prune(directory, KEPT_LOGS - 1)
    return directory / f"engine-{engine_id}.log"


def prune(directory: Path, kept: int) -> None:
    """Remove all but the newest logs and those of running processes.

    A process that logged nothing for days may still fail and need its log.
    """

    def age(path: Path) -> float:
        with suppress(OSError):
            return path.stat().st_mtime
        return 0.0

    logs = sorted(directory.glob("engine-*.log"), key=age, reverse=True)
    for path in logs[kept:]:
        if not is_held(path):
            path.unlink(missing_ok=True)


def open_log(path: Path) -> int:
    """A descriptor that appends to a new private file.

    The file stays locked while any process has the descriptor open.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL
    descriptor = os.open(path, flags, 0o600)
    with suppress(OSError):  # not every file system supports locks
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log, oldest first; empty without a log."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-lines:] if lines > 0 else []


def cause(lines: Sequence[str]) -> str | None:
    """The reason of a failure, as found in the log; None if there is none.

    The API server repeats EngineCore's errors, so the last exception that is not
    generic is taken. A wrong flag ends in argparse's single line, a wrong value in
    pydantic's second line.
    """
    rows = [PREFIX.sub("", line, count=1) for line in lines]
    for at in range(len(rows) - 1, -1, -1):
        if usage := USAGE.match(rows[at]):
            return usage["text"]
        if EXCEPTION.match(rows[at]) and not any(word in rows[at] for word in GENERIC):
            invalid = INVALID.match(rows[at + 1]) if at + 1 < len(rows) else None
            return invalid["text"] if invalid else rows[at]
    return None


def redacted(line: str) -> str:
    """Replace keys and prompts in a line, so that it may be recorded.

    >>> redacted("args: {'api_key': ['abc'], 'max_num_seqs': 8}")
    "args: {'api_key': …, 'max_num_seqs': 8}"
    """
    if len(line) > LONGEST_LINE:
        line = line[:LONGEST_LINE] + LEFT_OUT
    return KEY.sub(LEFT_OUT, SECRET.sub(rf"\g<head>{LEFT_OUT}", line))


def telling(lines: Iterable[str]) -> list[str]:
    """The lines without noise that libraries print at exit."""
    return [line for line in lines if line.strip() and not NOISE.match(line)]


def rendezvous_files(path: Path) -> set[Path]:
    """Rendezvous files this engine left in the temporary directory, from its log."""
    try:
        with path.open("rb") as log:
            text = log.read(SEARCHED_BYTES).decode("utf-8", "replace")
    except OSError:
        return set()
    return {Path(name) for name in RENDEZVOUS.findall(text)}
