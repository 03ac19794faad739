"""Starts the child processes of an engine."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from embedded_engine.config import EngineConfig
from embedded_engine.errors import (
    NOT_INSTALLED,
    EngineError,
    EngineMissingError,
    ModelNotFoundError,
)
from embedded_engine.logs import open_log
from embedded_engine.startup_pipe import VARIABLE, StartupPipe


async def model_of(config: EngineConfig) -> str:
    """The model to serve, made first when it is the tiny one.

    Raises:
        ModelNotFoundError: it is a path, and nothing is there.
    """
    if config.tiny_model_dir is not None:
        return str(await make_tiny_model(config.tiny_model_dir))
    if config.model.startswith(("/", "./", "../", "~")):
        return str(existing(config.model))
    return config.model


def existing(name: str) -> Path:
    """The path of that name, if something is there.

    Raises:
        ModelNotFoundError: nothing is.
    """
    path = Path(name).expanduser()
    if not path.exists():
        raise ModelNotFoundError(
            f"no model at {path}: give a directory with config.json and weights, "
            "or the name of a model on the Hugging Face Hub"
        )
    return path


async def make_tiny_model(directory: Path) -> Path:
    """Make the tiny model in a child process: what it imports we never do.

    Raises:
        EngineError: it could not be made.
    """
    making = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "embedded_engine.tiny_model",
        str(directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        said, complaint = await making.communicate()
    except asyncio.CancelledError:
        making.kill()
        await making.wait()
        raise
    if making.returncode == 0:
        return Path(said.decode().strip())
    last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if "ModuleNotFoundError" in last:  # its libraries come with vLLM
        raise EngineMissingError(NOT_INSTALLED)
    raise EngineError(f"the tiny model could not be made in {directory}: {last}")


def spawn(config: EngineConfig, model: str, port: int | None, pipe: StartupPipe) -> int:
    """Start the server in a session of its own, all its output in its log; its pid.

    A session of its own: the terminal's Ctrl-C and hang-up are for us alone, and every
    process of the engine can be found by it. No ``Popen``, which insists on outliving
    its child: a served engine outlives us.
    """
    command = config.command(sys.executable, model, port)
    environment = {**config.environment(), VARIABLE: str(pipe.writer)}
    log = open_log(config.log_path)
    try:
        os.set_inheritable(pipe.writer, True)  # noqa: FBT003 - it takes no keywords
        return os.posix_spawn(
            sys.executable,
            command,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these itself
        )
    finally:
        os.close(log)
        pipe.hand_over()
