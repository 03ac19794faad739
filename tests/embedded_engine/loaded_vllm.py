"""Programs with vLLM in their own process, forked from one that has loaded it.

To load it takes ten times as long as to bring up the engine of such a program. Run as
a program itself, this file is the one that has it loaded: it forks at each order.
"""

import asyncio
import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
ME = "tests.embedded_engine.loaded_vllm"
LOADED = (
    *("vllm", "vllm.v1.engine.llm_engine", "vllm.v1.executor.uniproc_executor"),
    *("vllm.v1.worker.cpu_worker", "vllm.v1.metrics.perf"),
    "vllm.entrypoints.launchers.api_server.entry",
)
MODELS = {
    "LlamaForCausalLM": "vllm.model_executor.models.llama",
    "Qwen2ForCausalLM": "vllm.model_executor.models.qwen2",
}
"""vLLM would start an interpreter to look at a class that it has not seen yet."""
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}
OURS = "INFERWATCH_"
LONGEST_ORDER = 1 << 17


@dataclass
class Program:
    """One that was forked; it prints JSON, an object a line."""

    pid: int
    log_path: Path
    _stdin: IO[bytes]
    _stdout: IO[bytes]

    async def told(self) -> dict[str, Any]:
        """What it tells next."""
        while not (line := await self._line()).startswith(b"{"):
            assert line, f"it ended: {self.log()}"
        return dict(json.loads(line))

    async def all_told(self) -> list[dict[str, Any]]:
        """Everything, to its end."""
        told = []
        while line := await self._line():
            if line.startswith(b"{"):
                told.append(json.loads(line))
        return told

    async def _line(self) -> bytes:
        return await asyncio.to_thread(self._stdout.readline)

    def go_on(self, text: str = "") -> None:
        """Tell it a line."""
        self._stdin.write(text.encode() + b"\n")
        self._stdin.flush()

    @property
    def alive(self) -> bool:
        """Nothing stays of one that ended."""
        return Path(f"/proc/{self.pid}").exists()

    def log(self) -> str:
        """The end of what it logged."""
        return self.log_path.read_text("utf-8")[-3_000:]

    def close(self) -> None:
        """End it and all that it started, if it has not ended."""
        for kill in (os.killpg, os.kill):  # it may not have its own group yet
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        while self.alive:  # whoever forked it buries it
            time.sleep(0.01)
        self._stdin.close()
        self._stdout.close()


class LoadedVllm:
    """The process that has loaded vLLM."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # What a test's engines are set to is said with each order.
        plain = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", ME, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env=plain | SETTINGS,
            )

    def run(
        self, log_path: Path, module: str, *arguments: str, **environment: str
    ) -> Program:
        """As ``python -m MODULE ARGUMENTS`` with our environment and that one."""
        order = json.dumps(
            {
                "module": module,
                "arguments": arguments,
                "environment": {**os.environ, **SETTINGS, **environment},
            }
        )
        (stdin, to_it), (from_it, stdout) = os.pipe(), os.pipe()
        with log_path.open("ab") as log:
            files = [stdin, stdout, log.fileno()]
            socket.send_fds(self._line, [order.encode()], files)
        os.close(stdin)
        os.close(stdout)
        answer = self._line.recv(32)
        assert answer, "vLLM could not be loaded"
        return Program(
            int(answer), log_path, os.fdopen(to_it, "wb"), os.fdopen(from_it, "rb")
        )

    def close(self) -> None:
        """End it; it forks no more."""
        self._line.close()
        self._process.wait()


@cache
def loaded_vllm() -> LoadedVllm:
    """One for all tests of this process, to its end."""
    loaded = LoadedVllm()
    atexit.register(loaded.close)
    return loaded


def main() -> None:
    load()
    line = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing stays of who ended
    while True:
        order, files, *_ = socket.recv_fds(line, LONGEST_ORDER, 3)
        if not order:
            return
        pid = os.fork()
        if not pid:
            line.close()
            become(files, **json.loads(order))
            return
        for each in files:
            os.close(each)
        line.send(str(pid).encode())


def load() -> None:
    from embedded_engine.worker import answer_for_cpu_wheel  # noqa: PLC0415

    gc.disable()
    answer_for_cpu_wheel()
    for each in LOADED:
        importlib.import_module(each)
    registry = importlib.import_module("vllm.model_executor.models.registry")
    for name, module in MODELS.items():
        model = getattr(importlib.import_module(module), name)
        registry.ModelRegistry.register_model(name, model)
    gc.freeze()
    gc.enable()
    # To go through all of that at the end of an engine takes seconds.
    gc.unfreeze = lambda: None


def become(
    files: list[int], module: str, arguments: list[str], environment: dict[str, str]
) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, each in enumerate(files):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
