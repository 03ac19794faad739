"""Traces are kept beside the record: what is ours is moved there, counted, deleted."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferwatch.record.file import trace_folder as folders
from inferwatch.record.file.trace_folder import (
    copy_plain,
    forget_traces,
    move_traces,
    trace_sizes,
    traces_folder,
    traces_in,
)
from inferwatch.record.sessions import erasing, housekeeping
from inferwatch.record.sessions.sizes import sizes_in
from inferwatch.record.writing.recorder import Recorder

PREFIX = "inferwatch-one-0-1"
TRACE = f"{PREFIX}_dp0_rank0.7.pt.trace.json"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Where an engine writes traces, with much that is none of this profile."""
    directory = tmp_path / "traces"
    directory.mkdir()
    (directory / TRACE).write_text("{}")
    (directory / f"{PREFIX}_dp0_rank1.7.pt.trace.json.gz").write_text("packed")
    (directory / f"{PREFIX}2_dp0_rank0.7.pt.trace.json").write_text("the twelfth")
    (directory / f"{PREFIX}_rank0.profiler_out.txt").write_text("a table")
    (directory / f"{PREFIX}_folder.json").mkdir()
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    (directory / f"{PREFIX}_link.json").symlink_to(secret)
    return directory


def test_only_regular_files_of_the_profile_are_its_traces(written: Path) -> None:
    names = [each.name for each in traces_in(written, [PREFIX])]

    assert names == [TRACE, f"{PREFIX}_dp0_rank1.7.pt.trace.json.gz"]


@pytest.mark.parametrize(
    "prefix", ["", "..", "../traces/x", ".hidden", "a/b", "x" * 300]
)
def test_a_name_that_leads_elsewhere_finds_nothing(written: Path, prefix: str) -> None:
    assert traces_in(written, [prefix]) == []
    assert traces_in(written / "missing", [PREFIX]) == []


def test_traces_are_moved(written: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept" / "s1"
    before = len([*written.iterdir()])
    moved = move_traces(written, [PREFIX], folder)

    assert [each.name for each in moved] == [
        TRACE,
        f"{PREFIX}_dp0_rank1.7.pt.trace.json.gz",
        f"{PREFIX}_rank0.profiler_out.txt",
    ]
    assert (folder / TRACE).read_text() == "{}"
    assert len([*written.iterdir()]) == before - 3
    assert folder.stat().st_mode & 0o777 == 0o700


def test_across_file_systems_traces_are_copied(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def other_device(path: Path, target: Path) -> Path:
        if path.parent == written:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", other_device)
    folder = tmp_path / "s1"
    move_traces(written, [PREFIX], folder)

    assert (folder / TRACE).read_text() == "{}"
    assert not (written / TRACE).exists()
    assert [each.name for each in folder.iterdir() if each.name.startswith(".")] == []


def test_no_link_is_followed_in_copying(written: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="symbolic"):
        copy_plain(written / f"{PREFIX}_link.json", tmp_path / "copy")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular"):
        copy_plain(tmp_path / "pipe", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.fixture
def sessions(record: Callable[..., Recorder], traffic_of: Any, path: Path) -> Path:
    """Two sessions, each with a trace."""
    for number in (1, 2):
        recorder = record()
        for at, reading in enumerate(traffic_of().start(), 1):
            recorder.put(at, reading)
        recorder.close()
        folder = traces_folder(path, f"s{number}")
        folder.mkdir(parents=True)
        (folder / TRACE).write_bytes(b"x" * 1_000_000)
    return path


def test_traces_count_as_part_of_their_session(sessions: Path) -> None:
    assert trace_sizes(sessions) == {1: 1_000_000, 2: 1_000_000}
    sizes = sizes_in(sessions)

    assert all(1_000_000 < size < 1_500_000 for size in sizes.of.values())
    assert sum(sizes.of.values()) <= sizes.used_bytes
    assert sizes.trace_bytes == 2_000_000
    assert sizes.file_bytes == sessions.stat().st_size


def test_what_is_erased_takes_its_traces_along(sessions: Path) -> None:
    housekeeping.put_away(sessions, [1])
    assert traces_folder(sessions, "s1").exists()

    erasing.erase(sessions, [1])
    assert not traces_folder(sessions, "s1").exists()
    assert (traces_folder(sessions, "s2") / TRACE).exists()

    erasing.erase(sessions, [2])
    assert not traces_folder(sessions, "s2").parent.exists()


def test_traces_that_a_deletion_left_behind_go_later(sessions: Path) -> None:
    stray = traces_folder(sessions, "s9")
    stray.mkdir()
    (stray / TRACE).write_bytes(b"x" * 5)
    assert erasing.beside(sessions, []) == 5

    erasing.vacuum(sessions)
    assert not stray.exists()
    assert traces_folder(sessions, "s1").exists()


def test_only_folders_of_sessions_are_looked_at(tmp_path: Path) -> None:
    database = tmp_path / "some.db"
    kept = database.with_name("some.db" + folders.FOLDER_END)
    (kept / "mine").mkdir(parents=True)
    (kept / "s7").symlink_to(tmp_path)

    assert trace_sizes(database) == {}
    forget_traces(database, 7)
    assert tmp_path.exists()
    assert (kept / "s7").is_symlink()


def test_only_traces_are_moved_whatever_else_has_their_prefix(tmp_path: Path) -> None:
    written = tmp_path / "written"
    written.mkdir()
    for name in (f"{PREFIX}_rank0.json", f"{PREFIX}_keys.pem", f"{PREFIX}_a.json.bak"):
        (written / name).write_text("{}")

    moved = move_traces(written, [PREFIX], tmp_path / "kept")

    assert [each.name for each in moved] == [f"{PREFIX}_rank0.json"]


def test_a_directory_that_cannot_be_one_has_no_traces() -> None:
    for directory in ("/a\0b", f"/{'x' * 5_000}"):
        assert traces_in(Path(directory), [PREFIX]) == []
