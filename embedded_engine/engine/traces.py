"""Where an engine's own profiler writes its traces, and the flags it needs."""

from contextlib import suppress
from pathlib import Path

import platformdirs

PROFILER = "--profiler-config.profiler"
"""The flag by which a user chooses a profiler."""


def trace_dir(engine_id: str) -> Path:
    """Directory for a new engine's traces, made with the first profile it may take.

    Whoever asks for a profile moves its traces away, so directories of earlier engines
    that are empty are removed.
    """
    traces = platformdirs.user_state_path("inferwatch", appauthor=False) / "traces"
    traces.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in traces.iterdir():
        with suppress(OSError):  # it holds traces that nobody took
            each.rmdir()
    directory = traces / engine_id
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def profiler_flags(directory: Path) -> tuple[str, ...]:
    """Flags of ``vllm serve`` for profiles that hold the engine up as little as can be.

    Stacks, a table of all operators and compression would each multiply the time in
    which traces are written. API servers are not profiled, as one of several may be.
    """
    return (
        f"{PROFILER}=torch",
        f"--profiler-config.torch_profiler_dir={directory}",
        "--profiler-config.torch_profiler_with_stack=false",
        "--profiler-config.torch_profiler_dump_cuda_time_total=false",
        "--profiler-config.torch_profiler_use_gzip=false",
        "--profiler-config.ignore_frontend=true",
        "--profiler-config.detailed_trace_annotation=true",
    )
