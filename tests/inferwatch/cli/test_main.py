"""The command line teaches, and fails in words."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from inferwatch import __version__
from inferwatch.cli.main import inferwatch, main
from inferwatch.errors import SourceError


def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """The real command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "inferwatch.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "command", [[], ["demo"], ["serve"], ["load"], ["calibrate"], ["sessions"]]
)
def test_help_shows_what_to_type(command: list[str]) -> None:
    result = CliRunner().invoke(inferwatch, [*command, "--help"])

    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(inferwatch, ["--version"])

    assert __version__ in result.output


def test_a_sqlite_that_is_too_old_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))

    with pytest.raises(SystemExit) as ended:
        main(["sessions"])

    assert ended.value.code == 2
    assert "needs SQLite 3.38.2 or newer" in capsys.readouterr().err


def test_an_unknown_command_is_a_usage_error_without_a_traceback() -> None:
    status, _, err = run("dmeo")

    assert status == 2
    assert "No such command" in err
    assert "Traceback" not in err


def test_a_duration_of_nothing_is_a_usage_error() -> None:
    status, _, err = run("demo", "--duration", "0")

    assert status == 2
    assert "--duration" in err


def test_without_an_engine_it_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path))

    with pytest.raises(SystemExit) as ended:
        main([])

    assert ended.value.code == 3
    assert "inferwatch demo" in capsys.readouterr().err


def test_a_model_path_that_does_not_exist_is_said_before_anything_starts(
    tmp_path: Path,
) -> None:
    record = str(tmp_path / "sessions.db")
    (tmp_path / "vllm").mkdir()  # found where no real one is; nobody starts it
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    status, out, err = run("serve", "/no/such/model", "--json", "--db", record, env=env)

    assert status == 3
    assert "/no/such/model" in err
    assert "Traceback" not in err
    assert json.loads(out)["requests"]["finished"] == 0


@pytest.mark.parametrize("command", [["demo"], ["serve", "some/model"]])
def test_a_missing_vllm_is_said_before_a_session_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr("inferwatch.watching.installed.find_spec", lambda _: None)
    record = tmp_path / "sessions.db"

    with pytest.raises(SourceError, match=r"pip install 'inferwatch\[engine\]'"):
        inferwatch.main([*command, "--db", str(record)], standalone_mode=False)

    assert not record.exists()


def test_help_loads_no_engine_no_screen_and_no_arithmetic() -> None:
    script = (
        "import sys; from inferwatch.cli.main import inferwatch\n"
        "inferwatch.main(['--help'], standalone_mode=False)\n"
        "heavy = {'vllm', 'torch', 'transformers', 'textual', 'rich', 'numpy', 'httpx'}"
        "\nprint(heavy & set(sys.modules), file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize(
    "module",
    [
        "inferwatch.watching.watch",
        "inferwatch.storage.replay",
        "inferwatch.loading.load_session",
    ],
)
def test_watching_and_replaying_load_no_engine_and_no_screen(module: str) -> None:
    # httpx brings rich along for its own command line; that costs us nothing.
    script = (
        f"import sys, {module}\n"
        "print({'vllm', 'torch', 'transformers', 'textual'} & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"
