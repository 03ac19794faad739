"""Stacks of real processes: by py-spy, by themselves, or not, with the reason."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from collectors.contract.liveness import birth
from collectors.contract.readings import Stacks, StackSource
from collectors.stacks import dump_file, py_spy, take
from collectors.stacks.dump_file import dump_path
from collectors.stacks.take import take_stacks
from collectors.stacks.watchdog_dump import watchdog_threads

pytestmark = [pytest.mark.process]

WAITER = """
import queue, sys, threading, time
from embedded_engine.probe.stack_dumps import StackDump
if "probe" in sys.argv:
    StackDump("engine").register()
name = "wait\\x1b[31mer"
for _ in range(120 if "crowd" in sys.argv else 1):
    threading.Thread(target=queue.Queue().get, name=name, daemon=True).start()
def stand_still():
    print("ready", flush=True); time.sleep(60)
if "fork" in sys.argv:
    import os
    if os.fork():
        os.wait()
    print(os.getpid(), flush=True)
stand_still()
"""
LOCKS = """
import fcntl, sys, time
file = open(sys.argv[1], "rb+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(60)
"""
GOOD = (
    '[{"pid":1,"thread_name":"MainThread","os_thread_id":1,"frames":'
    '[{"name":"f","filename":"/x/site-packages/vllm/a.py","line":3}]}]'
)


@pytest.fixture(autouse=True)
def no_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(take, "tool", lambda: None)


@contextmanager
def waiter(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-c", WAITER, *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


Fake = Callable[[str], None]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    """Makes a py-spy that is a shell script."""

    def make(script: str) -> None:
        path = tmp_path / "py-spy"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        monkeypatch.setattr(take, "tool", lambda: path)

    return make


def taken(pid: int) -> Stacks:
    return take_stacks(pid, "EngineCore", 7)


def test_a_process_with_a_probe_writes_its_stacks_down() -> None:
    with waiter("probe") as process:
        said(process)
        first, second = taken(process.pid), taken(process.pid)

        assert process.poll() is None

    assert first.taken_by is StackSource.FAULTHANDLER
    assert first.threads[0].name == "MainThread"
    assert first.threads[0].frames[0].startswith("stand_still (")
    assert any(t.frames[0] == "wait (threading.py:327)" for t in first.threads[1:])
    assert second.threads == first.threads  # the file was emptied in between


def test_watchers_read_the_same_process_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dump_file, "LIMIT_S", 0.2)
    with waiter("probe") as process:
        said(process)
        ((path, _),) = dump_file.dump_files()
        command = (sys.executable, "-c", LOCKS, str(path))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            said(other)
            refused = taken(process.pid)
            other.kill()
        found = taken(process.pid)

    assert "another watcher reads" in (refused.why or "")
    assert found.threads


def test_of_two_dumps_the_last_is_read() -> None:
    one = 'Thread 0x1 (most recent call first):\n  File "/x/a.py", line {} in f\n\n'
    main = (
        'Current thread 0x2 (most recent call first):\n  File "/m.py", line {} in g\n'
    )
    both = "".join((one + main).format(number, number) for number in (1, 2))

    threads = dump_file.parsed_dump(both)

    assert [each.frames for each in threads] == [["g (m.py:2)"], ["f (a.py:2)"]]
    assert threads[0].name == "MainThread"


def test_of_more_than_100_threads_none_is_taken_for_the_main_one() -> None:
    with waiter("probe", "crowd") as process:
        said(process)
        found = taken(process.pid)

    assert len(found.threads) == 100
    assert all(each.name != "MainThread" for each in found.threads)


def test_a_forked_child_writes_down_its_own() -> None:
    with waiter("probe", "fork") as process:
        child = int(said(process))
        said(process)
        of_child, of_parent = taken(child), taken(process.pid)
        assert dump_path("engine", child, signal.SIGRTMIN + 9).exists()
        os.kill(child, signal.SIGKILL)

    assert of_child.threads[0].frames[0].startswith("stand_still")
    assert of_parent.threads[0].frames[0].startswith("<module>")


def test_a_process_without_a_probe_gets_no_signal() -> None:
    with waiter() as process:
        said(process)
        found = taken(process.pid)

        assert process.poll() is None

    assert found.threads == []
    assert "no probe of ours" in (found.why or "")


def test_a_pid_that_was_given_to_another_process_gets_no_signal() -> None:
    with waiter() as process:
        said(process)
        number = signal.SIGRTMIN + 9
        dump_path("engine", process.pid, number).touch(0o600)
        found = taken(process.pid)

        assert process.poll() is None

    assert "no probe of ours" in (found.why or "")


def test_a_stopped_process_says_that_it_is() -> None:
    with waiter("probe") as process:
        said(process)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        found = taken(process.pid)
        os.kill(process.pid, signal.SIGCONT)

    assert found.stopped
    assert "is stopped" in (found.why or "")


@pytest.mark.parametrize("reaped", [True, False], ids=["gone", "a zombie"])
def test_a_dead_process(*, reaped: bool) -> None:
    with subprocess.Popen((sys.executable, "-c", "")) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if reaped:
            process.wait()

        assert birth(process.pid) is None
        assert taken(process.pid).why == "the process is gone"


def test_a_process_of_another_user_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with waiter("probe") as process:
        said(process)
        monkeypatch.setattr(os, "geteuid", lambda: 4_321)
        found = taken(process.pid)

    assert found.threads == []
    assert "only this user's" in (found.why or "")


def test_py_spy_is_believed(fake: Fake) -> None:
    fake(f"echo '{GOOD}'")

    found = taken(os.getpid())

    assert found.taken_by is StackSource.PY_SPY
    assert found.paused_ns == 0
    assert found.threads[0].frames == ["f (vllm/a.py:3)"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Permission Denied: try sudo'; exit 1", "SYS_PTRACE"),
        ("echo 'Error: no interpreter'; exit 1", "Error: no interpreter"),
        ("echo '[{\"frames\": 7}]'", "read nothing"),
        ("printf '\\377\\376'", "read nothing"),
        ("yes | head -c 100000000", "more than 8 MB"),
        ("sleep 60", "did not answer"),
        ("kill -9 $$", "nothing said"),
    ],
    ids=["refused", "failed", "rubbish", "bytes", "100 MB", "hangs", "killed"],
)
def test_py_spy_that_fails_is_no_harm(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    monkeypatch.setattr(py_spy, "LIMIT_S", 1.0)
    monkeypatch.setattr(py_spy, "YAMA", Path("/nonexistent"))
    fake(script)

    with waiter("probe") as process:
        said(process)
        found = taken(process.pid)

    assert why in (found.why or "")
    assert found.taken_by is StackSource.FAULTHANDLER


def test_a_pause_is_short_and_told_even_if_nothing_was_read(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(py_spy, "LONGEST_PAUSE_S", 0.3)
    fake('case "$*" in *nonblocking*) echo "Error: it changed" ;; *) sleep 60 ;; esac')

    found = taken(os.getpid())

    assert "did not answer" in (found.why or "")
    assert found.paused_ns is not None
    assert 0.2e9 < found.paused_ns < 2e9


def test_a_py_spy_that_reads_is_ended_by_who_leaves(fake: Fake) -> None:
    fake("exec sleep 60")
    Timer(0.3, py_spy.end_running).start()

    found = taken(os.getpid())

    assert "py-spy was ended" in (found.why or "")
    assert found.paused_ns is None  # it did not begin again


@pytest.mark.parametrize(
    ("says", "is_used"),
    [("py-spy 0.3.14", False), ("py-spy 0.4.0", True), ("", False)],
)
def test_an_old_py_spy_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, *, is_used: bool
) -> None:
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\necho {says}\n")
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    assert py_spy.tool() == (path if is_used else None)


@pytest.mark.parametrize("scope", [1, 2, 3])
def test_yama_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: int
) -> None:
    (tmp_path / "scope").write_text(f"{scope}\n")
    monkeypatch.setattr(py_spy, "YAMA", tmp_path / "scope")

    assert f"ptrace_scope is {scope}" in py_spy.why_refused()


@pytest.mark.skipif(py_spy.tool() is None, reason="py-spy is not installed")
def test_the_real_py_spy_reads_a_stopped_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(take, "tool", py_spy.tool)
    with waiter() as process:
        said(process)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        found = taken(process.pid)
        os.kill(process.pid, signal.SIGCONT)

    assert (found.taken_by, found.stopped) == (StackSource.PY_SPY, True)
    assert found.threads[0].frames[0].startswith("stand_still (")
    assert "wait\x1b[31mer" in [each.name for each in found.threads]


def test_what_vllms_watchdog_wrote_is_found_by_the_log(tmp_path: Path) -> None:
    path = tmp_path / "VLLM_STACK_DUMP_for_engine_0_4711.log"
    dump = 'Thread 0x1 (most recent call first):\n  File "/x/a.py", line {} in held\n'
    head = "\n>>> Call stack dump #{} at Mon Jan  1 due to feed timeout\n\n"
    path.write_text(
        head.format(1) + dump.format(1) + head.format(2) + dump.format(2) + "=" * 64
    )
    path.chmod(0o600)
    line = f"INFO [Watchdog]Dumped stack to {path} due to feed timeout"

    (thread,) = watchdog_threads(["other", line], 4711)

    assert thread.frames == ["held (a.py:2)"]
    assert watchdog_threads([line], 4712) == []
    assert watchdog_threads([line.replace("VLLM", "NONE")], 4711) == []
