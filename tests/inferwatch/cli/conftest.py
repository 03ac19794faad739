"""``inferwatch load`` as people type it, and a server that knows the truth."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferwatch.cli.main import main

COMMAND = [sys.executable, "-P", "-m", "inferwatch.cli", "load"]


@pytest.fixture
def server(truth_url: str) -> str:
    """The truth server's URL."""
    return truth_url


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    own = {
        "INFERWATCH_DB": str(tmp_path / "sessions.db"),
        "INFERWATCH_RUNTIME_DIR": str(tmp_path / "run"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    kept = {k: v for k, v in os.environ.items() if not k.endswith("API_KEY")}
    return {**kept, **own}


Done = subprocess.CompletedProcess[str]


@pytest.fixture
def load(server: str, environment: dict[str, str]) -> Callable[..., Done]:
    """``load(*flags, url=..., **environment)``: the command, run to its end."""

    def run(*flags: str, url: str = server, **more: str) -> Done:
        return subprocess.run(
            [*COMMAND, url, *flags],
            capture_output=True,
            text=True,
            timeout=60,
            env={**environment, **more},
            check=False,
        )

    return run


@pytest.fixture
def found(load: Callable[..., Done]) -> Callable[..., dict[str, Any]]:
    """The summary of a run that went well."""

    def run(*flags: str, **others: str) -> dict[str, Any]:
        done = load(*flags, "--json", **others)
        assert done.returncode == 0, done.stderr
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    return run


@pytest.fixture
def refused(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """What is said of flags that no load can be made of; nothing is started for it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def run(*flags: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["load", "http://127.0.0.1:9", *flags])
        assert ended.value.code == 2
        return capsys.readouterr().err

    return run
