"""What is worked in leaves nothing behind."""

import shutil
import tempfile
from pathlib import Path

import pytest

from inferwatch.record.file.location import scratch_folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_is_there_until_the_end(place: Path) -> None:
    with scratch_folder("import") as folder:
        (folder / "file").touch()
        assert [each.name.rpartition("-")[0] for each in place.iterdir()] == [
            "inferwatch-import"
        ]

    assert list(place.iterdir()) == []


def test_ctrl_c_while_it_is_removed_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = False
    remove = shutil.rmtree

    def interrupt_once(*arguments: object, **others: object) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt
        remove(*arguments, **others)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(shutil, "rmtree", interrupt_once)

    with pytest.raises(KeyboardInterrupt), scratch_folder("import") as folder:
        (folder / "file").touch()

    assert interrupted
    assert list(place.iterdir()) == []
