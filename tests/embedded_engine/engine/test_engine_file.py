"""A served engine is found while it lives and forgotten when it is dead."""

import fcntl
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from collectors.contract.clock import boot_id
from collectors.contract.liveness import birth, is_held
from collectors.contract.runtime_dir import RuntimeDirError, runtime_dir, socket_path
from embedded_engine.engine import engine_file
from embedded_engine.engine.engine_file import (
    EngineFile,
    find_engine,
    running_engines,
    scratch_dir,
    served_engines,
    sweep,
)
from embedded_engine.engine.errors import NoSuchEngineError

Describe = Callable[..., EngineFile]
NO_PID = 4_194_303
"""The last that Linux gives, on a host of many processes."""


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def describe(engine_home: Path) -> Describe:
    """An engine file of a process, ours unless told."""

    def make(engine_id: str, pid: int | None = None) -> EngineFile:
        pid = pid or os.getpid()
        return EngineFile(
            engine_id=engine_id,
            pid=pid,
            birth=birth(pid) or 0,
            boot_id=boot_id(),
            model="m",
            url="http://127.0.0.1:1",
            log_path="log",
        )

    return make


def test_what_was_written_is_found(describe: Describe) -> None:
    file = describe("one")

    file.write()

    assert find_engine("one") == file
    assert file.path.stat().st_mode & 0o077 == 0


@pytest.mark.process
def test_the_oldest_comes_first(
    describe: Describe, other_process: "subprocess.Popen[bytes]"
) -> None:
    describe("a-young", other_process.pid).write()
    describe("b-old").write()

    assert [file.engine_id for file in served_engines()] == ["b-old", "a-young"]


def test_an_engine_that_dies_with_its_watcher_is_asked_and_never_adopted(
    describe: Describe,
) -> None:
    file = msgspec.structs.replace(describe("demo"), hostage=True)
    file.write()

    assert running_engines() == [file]
    assert served_engines() == []
    with pytest.raises(NoSuchEngineError):
        find_engine("demo")


@pytest.mark.process
def test_the_dead_are_not_found_and_swept_away(
    describe: Describe, other_process: "subprocess.Popen[bytes]"
) -> None:
    file = describe("dead", other_process.pid)
    file.write()
    other_process.kill()
    other_process.wait()

    with pytest.raises(NoSuchEngineError):
        find_engine("dead")
    sweep()

    assert not file.path.exists()


def test_an_engine_of_another_container_is_left_alone_while_its_probe_listens(
    describe: Describe,
) -> None:
    file = msgspec.structs.replace(describe("theirs"), pid=NO_PID)
    file.write()
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(str(socket_path("theirs", NO_PID)))
        probe.listen()

        sweep()
        meanwhile = file.path.exists()

    socket_path("theirs", NO_PID).unlink()
    sweep()

    assert meanwhile
    assert not file.path.exists()
    assert served_engines() == []


def test_the_scratch_of_another_container_stays_before_it_has_any_socket(
    engine_home: Path,
) -> None:
    scratch = scratch_dir("theirs")
    elsewhere = scratch.rename(scratch.with_name(f"theirs.{NO_PID}.vllm"))
    dead = scratch.with_name(f"dead.{NO_PID}.vllm")
    dead.mkdir()

    sweep()

    assert elsewhere.exists()
    assert not dead.exists()


def test_a_scratch_is_held_though_somebody_looked_at_it_just_then(
    engine_home: Path,
) -> None:
    scratch = scratch_dir("e")
    os.close(engine_file._held.pop(scratch))
    looking = os.open(scratch, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_EX)
    looked = threading.Timer(0.05, os.close, [looking])
    looked.start()

    assert scratch_dir("e") == scratch
    looked.join()

    assert is_held(scratch)


@pytest.mark.parametrize("change", [{"boot_id": "another"}, {"birth": 1}])
def test_a_pid_that_came_again_is_another_process(
    describe: Describe, change: dict[str, object]
) -> None:
    msgspec.structs.replace(describe("past"), **change).write()

    assert served_engines() == []


def test_a_file_of_another_version_is_left_alone(engine_home: Path) -> None:
    foreign = runtime_dir() / "foreign.json"
    foreign.write_text('{"pid": "seven"}')

    assert served_engines() == []
    sweep()

    assert foreign.exists()


def test_a_file_under_another_name_or_that_others_may_write_to_names_no_engine(
    describe: Describe,
) -> None:
    file = describe("one")
    file.write()
    file.path.rename(runtime_dir() / "other.json")
    assert served_engines() == []

    file.write()
    file.path.chmod(0o660)
    assert served_engines() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_nobody_else_can_say_which_process_is_an_engine_of_ours(
    describe: Describe,
) -> None:
    file = describe("forged")
    file.write()
    os.chown(file.path, 12_345, 12_345)

    with pytest.raises(NoSuchEngineError):
        find_engine("forged")
    assert file.path.exists()


def test_a_pipe_or_a_link_that_is_called_an_engine_file_holds_nobody_up(
    describe: Describe, tmp_path: Path
) -> None:
    file = describe("one")
    file.write()
    file.path.rename(tmp_path / "one.json")
    file.path.symlink_to(tmp_path / "one.json")
    os.mkfifo(runtime_dir() / "pipe.json", 0o600)

    assert served_engines() == []
    sweep()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_scratch_that_another_user_made_is_not_used(engine_home: Path) -> None:
    os.chown(scratch_dir("e"), 12_345, 12_345)

    with pytest.raises(RuntimeDirError):
        scratch_dir("e")


@pytest.mark.process
def test_the_scratch_of_the_living_stays_and_of_the_dead_goes(
    engine_home: Path, other_process: "subprocess.Popen[bytes]"
) -> None:
    own = scratch_dir("e")
    other = own.with_name(f"e.{other_process.pid}.vllm")
    other.mkdir()
    (other / "socket").touch()
    other_process.kill()
    other_process.wait()

    sweep()

    assert own.exists()
    assert not other.exists()
    own.rmdir()
