"""Starts the probe of this process, once."""

import functools
import multiprocessing
import os
import secrets

from collectors.probe.hello import Role
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.probe import Probe
from embedded_engine.probe.watchdog import watch_parent


@functools.cache
def start() -> Probe:
    """Watch the parent, wrap vLLM, and speak up at once where EngineCore will be."""
    watch_parent()
    os.register_at_fork(after_in_child=watch_parent)
    engine_id = os.environ.setdefault("INFERWATCH_ENGINE_ID", secrets.token_hex(4))
    probe = Probe(engine_id)
    probe.install()
    if multiprocessing.current_process().name.startswith(names.CORE_PROCESS):
        probe.speak(Role.CORE)
    return probe
