"""``inferwatch replay`` without a screen, and what it says when it cannot."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inferwatch.cli.main import inferwatch
from inferwatch.cli.running.chosen_session import session_location
from inferwatch.sample import sample_file

Run = Callable[..., Result]


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample session in a file of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copy(sample_file(), tmp_path / "s.db"))


@pytest.fixture
def run() -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(inferwatch, ["replay", *arguments])

    return invoke


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The numbers of all of the sample."""
    path = shutil.copy(sample_file(), tmp_path_factory.mktemp("whole") / "s.db")
    return numbers(CliRunner().invoke(inferwatch, ["replay", str(path), "--json"]))


def numbers(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    "wanted",
    [
        "s1",
        pytest.param("sample", marks=pytest.mark.soak),
        "sam",
        pytest.param("last", marks=pytest.mark.soak),
    ],
)
def test_a_session_is_found_by_id_name_prefix_or_as_the_last(
    run: Run, sample: Path, wanted: str
) -> None:
    assert numbers(run(wanted, "--db", str(sample), "--json"))["session_id"] == "s1"


def test_a_file_means_its_latest_session(sample: Path, whole: Any) -> None:
    with closing(sqlite3.connect(sample)) as file:
        (steps,) = file.execute("SELECT count(*) FROM steps").fetchone()
    assert whole["steps"]["count"] == steps > 1_000
    assert whole["client"]["succeeded"] > 200
    assert whole["ttft_s"]["p50"] > 0


def test_without_a_terminal_the_summary_is_printed(run: Run, sample: Path) -> None:
    result = run(str(sample))

    assert result.exit_code == 0
    assert "server clock" in result.stdout
    assert "client clock" in result.stdout


def test_the_summary_can_be_that_of_a_moment(
    run: Run, sample: Path, whole: Any
) -> None:
    half = numbers(run(str(sample), "--at", "50%", "--json"))
    late = numbers(run(str(sample), "--at", "-5s", "--json"))

    counts = [each["steps"]["count"] for each in (half, late, whole)]
    assert 0 < counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["s9"], "lists them", id="no session"),
        pytest.param(["s1", "--at", "noon"], "is not a time: 12:03:40", id="no time"),
        pytest.param(["s1", "--at", "9:00:00:00"], "is not a time", id="no clock"),
        pytest.param(["s1", "--at", "3h"], "is not in the session", id="too late"),
    ],
)
def test_what_cannot_be_is_said_with_what_can(
    run: Run, sample: Path, arguments: list[str], said: str
) -> None:
    result = run(*arguments, "--db", str(sample))

    assert result.exit_code == 1  # main() makes it 2
    assert said in str(result.exception)


@pytest.mark.parametrize("speed", ["0.01", "1000", "fast"])
def test_a_speed_has_limits(run: Run, speed: str) -> None:
    assert run("s1", "--speed", speed).exit_code == 2


def test_a_word_is_a_session_and_a_path_a_file(tmp_path: Path) -> None:
    here = tmp_path / "record"
    here.write_bytes(sample_file().read_bytes())

    assert session_location("s1", tmp_path / "x.db") == (tmp_path / "x.db", "s1")
    assert session_location("gone/y.db", None) == (Path("gone/y.db"), "last")
    assert session_location(str(here), None) == (here, "last")


def test_help_teaches_the_keys(run: Run) -> None:
    said = " ".join(run("--help").output.split())

    assert "space plays and pauses" in said
    assert "inferwatch replay s17 --at 12:03:40" in said


def test_the_sample_is_shown_without_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    result = CliRunner().invoke(inferwatch, ["demo", "--sample", "--json"])

    assert numbers(result)["engine"]["model"] == "tiny-llama"
    assert [path.suffix for path in (tmp_path / "cache").rglob("*.*")] == [".db"]
