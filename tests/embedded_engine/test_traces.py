"""vLLM's profiler: where it writes, and the flags that it needs."""

from pathlib import Path

import platformdirs
import pytest

from embedded_engine.engine import traces
from embedded_engine.engine.config import EngineConfig, demo_config
from embedded_engine.engine.traces import trace_dir
from embedded_engine.probe_settings import ProbeSettings


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        platformdirs, "user_state_path", lambda *_, **__: tmp_path / "state"
    )
    return tmp_path / "state" / "traces"


def config(*flags: str, profiler: bool = True) -> EngineConfig:
    probe = ProbeSettings(profiler=profiler)
    return EngineConfig(
        model="m", flags=flags, engine_id="e1", log_path=Path("log"), probe=probe
    )


def test_an_engine_has_a_profiler_where_asked_for(state: Path) -> None:
    command = config().command("python", "m", 1)

    assert "--profiler-config.profiler=torch" in command
    assert f"--profiler-config.torch_profiler_dir={state / 'e1'}" in command
    assert (state / "e1").stat().st_mode & 0o777 == 0o700


def test_without_it_vllm_has_none(state: Path) -> None:
    command = config(profiler=False).command("python", "m", 1)

    assert not [each for each in command if "profiler" in each]
    assert not state.exists()


@pytest.mark.parametrize(
    "chosen",
    [
        "--profiler-config.profiler=cuda",
        '--profiler-config={"profiler": "cuda"}',
        "--profiler-config.torch_profiler_dir=/somewhere",
        "--profiler_config.profiler=cuda",
    ],
)
def test_a_profiler_that_the_user_chose_is_left_alone(chosen: str) -> None:
    command = config(chosen).command("python", "m", 1)

    assert [each for each in command if "profiler" in each] == [chosen]


def test_another_setting_of_the_user_comes_after_ours(state: Path) -> None:
    stacks = "--profiler-config.torch_profiler_with_stack"
    command = config(f"{stacks}=true").command("python", "m", 1)

    assert f"--profiler-config.torch_profiler_dir={state / 'e1'}" in command
    ours, theirs = (each for each in command if each.startswith(stacks))
    assert (ours, theirs) == (f"{stacks}=false", f"{stacks}=true")


@pytest.mark.usefixtures("state")
def test_the_installed_vllm_knows_all_that_it_is_told() -> None:
    told = [each for each in config().command("python", "m", 1) if "profiler" in each]

    assert len(told) == 7


@pytest.mark.usefixtures("state")
def test_an_older_vllm_is_told_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    known = frozenset({"profiler", "torch_profiler_dir", "torch_profiler_with_stack"})
    monkeypatch.setattr(traces, "known_settings", lambda: known)

    told = [each for each in config().command("python", "m", 1) if "profiler" in each]

    assert [each.partition("=")[0].rpartition(".")[2] for each in told] == [
        "profiler",
        "torch_profiler_dir",
        "torch_profiler_with_stack",
    ]


@pytest.mark.usefixtures("state")
def test_a_vllm_without_a_profiler_starts_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traces, "known_settings", frozenset)

    assert "profiler" not in " ".join(config().command("python", "m", 1))


@pytest.mark.usefixtures("state")
def test_the_demo_has_one_always() -> None:
    command = demo_config(ProbeSettings(control=True)).command("python", "m", 1)

    assert "--profiler-config.profiler=torch" in command


def test_directories_without_traces_are_removed(state: Path) -> None:
    trace_dir("old")
    (trace_dir("kept") / "rank0.pt.trace.json").touch()

    trace_dir("new")

    assert sorted(each.name for each in state.iterdir()) == ["kept", "new"]
