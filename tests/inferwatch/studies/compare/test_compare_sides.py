"""Sides of several runs: ``--``, tags and directories, as people type them."""

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from collectors.contract.clock import SessionClock
from inferwatch.errors import UsageError
from inferwatch.record.sessions.housekeeping import retag
from inferwatch.record.sessions.sessions import list_sessions
from inferwatch.record.writing.recorder import Recorder
from inferwatch.studies.compare.runs.sides import (
    MOST_RUNS,
    distinct,
    find_sides,
    label_of,
)
from tests.inferwatch.studies.compare.conftest import TinyEngine, write

Run = Callable[..., tuple[int, str, str]]
RUNS = ("before1", "after1", "before2", "after2", "before 3: hot")


def add(new: Sequence[str], had: Sequence[str]) -> list[str]:
    """The tags it had, and the new."""
    return [*had, *new]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs tagged ``old``, two ``new``, of the same engine."""
    path = tmp_path_factory.mktemp("runs") / "sessions.db"
    for seed, name in enumerate(RUNS):
        write(path, name, TinyEngine(seed).run(20))
    for row in list_sessions(path):
        tags = ["old" if (row.name or "").startswith("before") else "new"]
        retag(path, row.session, partial(add, tags))
    return path


@pytest.fixture
def compared(runs: Path, run_command: Run) -> Run:
    """``compared(*arguments)`` in the file of the runs, as JSON where it went well."""

    def run(*arguments: object) -> tuple[int, str, str]:
        return run_command("--db", runs, *arguments)

    return run


def sides_of(text: str) -> list[tuple[str, str]]:
    """Of each pair: the names of both sides."""
    first, *others = (side["name"] for side in json.loads(text)["sides"])
    return [(first, other) for other in others]


def test_two_dashes_part_runs_into_sides(compared: Run) -> None:
    words = ("before1", "before2", "--", "after1", "after2", "--json")
    status, text, _ = compared(*words)

    found = json.loads(text)
    assert status == 0
    assert sides_of(text) == [("before ×2", "after ×2")]
    assert [each["name"] for each in found["sessions"]] == [
        word for word in words if not word.startswith("--")
    ]


def test_without_dashes_each_is_a_side_against_the_first(compared: Run) -> None:
    _, text, _ = compared("before1", "after1", "after2", "--json")

    assert sides_of(text) == [("before1", "after1"), ("before1", "after2")]


def test_more_dashes_make_more_sides_and_ids_mix_with_names(compared: Run) -> None:
    _, text, _ = compared("s1", "before2", "--", "after1", "--", "last", "--json")

    assert sides_of(text) == [("before ×2", "after1"), ("before ×2", RUNS[-1])]


def test_a_tag_is_a_side_of_all_its_sessions_and_says_how_many(compared: Run) -> None:
    _, text, _ = compared("tag:old", "tag:new", "--json")

    found = json.loads(text)
    assert sides_of(text) == [("old ×3", "new ×2")]
    assert [each["name"] for each in found["sessions"][:3]] == [
        "before1",
        "before2",
        "before 3: hot",
    ]


def test_a_tag_of_another_file_and_a_session_mix(
    runs: Path, tmp_path: Path, run_command: Run
) -> None:
    empty = tmp_path / "other.db"
    write(empty, "alone", TinyEngine(9).run(20))

    _, text, _ = run_command("--db", empty, "alone", f"{runs}:tag:new", "--json")

    assert sides_of(text) == [("alone", "new ×2")]


def test_a_directory_is_a_side_of_its_files_in_order(
    runs: Path, tmp_path: Path, compared: Run
) -> None:
    folder = tmp_path / "nightly runs"
    folder.mkdir()
    for name in ("b.db", "a.db"):
        write(folder / name, name, TinyEngine(ord(name[0])).run(20))
    (folder / "notes.txt").write_text("not a session")

    _, text, _ = compared("before1", folder, "--json")

    assert sides_of(text) == [("before1", "nightly runs ×2")]
    names = [each["name"] for each in json.loads(text)["sessions"]]
    assert names == ["before1", "a.db", "b.db"]


def test_windows_are_of_a_side_each(compared: Run) -> None:
    words = ("before1", "before2", "--", "after1", "after2")
    window = ("--a-from", "2", "--b-from", "4", "--json")

    _, text, _ = compared(*words, *window)

    starts = [each["from_s"] for each in json.loads(text)["sessions"]]
    assert starts == pytest.approx([2, 2, 4, 4])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--", "after1", "after2"), "a side is empty"),
        (("before1", "--"), "a side is empty"),
        (("before1", "--", "--", "after1"), "a side is empty"),
        (("--",), "a side is empty"),
        (("before1",), "needs two sessions"),
        (("tag:old",), "needs two sessions"),
        (("before1", "before1", "--", "after1"), "before1 is given twice"),
        (("before1", "--", "after1", "s1"), "before1 is given twice"),
        (("tag:old", "before2"), "before2 is given twice"),
        (
            ("s1", "--", *(f"x{place}" for place in range(MOST_RUNS + 1))),
            f"x0 … x{MOST_RUNS} means {MOST_RUNS + 1} runs",
        ),
        (
            tuple(f"x{place}" for place in range(10_000)),
            "these are 10,000 sides, each to be compared with the first",
        ),
        (("tag:none", "tag:new"), "has the tag 'none': there are new, old"),
        (("tag:", "tag:new"), "has the tag ''"),
        (("before1", "nosuch/"), "nosuch/: there is no such file, and no session"),
        (("before1", "aftr.json"), "aftr.json: there is no such file"),
        (("before1", "nosuch"), "No session 'nosuch'"),
        (
            ("before1", "after1", "--inconclusive-fails"),
            "--inconclusive-fails is for --fail-if",
        ),
    ],
    ids=lambda each: str(each)[:40],
)
def test_what_makes_no_sides_says_why(
    compared: Run, arguments: tuple[str, ...], why: str
) -> None:
    status, _, errors = compared(*arguments)

    assert status == 2
    assert why in errors


def test_a_tag_and_a_directory_of_too_many_runs_are_refused(
    runs: Path, tmp_path: Path, compared: Run, run_command: Run
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for place in range(1_000):
        (folder / f"{place}.json").touch()
    crowded = tmp_path / "crowded.db"
    for place in range(MOST_RUNS + 1):
        write(crowded, f"r{place}", iter(()))
    for row in list_sessions(crowded):
        retag(crowded, row.session, lambda _: ["all"])

    _, _, by_folder = compared("before1", folder)
    _, _, by_tag = run_command("--db", crowded, "tag:all", f"{runs}:before1")

    assert f"1,000 runs: a side may have up to {MOST_RUNS}" in by_folder
    assert f"tag:all means {MOST_RUNS + 1} runs" in by_tag


def test_a_directory_called_like_a_session_is_asked_about(
    compared: Run, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "before1"
    folder.mkdir()
    shutil.copy(runs, folder / "copy.db")
    monkeypatch.chdir(tmp_path)

    status, _, errors = compared("before1", "after1")
    _, text, _ = compared("before1/", "after1", "--json")

    assert status == 2
    assert "write before1/ for the directory, and the session by its id" in errors
    assert sides_of(text) == [(RUNS[-1], "after1")]


def test_a_file_called_like_a_tag_is_named_by_its_folder(
    compared: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "tag:new", "odd", TinyEngine(11).run(20))
    monkeypatch.chdir(tmp_path)

    _, by_tag, _ = compared("before1", "tag:new", "--json")
    _, by_file, _ = compared("before1", "./tag:new", "--json")

    assert sides_of(by_tag) == [("before1", "new ×2")]
    assert sides_of(by_file) == [("before1", "odd")]


def test_an_empty_directory_says_what_it_looked_for(
    compared: Run, tmp_path: Path
) -> None:
    status, _, errors = compared("before1", tmp_path)

    assert status == 2
    assert "holds no sessions and no results" in errors
    assert ".json" in errors


@pytest.mark.parametrize(
    ("conditions", "flags", "status"),
    [
        (("joules_per_token > +5%",), (), 0),
        (("joules_per_token > +5%",), ("--inconclusive-fails",), 4),
        (("tpot_p50_s > -90%", "joules_per_token > +5%"), ("--inconclusive-fails",), 1),
        (("tpot_p50_s > +900%",), ("--inconclusive-fails",), 0),
    ],
    ids=str,
)
def test_what_cannot_be_told_has_an_exit_status_of_its_own(
    compared: Run, conditions: tuple[str, ...], flags: tuple[str, ...], status: int
) -> None:
    """The p99 needs 500 values, and the sessions have some 150 requests."""
    asked = [word for text in conditions for word in ("--fail-if", text)]

    ended, text, _ = compared("before1", "after1", *asked, *flags)

    assert ended == status
    if "joules_per_token > +5%" in conditions:
        said = "fails" if flags else "passes"
        assert f"cannot tell, so it {said}" in " ".join(text.split())


@pytest.mark.parametrize(
    ("runs_of_side", "label"),
    [
        (("before1", "before2", "before3"), "before ×3"),
        (("before", "before2"), "before ×2"),
        (("32-a", "32-b"), "32 ×2"),
        (("run 10", "run 11"), "run ×2"),
        (("a1", "a2"), "a ×2"),
        (("s1", "s2"), "s1 … s2 ×2"),
        (("1", "2"), "1 … 2 ×2"),
        (("belated", "before"), "belated … before ×2"),
        (("monday", "friday"), "monday … friday ×2"),
        (("alone",), "alone"),
    ],
    ids=str,
)
def test_a_side_is_called_by_what_its_runs_have_in_common(
    runs_of_side: tuple[str, ...], label: str
) -> None:
    assert label_of(runs_of_side) == label


def test_sides_of_one_label_are_told_apart() -> None:
    runs_of = [("run1", "run2"), ("run3", "run4")]

    labels = distinct([label_of(each) for each in runs_of], runs_of)

    assert labels == ["run1 … run2 ×2", "run3 … run4 ×2"]


def order_of(text: str) -> dict[str, str] | None:
    """What is said of the order of the runs of the first pair."""
    checks = json.loads(text)["pairs"][0]["quality"]
    return next((each for each in checks if each["subject"] == "order"), None)


@pytest.mark.parametrize(
    ("words", "quality", "said"),
    [
        (
            ("before1", "before2", "--", "after1", "after2"),
            "good",
            "The runs came in turn: A B A B.",
        ),
        (
            ("s1", "s2", "--", "s3", "s4"),
            "doubtful",
            "All runs of before2 … after2 ×2 came after all runs of before1 …",
        ),
        (
            ("s4", "s5", "--", "s1"),
            "doubtful",
            "All runs of after2 … before 3: hot ×2 came after all runs of before1",
        ),
        (("s1", "s3", "--", "s2"), "good", "in turn: A B A."),
    ],
    ids=str,
)
def test_runs_in_blocks_are_doubtful(
    compared: Run, words: tuple[str, ...], quality: str, said: str
) -> None:
    _, text, _ = compared(*words, "--json")

    check = order_of(text)
    assert check is not None
    assert check["quality"] == quality
    assert said in check["sentence"]


def test_of_single_runs_no_order_is_asked(compared: Run) -> None:
    _, text, _ = compared("before1", "after1", "--json")

    assert order_of(text) is None


def test_one_name_twice_tells_which_two_are_called_so(tmp_path: Path) -> None:
    database = tmp_path / "s.db"
    for command in ("demo", "load", "demo"):
        clock = SessionClock()
        Recorder.open(database, clock=clock, command=command, floor_bytes=0).close()

    with pytest.raises(UsageError) as told:
        find_sides(("demo", "demo"), database)

    assert str(told.value).endswith(
        f"; `inferwatch compare s1 s3 --db {database}` compares it with the demo "
        "before it"
    )
