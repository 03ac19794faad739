"""Why an engine cannot be had is said in a sentence that tells what to do."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import inferwatch
from embedded_engine.engine.config import EngineConfig
from embedded_engine.engine.errors import (
    EngineDiedError,
    FlagError,
    ModelNotFoundError,
    NoSuchEngineError,
    PortTakenError,
)
from embedded_engine.engine.launch import Engine

pytestmark = pytest.mark.process

Configure = Callable[..., EngineConfig]
SOME_MODEL: dict[str, Any] = {"model": "some/model", "tiny_model_dir": None}
"""A model nobody has to make: what is wrong is found before it is looked for."""


async def start(config: EngineConfig) -> None:
    engine = await Engine.start(config, lambda _: None)
    await engine.stop()
    pytest.fail("it started")


async def test_a_model_path_that_does_not_exist_is_named(
    engine_config: Configure, engine_home: Path
) -> None:
    missing = engine_home / "no-model"
    config = engine_config(model=str(missing), tiny_model_dir=None)

    with pytest.raises(ModelNotFoundError, match=f"no model at {missing}"):
        await start(config)

    assert not config.log_path.exists()  # vLLM was not even started


async def test_a_taken_port_is_named(engine_config: Configure) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(PortTakenError, match=f"127.0.0.1:{port}: Address already"):
            await start(engine_config(**SOME_MODEL, port=port))


async def test_a_unix_socket_in_use_is_named(
    engine_config: Configure, engine_home: Path
) -> None:
    path = engine_home / "taken.sock"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()

        with pytest.raises(PortTakenError, match="in use: choose another with --uds"):
            await start(engine_config(**SOME_MODEL, uds=path))


@pytest.mark.parametrize("flag", ["--port=1", "--host=::", "--uds"])
async def test_flags_that_inferwatch_must_know_are_refused_after_the_dashes(
    engine_config: Configure, flag: str
) -> None:
    with pytest.raises(FlagError, match="before the `--`"):
        await start(engine_config(flag, "x", **SOME_MODEL))


async def test_an_engine_that_is_not_served_cannot_be_adopted(
    engine_home: Path,
) -> None:
    with pytest.raises(NoSuchEngineError, match="no served engine 'gone'"):
        Engine.adopt("gone")


@pytest.mark.engine
@pytest.mark.parametrize(
    ("flag", "cause"),
    [
        ("--nonsense=3", "unrecognized arguments: --nonsense=3"),
        pytest.param(
            "--num-gpu-blocks-override=2",
            "ValueError: To serve at least one request",
            marks=pytest.mark.soak,
        ),
    ],
    ids=["unknown flag", "failure in EngineCore"],
)
async def test_a_failed_start_shows_its_cause_and_the_end_of_the_log(
    engine_config: Configure, flag: str, cause: str
) -> None:
    with pytest.raises(EngineDiedError) as caught:
        await start(engine_config(flag))

    first, *log = str(caught.value).splitlines()
    assert cause in first
    assert len(log) >= 3


START = """
import asyncio, sys
from dataclasses import replace
from embedded_engine.engine.config import demo_config
from embedded_engine.engine.errors import EngineError
from embedded_engine.engine.launch import Engine

config = demo_config()
if sys.argv[1] == "serve":
    config = replace(config, tiny_model_dir=None, model="some/model")
try:
    asyncio.run(Engine.start(config, print))
except EngineError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def light_python(engine_home: Path) -> Path:
    """An interpreter with what ``pip install inferwatch`` brings, and no vLLM."""
    venv = engine_home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (source,) = Path(sys.prefix).glob("lib/python*/site-packages")
    absent = ("vllm", "torch", "transformers", "tokenizers", "safetensors")
    for entry in source.iterdir():
        if not entry.name.startswith(absent):
            (site / entry.name).symlink_to(entry)
    (site / "project.pth").write_text(str(Path(inferwatch.__file__).parent.parent))
    return venv / "bin" / "python"


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_missing_vllm_is_one_sentence_with_the_command_to_install_it(
    light_python: Path, engine_home: Path, command: str
) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(engine_home / "cache")}

    said = subprocess.run(
        [light_python, "-c", START, command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert said.stdout.splitlines()[-1] == (
        "EngineMissingError vllm is not installed: pip install 'inferwatch[engine]'"
    ), said.stderr


@pytest.mark.engine
async def test_a_start_that_is_cancelled_leaves_no_process(
    engine_config: Configure,
) -> None:
    up = asyncio.Event()
    starting = asyncio.create_task(
        Engine.start(
            replace(engine_config(), engine_id="cancelled"),
            lambda note: up.set() if note.text == "process up" else None,
        )
    )
    await asyncio.wait_for(up.wait(), 30)

    starting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await starting
    # engine_home fails the test if a process is left
