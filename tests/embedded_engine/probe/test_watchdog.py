"""An engine's process ends when the one that started it is gone; and only then."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from collectors.contract.liveness import birth

pytestmark = pytest.mark.process

CHILD = """
import signal, sys, time
from embedded_engine.probe.watchdog import watch_parent
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
watch_parent()
time.sleep(60)
"""


@contextmanager
def parent() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as it:
        try:
            yield it
        finally:
            it.kill()


@contextmanager
def child(pid: int, born: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "INFERWATCH_PARENT_PID": str(pid),
        "INFERWATCH_PARENT_START": str(born),
    }
    program = [sys.executable, "-c", CHILD, *arguments]
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE) as it:
        assert it.stdout is not None
        try:
            assert it.stdout.readline() == b"up\n"
            yield it
        finally:
            it.kill()


@pytest.mark.parametrize(
    ("arguments", "ends_by", "within_s"),
    [((), signal.SIGTERM, 2.0), (("stubborn",), signal.SIGKILL, 5.0)],
    ids=["asked", "made"],
)
def test_it_ends_soon_after_its_parent(
    arguments: tuple[str, ...], ends_by: signal.Signals, within_s: float
) -> None:
    with parent() as it, child(it.pid, birth(it.pid) or 0, *arguments) as watched:
        assert watched.poll() is None

        it.kill()
        killed_s = time.monotonic()

        assert watched.wait(timeout=20) == -ends_by
        assert time.monotonic() - killed_s < within_s


def test_another_process_of_the_same_pid_is_no_parent() -> None:
    with parent() as it, child(it.pid, (birth(it.pid) or 0) - 1) as watched:
        assert watched.wait(timeout=20) == -signal.SIGTERM


def test_who_was_given_no_parent_lives_on() -> None:
    program = "from embedded_engine.probe.watchdog import watch_parent as w; w()"
    environment = {k: v for k, v in os.environ.items() if "PARENT" not in k}

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program + "; import threading as t; t.active_count() == 1 or exit(3)",
        ],
        env=environment,
        check=False,
    )

    assert done.returncode == 0
