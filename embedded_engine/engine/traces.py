"""Where an engine's own profiler writes its traces, and the flags it needs."""

import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import platformdirs

FLAG = "--profiler-config"
"""What flags for vLLM's profiler begin with."""
CHOICES = {FLAG, f"{FLAG}.profiler", f"{FLAG}.torch-profiler-dir"}


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
    What the installed vLLM does not know is left out, as it would not start.
    """
    wanted = {
        "profiler": "torch",
        "torch_profiler_dir": str(directory),
        "torch_profiler_with_stack": "false",
        "torch_profiler_dump_cuda_time_total": "false",
        "torch_profiler_use_gzip": "false",
        "ignore_frontend": "true",
        "detailed_trace_annotation": "true",
    }
    known = known_settings()
    if not {"profiler", "torch_profiler_dir"} <= known:
        return ()
    return tuple(
        f"{FLAG}.{name}={value}" for name, value in wanted.items() if name in known
    )


def chooses_profiler(flags: Iterable[str]) -> bool:
    """Whether a user's flags choose a profiler, or all of its settings.

    A single setting of ours, such as ``torch_profiler_with_stack``, may be another.
    """
    names = (each.partition("=")[0].replace("_", "-") for each in flags)
    return any(name in CHOICES for name in names)


def known_settings() -> frozenset[str]:
    """Names of the settings of the installed vLLM's profiler, which is not imported."""
    spec = find_spec("vllm")
    places = None if spec is None else spec.submodule_search_locations
    for place in places or ():
        with suppress(OSError, UnicodeDecodeError):
            text = (Path(place) / "config" / "profiler.py").read_text()
            return frozenset(re.findall(r"^    (\w+): ", text, re.MULTILINE))
    return frozenset()
