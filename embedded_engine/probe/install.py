"""The ``vllm.general_plugins`` entry point, called by vLLM in each of its processes."""

import importlib
import os
import sys


def install() -> None:
    """Start the probe if ``INFERWATCH_PROBE`` is set; otherwise return at once.

    It is 1, or an address for viewers on other machines, as ``tcp://…:9500``. A probe
    that fails to start logs that and leaves the engine alone.
    """
    if os.environ.get("INFERWATCH_PROBE", "0") in {"", "0"}:
        return
    try:
        importlib.import_module("embedded_engine.probe.probe").start()
    except Exception as error:
        sys.stderr.write(f"inferwatch: the probe could not start: {error!r}\n")
