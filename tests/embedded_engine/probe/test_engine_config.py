"""An engine's command line, environment and log."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.contract.liveness import birth
from embedded_engine.engine import config as configuration
from embedded_engine.engine.config import DEMO_ENV, EngineConfig, cpu_defaults
from embedded_engine.engine.errors import ModelNotFoundError
from embedded_engine.engine.logs import KEPT_LOGS, new_log_path, open_log, prune, tail
from embedded_engine.engine.startup import checked_model

Configure = Callable[..., EngineConfig]


def served(home: Path, **changes: object) -> EngineConfig:
    return EngineConfig(model="m", log_path=home / "log", **changes)  # type: ignore[arg-type]


def test_the_users_flags_come_last(engine_home: Path) -> None:
    config = served(engine_home, flags=("--max-num-seqs", "4"))

    assert config.command("python", "m", 8000) == [
        *("python", "-m", "embedded_engine.worker", "serve", "m"),
        *("--host", "127.0.0.1", "--port", "8000"),
        *("--max-num-seqs", "4"),
    ]


def test_a_unix_socket_takes_the_place_of_host_and_port(engine_home: Path) -> None:
    config = served(engine_home, uds=Path("/run/api.sock"))

    assert config.command("python", "m", None)[5:] == ["--uds", "/run/api.sock"]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model among others, in the directory where the command is given."""
    for name in ("models/tiny", "models/empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "models/tiny/config.json").touch()
    (tmp_path / "some.gguf").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    "name",
    ["models/tiny", "./models/tiny", "some.gguf", "org/name", "gpt2", "s3://a/b/c"],
)
def test_a_model_that_may_be_there_is_left_to_vllm(name: str) -> None:
    assert Path(checked_model(name)) == Path(name)


def test_a_model_at_home_is_given_with_its_path(models: Path) -> None:
    assert checked_model("~/models/tiny") == str(models / "models/tiny")


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./no/such", "no model at no/such: give a directory with config.json"),
        ("~/nothing", "/nothing: give a directory"),
        ("some/where/else", "no model at some/where/else: "),
        ("models/tinny", r"no model at models/tinny \(is it models/tiny\?\): "),
        ("models/other", r"Hub \(its models/other: where there is no folder models/"),
        ("models/empty", "the directory has no config.json"),
    ],
)
def test_a_path_without_a_model_is_named(name: str, said: str) -> None:
    with pytest.raises(ModelNotFoundError, match=said):
        checked_model(name)


def test_only_a_hostage_knows_its_parent(
    engine_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_PARENT_PID", "1")  # we are somebody's child too

    hostage = served(engine_home, hostage=True).environment()
    free = served(engine_home, hostage=False).environment()

    assert hostage["INFERWATCH_PARENT_PID"] == str(os.getpid())
    assert hostage["INFERWATCH_PARENT_START"] == str(birth(os.getpid()))
    assert not any(name.startswith("INFERWATCH_PARENT") for name in free)


def test_every_engine_is_probed_under_its_own_name(
    engine_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERWATCH_PROBE", "0")
    monkeypatch.setenv("INFERWATCH_ENGINE_ID", "another")
    config = served(engine_home)

    environment = config.environment()

    assert environment["INFERWATCH_PROBE"] == "1"
    assert environment["INFERWATCH_ENGINE_ID"] == config.engine_id
    assert environment["INFERWATCH_RUNTIME_DIR"] == str(engine_home / "run")


def test_the_demos_settings_do_not_touch_other_engines(
    engine_home: Path, engine_config: Configure
) -> None:
    assert engine_config().environment()["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in served(engine_home).env


@pytest.mark.parametrize(
    ("features", "cpu", "dtype"),
    [
        ({"avx2", "fma"}, True, "float32"),
        ({"avx2", "fma"}, False, "bfloat16"),
        ({"avx2", "avx512bw", "avx512vl", "avx512dq"}, True, "bfloat16"),
        ({"asimd", "bf16"}, True, "bfloat16"),
        ({"asimd"}, True, "float32"),
        (set(), True, "bfloat16"),
    ],
)
def test_the_demo_computes_in_what_its_processor_is_fast_at(
    monkeypatch: pytest.MonkeyPatch, features: set[str], dtype: str, *, cpu: bool
) -> None:
    monkeypatch.setattr(configuration, "cpu_features", lambda: features)
    monkeypatch.setattr(configuration, "built_for_cpu", lambda: cpu)

    assert f"--dtype={dtype}" in configuration.demo_config().flags


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine with so many cores and a vLLM built for the CPU or not."""

    def be(cores: float, *, cpu: bool = True, **variables: str) -> None:
        monkeypatch.setattr(configuration, "usable_cores", lambda: cores)
        monkeypatch.setattr(configuration, "built_for_cpu", lambda: cpu)
        for name in ("OMP_NUM_THREADS", "VLLM_ENABLE_V1_MULTIPROCESSING"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return be


def test_on_two_cores_a_cpu_engine_gets_what_the_demos_gets_and_it_is_said(
    machine: Callable[..., None],
) -> None:
    machine(2)

    env, notice = cpu_defaults(("--max-num-seqs=4",))

    assert env.items() <= DEMO_ENV.items()
    assert len(env) == 2
    assert "OMP_NUM_THREADS=1" in str(notice)


def test_of_more_cores_it_leaves_one(machine: Callable[..., None]) -> None:
    machine(4)

    assert cpu_defaults(())[0]["OMP_NUM_THREADS"] == "3"


def test_the_users_own_variables_win(machine: Callable[..., None]) -> None:
    machine(2, OMP_NUM_THREADS="2")

    env, notice = cpu_defaults(())

    assert set(env) == {"VLLM_ENABLE_V1_MULTIPROCESSING"}
    assert "OMP" not in str(notice)


@pytest.mark.parametrize(
    ("cores", "cpu", "flags"),
    [(2, False, ()), (64, True, ()), (2, True, ("-tp", "2"))],
    ids=["a GPU engine", "a large machine", "the user's layout"],
)
def test_nothing_is_set_for(
    machine: Callable[..., None], cores: float, cpu: bool, flags: tuple[str, ...]
) -> None:
    machine(cores, cpu=cpu)

    assert cpu_defaults(flags) == ({}, None)


@pytest.mark.parametrize(
    ("flags", "env", "busy"),
    [
        ((), {}, 2),
        ((), DEMO_ENV, 1),
        (("-tp=2",), DEMO_ENV, 2),
        ((), {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": ""}, 2),
    ],
    ids=["vLLM's choice", "the demo's", "workers all the same", "a thread a core"],
)
def test_the_busy_threads_of_a_cpu_engine_are_known_from_its_settings(
    engine_home: Path,
    machine: Callable[..., None],
    flags: tuple[str, ...],
    env: dict[str, str],
    busy: int,
) -> None:
    machine(2)
    assert served(engine_home, flags=flags, env=env).cpu_threads() == busy

    machine(2, cpu=False)
    assert served(engine_home, flags=flags, env=env).cpu_threads() is None


def test_the_newest_logs_are_kept(engine_home: Path) -> None:
    for age in range(KEPT_LOGS + 5):
        path = new_log_path(f"{age:02}")
        path.write_text("")
        os.utime(path, (age, age))

    kept = sorted(path.name for path in path.parent.iterdir())

    assert kept == [f"engine-{age:02}.log" for age in range(5, KEPT_LOGS + 5)]


def test_the_log_of_who_still_runs_is_kept_however_long_it_says_nothing(
    tmp_path: Path,
) -> None:
    resting, dead = (tmp_path / f"engine-{each}.log" for each in ("rests", "dead"))
    os.close(open_log(dead))
    descriptor = open_log(resting)
    inherited = os.dup(descriptor)  # as its process has it
    os.close(descriptor)

    prune(tmp_path, 0)
    assert list(tmp_path.iterdir()) == [resting]

    os.close(inherited)
    prune(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_not_pruned(tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_text("mine")

    prune(tmp_path, 0)

    assert (tmp_path / "notes.log").exists()


@pytest.mark.parametrize(
    ("asked", "got"), [(2, ["b", "c"]), (9, ["a", "b", "c"]), (0, [])]
)
def test_the_tail_of_a_log_is_its_last_lines(
    tmp_path: Path, asked: int, got: list[str]
) -> None:
    log = tmp_path / "log"
    log.write_text("a\nb\nc\n")

    assert tail(log, asked) == got


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert tail(tmp_path / "none", 5) == []
