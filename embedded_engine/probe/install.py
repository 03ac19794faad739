"""The ``vllm.general_plugins`` entry point: vLLM calls it in each of its processes."""

import importlib
import os
import sys


def install() -> None:
    """Start the probe when ``INFERWATCH_PROBE`` asks for it; else return at once.

    It is 1, or an address at which other machines can listen, as ``tcp://…:9500``.

    A probe that cannot start says so in the log and leaves the engine alone.
    """
    if os.environ.get("INFERWATCH_PROBE", "0") in {"", "0"}:
        return
    try:
        importlib.import_module("embedded_engine.probe.probe").start()
    except Exception as error:
        sys.stderr.write(f"inferwatch: the probe could not start: {error!r}\n")
