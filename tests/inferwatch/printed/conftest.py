"""Commands as people type them, in this process, over sessions that never change."""

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from inferwatch.cli.main import main
from inferwatch.cli.running import compare
from inferwatch.record.sessions import sizes
from inferwatch.studies.compare.comparison import Comparison
from inferwatch.studies.compare.reading.session_reader import ProgressListener
from inferwatch.studies.compare.runs.selection import ComparisonRequest, run_comparison
from tests.inferwatch.printed.recorded import record_all

COLUMNS = "100"
TERMINALS = ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR")
Printed = Callable[..., str]


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they were recorded, once."""
    folder = tmp_path_factory.mktemp("sessions")
    record_all(folder)
    return folder


@pytest.fixture(autouse=True)
def same_everywhere(
    sessions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Time zone, home, width of the terminal, folder, and the pages of files."""
    for name in TERMINALS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", COLUMNS)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("INFERWATCH_DB", "sessions.db")
    monkeypatch.setattr(sizes, "sizes", of_a_million_bytes)
    monkeypatch.setattr(click.core, "_detect_program_name", lambda: "inferwatch")
    monkeypatch.chdir(sessions)
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def of_a_million_bytes(connection: sqlite3.Connection) -> sizes.SessionSizes:
    """Each session: what it takes is SQLite's business, and changes with it."""
    rows = connection.execute("SELECT session FROM sessions").fetchall()
    of = {session: 1_000_000 for (session,) in rows}
    used = sum(of.values())
    return sizes.SessionSizes(
        by=sizes.SizeMethod.TABLES, used_bytes=used, free_bytes=0, of=of
    )


@pytest.fixture(scope="session")
def computed() -> Callable[[ComparisonRequest], Comparison]:
    """Compared once for all forms of it: that is what takes time."""
    known: dict[str, Comparison] = {}

    def look_up(
        wanted: ComparisonRequest, tell: ProgressListener = lambda _: None
    ) -> Comparison:
        what = f"{wanted.database} {wanted.sessions} {wanted.choices} {wanted.slo}"
        what += f" {wanted.rules}"
        if what not in known:
            known[what] = run_comparison(wanted, tell)
        return known[what]

    return look_up


@pytest.fixture
def printed(
    computed: Callable[[ComparisonRequest], Comparison],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Printed:
    """``printed(*words)``: what a command prints, its errors and its exit status."""
    monkeypatch.setattr(compare, "run_comparison", computed)

    def run(*words: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(words)
        out, err = capsys.readouterr()
        told = out
        told += f"[stderr]\n{err}" if err else ""
        told += f"[exit status {ended.value.code}]\n" if ended.value.code else ""
        return told.replace(str(Path.cwd()), "FOLDER")

    return run


@pytest.fixture
def own_copy(sessions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sessions in a folder of this test, which may change them."""
    shutil.copy(sessions / "sessions.db", tmp_path / "sessions.db")
    monkeypatch.chdir(tmp_path)
    return tmp_path
