"""What is kept of an engine's start where vLLM, or the host, is not as expected."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Stage
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.about import startup_stages
from embedded_engine.probe.about.startup_stages import (
    StageTimer,
    TimedStage,
    keep,
    stages_of,
)
from embedded_engine.probe.hooks import Fuse

S = NS_PER_S
READ_S, COPY_S = 0.02, 0.1


class Weight:
    nbytes = 100


class Loader:
    """Reads its weights while they are copied, as vLLM's do."""

    load_config = SimpleNamespace(safetensors_load_strategy="eager")

    def get_all_weights(self) -> Iterator[tuple[str, Weight]]:
        until = time.monotonic() + READ_S
        while time.monotonic() < until:
            pass  # a fast disk: the thread runs
        yield "w", Weight()

    def load_weights(self) -> None:
        for _ in self.get_all_weights():
            time.sleep(COPY_S)


@pytest.fixture(autouse=True)
def stages(monkeypatch: pytest.MonkeyPatch) -> list[TimedStage]:
    monkeypatch.setattr(startup_stages, "STAGES", [])
    monkeypatch.setattr(startup_stages, "MISSING", {})
    return startup_stages.STAGES


@pytest.fixture
def timer() -> StageTimer:
    return StageTimer(Fuse(pytest.fail))


def test_waiting_for_copies_is_no_waiting_for_storage(
    timer: StageTimer, stages: list[TimedStage], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (names.LOAD_WEIGHTS, names.ALL_WEIGHTS):
        monkeypatch.setattr(Loader, name, getattr(Loader, name))  # unhooked at the end
    loader = Loader()
    timer._loader_born(loader)

    loader.load_weights()

    read, transfer = stages
    assert (read.stage, transfer.stage) == (Stage.READ, Stage.TRANSFER)
    assert read.n_bytes == 100
    assert read.waited_ns is not None
    assert read.waited_ns <= read.duration_ns < COPY_S * S <= transfer.duration_ns


def test_a_stage_takes_no_less_than_no_time(stages: list[TimedStage]) -> None:
    keep(Stage.PROFILE, 0, -7 * S)

    assert stages[0].duration_ns == 0


def test_a_worker_that_is_elsewhere_is_missed_and_breaks_nothing(
    timer: StageTimer,
) -> None:
    timer._worker_born(SimpleNamespace(), (), 0)

    (missed,) = startup_stages.MISSING
    assert missed.startswith("WorkerWrapperBase.worker")


@pytest.mark.parametrize(
    ("command", "process", "began_s"),
    [
        (["python", "vllm", "serve", "m"], "EngineCore_DP0", 10),
        (["python", "-m", "vllm.entrypoints.openai.api_server"], "MainProcess", 10),
        (["ipykernel_launcher"], "EngineCore_DP0", 3_610),
        (["python", "observe.py"], "MainProcess", None),
    ],
    ids=["served", "served in one process", "engine of a notebook", "application"],
)
def test_imports_begin_with_what_was_started_to_serve(
    command: list[str],
    process: str,
    began_s: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created_s = {1: 10.0, os.getpid(): 3_610.0}

    def process_of(pid: int = os.getpid()) -> Any:
        return SimpleNamespace(
            cmdline=lambda: command, create_time=lambda: created_s[pid]
        )

    monkeypatch.setenv("INFERWATCH_FIRST_PID", "1")
    monkeypatch.setattr(psutil, "Process", process_of)
    monkeypatch.setattr(startup_stages, "wall_offset_ns", lambda: 0)
    monkeypatch.setattr(
        multiprocessing,
        "current_process",
        lambda: SimpleNamespace(name=process),
    )
    device = {"stage": "device", "begin_wall_ns": 3_650 * S, "duration_ns": S}

    first, *_ = stages_of([{"stages": [device]}], rank=0)

    if began_s is None:
        assert first.stage is Stage.DEVICE
    else:
        assert first.stage is Stage.IMPORTS
        assert (first.t_ns, first.duration_ns) == (began_s * S, (3_650 - began_s) * S)
