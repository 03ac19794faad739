"""A place of its own for each test's engines, and proof that nothing stays behind."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from collectors.contract.liveness import birth
from embedded_engine.engine.config import EngineConfig, demo_config
from embedded_engine.engine.engine_processes import EngineProcess, EngineProcesses


@pytest.fixture
def engine_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sockets, engine files and logs go here; whatever still runs at the end fails."""
    monkeypatch.setenv("INFERWATCH_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path
    left = processes_of(tmp_path)
    names = [" ".join(process.cmdline())[:80] for process in left]
    for process in left:
        process.kill()
    assert names == []


def processes_of(home: Path) -> list[psutil.Process]:
    """Living processes, other than this one, that were started with that home."""
    found = []
    for process in psutil.process_iter():
        try:
            runtime_dir = process.environ().get("INFERWATCH_RUNTIME_DIR")
            alive = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if alive and runtime_dir == str(home / "run") and process.pid != os.getpid():
            found.append(process)
    return found


@pytest.fixture
def engine_config(engine_home: Path) -> Callable[..., EngineConfig]:
    """The demo's engine, with changes and with further flags."""

    def configure(*flags: str, **changes: Any) -> EngineConfig:
        config = demo_config()
        return replace(config, flags=(*config.flags, *flags), **changes)

    return configure


@pytest.fixture
def family_of() -> Callable[[int], EngineProcesses]:
    """The family of a living process, to see whether anybody of it stays."""

    def find(pid: int) -> EngineProcesses:
        born = birth(pid)
        assert born is not None
        family = EngineProcesses(EngineProcess(pid, born))
        family.members()
        return family

    return find
