"""``inferwatch load`` as people type it, and a server that knows the truth."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferwatch.cli.main import main
from inferwatch.loadgen import target_server as idle_server


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
def here(
    environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """``here(*words, **environment)``: a command, run to its end in this process.

    It looks for others' traffic as often as ever, but not for as long.
    """

    def run(*words: str, **more: str) -> Done:
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patched:
            for name in {*os.environ} - {*environment}:
                patched.delenv(name)
            for name, value in {**environment, **more}.items():
                patched.setenv(name, value)
            patched.setattr(idle_server, "TRAFFIC_LOOK_S", 0.01)
            with pytest.raises(SystemExit) as ended:
                main(words)
        status = ended.value.code
        assert isinstance(status, int)
        return Done(words, status, *capsys.readouterr())

    return run


@pytest.fixture
def load(server: str, here: Callable[..., Done]) -> Callable[..., Done]:
    """``load(*flags, url=..., **environment)``: the load, run to its end."""

    def run(*flags: str, url: str = server, **more: str) -> Done:
        return here("load", url, *flags, **more)

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
