"""``inferwatch review`` judges a session or a server, and says so by its status."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inferwatch.cli.main import inferwatch
from inferwatch.cli.running import review as running
from inferwatch.errors import SourceError, UsageError
from inferwatch.sample import sample_file
from tests.inferwatch.metrics.findings.planted import SMALL_BATCH
from tests.inferwatch.printed.recorded import keep
from tests.inferwatch.studies.review.test_review import on_gpu

SERVER = "localhost:8000"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*words: str) -> Result:
    return CliRunner().invoke(inferwatch, ["review", *words], standalone_mode=False)


def planted(url: str, path: Path, duration_s: float) -> None:
    """In place of a watch of a server."""
    assert (url, duration_s) == (SERVER, 30.0)
    keep(path, "watched", on_gpu(SMALL_BATCH)())


def test_a_server_is_watched_into_a_file_that_does_not_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(running, "_watch", planted)

    done = run(SERVER, "--for", "batch", "--json")

    told = json.loads(done.stdout)
    assert done.return_value == 1  # something should change
    assert (told["changes"], told["for"], told["session_id"]) == (1, "batch", None)
    (change,) = (each["change"] for each in told["lines"] if each["change"])
    assert change["flag"] == "--max-num-seqs 4"
    assert change["gain"] is None  # it may be a loss
    assert change["gain_not_known"].startswith("with max_num_seqs 4 instead of 2, ")
    assert not list(tmp_path.glob("inferwatch-review-*"))


def test_a_server_that_never_answers_is_lost() -> None:
    done = run("http://127.0.0.1:9", "--duration", "0.1")

    assert isinstance(done.exception, SourceError)
    assert done.exception.exit_status == 3


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ((str(sample_file()), "--duration", "3"), "--duration is for a URL"),
        ((SERVER, "--db", "x.db"), "--db is for a recorded session"),
        ((str(sample_file()), "--source", "x"), "no server called x"),
    ],
)
def test_what_contradicts_itself_is_refused(words: tuple[str, ...], fault: str) -> None:
    done = run(*words)

    assert isinstance(done.exception, UsageError)
    assert fault in str(done.exception)
