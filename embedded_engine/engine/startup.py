"""Starts the processes of an engine and follows them until it is healthy.

Every stage is an event of the processes themselves; the log is not read.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

import httpx
import msgspec

from collectors.contract.clock import SessionClock, monotonic_ns
from collectors.contract.collector import CollectorError
from collectors.contract.readings import EngineInfo, Note, NoteKind
from collectors.http.bounded_get import NoAnswerError, get
from collectors.http.http_client import http_client
from collectors.probe.hello import Role
from collectors.probe.stream import ProbeStream
from embedded_engine.engine.config import EngineConfig
from embedded_engine.engine.engine_file import EngineFile
from embedded_engine.engine.errors import (
    NOT_INSTALLED,
    EngineError,
    EngineMissingError,
    ModelNotFoundError,
)
from embedded_engine.engine.logs import open_log
from embedded_engine.engine.startup_pipe import VARIABLE, StartupPipe

MODEL_FILES = ("config.json", "params.json", "*.gguf")
"""A model directory contains one of these."""
LOOK_S = 0.05
TIMEOUT_S = 2.0

OnStage = Callable[[Note], None]


def stage(text: str) -> Note:
    """A note that a stage has been reached."""
    return Note(kind=NoteKind.STAGE, text=text, t_ns=monotonic_ns())


class StartupProgress:
    """Reports the stages of a start in order, as they are reached."""

    def __init__(self, pipe: StartupPipe, engine_id: str, on_stage: OnStage) -> None:
        self.stream = ProbeStream(SessionClock(), engine_id, backfill=False)
        self._on_stage = on_stage
        self._kv_ready = False
        self._ahead: list[tuple[str, Callable[[], bool]]] = [
            ("process up", lambda: pipe.up),
            ("plug-in in API server", lambda: self._heard(Role.API)),
            ("plug-in in EngineCore", lambda: self._heard(Role.CORE)),
            ("weights and KV done", lambda: self._kv_ready),
        ]

    def _heard(self, role: Role) -> bool:
        return any(hello.role is role for hello in self.stream.hellos.values())

    def tell(self) -> None:
        """Report stages reached since the last call."""
        while self._ahead and self._ahead[0][1]():
            self._on_stage(stage(self._ahead.pop(0)[0]))

    def tell_rest(self) -> None:
        """Report stages reached although an earlier one never was."""
        for text, reached in self._ahead:
            if reached():
                self._on_stage(stage(text))

    async def listen(self) -> None:
        """Follow the probes, which report when the KV cache is ready."""
        with suppress(CollectorError):
            async for batch in self.stream.batches():
                infos = [r for r in batch if isinstance(r, EngineInfo)]
                self._kv_ready |= any(i.num_kv_blocks is not None for i in infos)


async def follow(
    pipe: StartupPipe, engine_id: str, client: httpx.AsyncClient, on_stage: OnStage
) -> None:
    """Report the stages of a start, and return once the server is healthy."""
    progress = StartupProgress(pipe, engine_id, on_stage)
    listening = asyncio.create_task(progress.listen())
    try:
        while not await healthy(client):
            progress.tell()
            await asyncio.sleep(LOOK_S)
        progress.tell_rest()
        on_stage(stage("health 200"))
    finally:
        await progress.stream.close()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


async def model_of(config: EngineConfig) -> str:
    """The model to serve; the tiny model is created first.

    Raises:
        ModelNotFoundError: it is a path without a model.
    """
    if config.tiny_model_dir is not None:
        return str(await make_tiny_model(config.tiny_model_dir))
    return checked_model(config.model)


def checked_model(name: str) -> str:
    """The model name for vLLM; a path is checked, not loaded.

    Raises:
        ModelNotFoundError: it is a path without a model.
    """
    if not _is_path(name):
        return name
    path = Path(name).expanduser()
    if not path.exists():
        raise ModelNotFoundError(
            f"no model at {path}{_did_you_mean(path)}: give a directory with "
            "config.json and weights, or the name of a model on the Hugging Face Hub"
            f"{_if_the_hubs_is_meant(name)}"
        )
    if path.is_dir() and not any(map(list, map(path.glob, MODEL_FILES))):
        raise ModelNotFoundError(
            f"no model at {path}: the directory has no config.json; give the one that "
            "holds config.json and the weights"
        )
    return str(path)


def _is_path(name: str) -> bool:
    """Whether a model's name is a path, not a remote name such as ``org/name``."""
    if "://" in name:
        return False
    if name.startswith(("/", "./", "../", "~")) or Path(name).exists():
        return True
    folder, slash, rest = name.partition("/")
    return "/" in rest or bool(slash and Path(folder).is_dir())


def _if_the_hubs_is_meant(name: str) -> str:
    folder, _, rest = name.partition("/")
    if folder.startswith((".", "~")) or not folder or "/" in rest:
        return ""
    return f" (its {name}: where there is no folder {folder}/)"


def _did_you_mean(path: Path) -> str:
    """Text that suggests the most similar name in the directory; empty without one."""
    with suppress(OSError):
        names = sorted(each.name for each in path.parent.iterdir())
        for like in get_close_matches(path.name, names, 1):
            return f" (is it {path.with_name(like)}?)"
    return ""


async def make_tiny_model(directory: Path) -> Path:
    """Create the tiny model in a child process, which has imports we avoid.

    Raises:
        EngineError: it could not be created.
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
        output, complaint = await making.communicate()
    except asyncio.CancelledError:
        making.kill()
        await making.wait()
        raise
    if making.returncode == 0:
        return Path(output.decode().strip())
    last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if "ModuleNotFoundError" in last:  # the libraries come with vLLM
        raise EngineMissingError(NOT_INSTALLED)
    raise EngineError(f"the tiny model could not be made in {directory}: {last}")


def spawn(config: EngineConfig, model: str, port: int | None, pipe: StartupPipe) -> int:
    """Start the server in its own session, logging to its file; returns the PID.

    In a session of its own it gets no Ctrl-C or hang-up of our terminal, and its
    processes can be found. ``Popen`` would warn about a child that outlives us, as a
    served engine does.
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


class _Model(msgspec.Struct):
    """An entry of ``/v1/models``."""

    id: str


class _Models(msgspec.Struct):
    """The response of ``/v1/models``."""

    data: list[_Model]


def connect(file: EngineFile) -> httpx.AsyncClient:
    """An HTTP client for the engine's server, without proxies."""
    own = file.url is not None and file.url.startswith("https:")
    return http_client(
        file.url or "http://localhost",
        uds=file.uds,
        timeout_s=TIMEOUT_S,
        verify=not own,
        proxies=False,
    )


async def healthy(client: httpx.AsyncClient) -> bool:
    """Whether ``/health`` succeeds."""
    try:
        await get(client, "/health", timeout_s=TIMEOUT_S)
    except NoAnswerError:
        return False
    return True


async def served_model(client: httpx.AsyncClient) -> str | None:
    """The model name for requests; None if the server lists none, as without a key."""
    try:
        answer = await get(client, "/v1/models", timeout_s=TIMEOUT_S)
    except NoAnswerError:
        return None
    return msgspec.json.decode(answer.body, type=_Models).data[0].id
