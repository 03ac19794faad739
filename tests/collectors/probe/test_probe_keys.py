"""Key files of a probe and of its viewers."""

import stat
from pathlib import Path

import pytest

from collectors.probe.keys import KeyFileError, ProbeKeys, ViewerKeys, add_viewer


def test_each_side_has_what_it_needs_of_the_other(tmp_path: Path) -> None:
    ours, his = add_viewer(tmp_path / "keys", "alice")
    _, hers = add_viewer(tmp_path / "keys", "bob")

    probe, alice = ProbeKeys.read(ours), ViewerKeys.read(his)
    assert alice.probe == probe.public
    assert probe.viewers == {
        "alice": alice.public,
        "bob": ViewerKeys.read(hers).public,
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in (ours, his, hers)} == {0o600}


@pytest.mark.parametrize("name", ["rené", "明", "a-b_9"])
def test_a_viewers_name_is_of_any_language(tmp_path: Path, name: str) -> None:
    add_viewer(tmp_path, name)
    ours, _ = add_viewer(tmp_path, "bob")

    assert list(ProbeKeys.read(ours).viewers) == [name, "bob"]


def test_a_viewer_is_not_given_two_keys(tmp_path: Path) -> None:
    _, his = add_viewer(tmp_path, "alice")
    with pytest.raises(KeyFileError, match="there already"):
        add_viewer(tmp_path, "alice")
    his.unlink()
    with pytest.raises(KeyFileError, match="already, by another key"):
        add_viewer(tmp_path, "alice")


@pytest.mark.parametrize("name", ["probe", "", "a/b", 'a"', "../x"])
def test_a_name_is_one_of_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyFileError):
        add_viewer(tmp_path, name)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    ours, his = add_viewer(tmp_path, "alice")
    for path in (ours, his):
        path.chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        ProbeKeys.read(ours)
    with pytest.raises(KeyFileError, match="chmod 600"):
        ViewerKeys.read(his)


@pytest.mark.parametrize(
    "text", ["", "\x00", 'public = "short"', "viewers = 3", "[[[", '"\\ud800" = 1']
)
def test_what_is_no_key_file_is_refused_without_telling_it(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "x.key"
    path.write_text(text)
    path.chmod(0o600)
    for read in (ProbeKeys.read, ViewerKeys.read):
        with pytest.raises(KeyFileError, match=str(path)):
            read(path)


def test_secrets_are_in_no_representation(tmp_path: Path) -> None:
    ours, his = add_viewer(tmp_path, "alice")
    probe, viewer = ProbeKeys.read(ours), ViewerKeys.read(his)

    assert probe.secret not in repr(probe)
    assert viewer.secret not in repr(viewer)
