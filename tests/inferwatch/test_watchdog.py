"""A process that hangs ends all the same, with its record whole."""

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from inferwatch.watchdog import STATUS

pytestmark = pytest.mark.process

HANGS = """
import sys, threading
from pathlib import Path
from collectors.contract.clock import SessionClock
from collectors.contract.readings import Tick
from inferwatch import watchdog
from inferwatch.cli.running.recording import open_recorder

clock = SessionClock()
recorder = open_recorder(
    "test", clock, database=Path(sys.argv[1]), name=None, record=True
)
for number in range(1000):
    recorder.put(number + 1, Tick(t_ns=number))
watchdog.end_within(0.05)
hung = threading.Lock()
hung.acquire()
hung.acquire()
"""


def test_what_hangs_is_ended_once_its_record_is_written(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"

    ended = subprocess.run(
        [sys.executable, "-c", HANGS, str(path)], timeout=60, check=False
    )

    assert ended.returncode == STATUS
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM ticks").fetchone() == (1000,)
        assert file.execute("SELECT state FROM sessions").fetchone() == ("complete",)


def test_a_record_that_cannot_be_written_does_not_keep_it_for_ever() -> None:
    code = (
        "from inferwatch import watchdog; from time import sleep\n"
        "watchdog.WRITES_S = 0.1\n"
        "watchdog.before_the_end(lambda: sleep(1000))\n"
        "watchdog.end_within(0.0); sleep(1000)"
    )
    began_s = time.monotonic()

    ended = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)

    assert ended.returncode == STATUS
    assert time.monotonic() - began_s < 30
