"""Hears of what is compiled while requests are served.

PyTorch calls whoever asked when it begins and ends to compile or to record a CUDA
graph. vLLM's own monitor logs kernels that Triton, CuTeDSL or TileLang compile after
the warm-up; how long each took is not known.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress

from collectors.contract.clock import monotonic_ns
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.vllm_names import Vllm

Tell = Callable[[int, int | None, str], None]
"""Takes when a compilation began, how long it took if known, and what was compiled."""


class CompilationListener(logging.Handler):
    """Tells of compilations in this process, from the end of the warm-up on."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._began_ns: int | None = None

    def listen(self) -> None:
        """Ask vLLM's logger and PyTorch, which vLLM has loaded."""
        logging.getLogger(names.LOGGER).addHandler(self)
        callbacks = getattr(sys.modules.get(names.COMPILING), names.CALLBACKS, None)
        if callbacks is not None:
            callbacks.register_start_callback(self._begins)
            callbacks.register_end_callback(self._ends)

    def emit(self, record: logging.LogRecord) -> None:
        """Pick the messages of vLLM's monitor, one look at each warning."""
        if str(record.msg).startswith(names.COMPILED) and record.args:
            with suppress(Exception):
                backend, _, function, *_ = record.args
                self._tell(monotonic_ns(), None, f"{function} ({backend})")

    def _begins(self, _: Vllm) -> None:
        self._began_ns = monotonic_ns() if serves() else None

    def _ends(self, compiled: Vllm) -> None:
        began_ns, self._began_ns = self._began_ns, None
        if began_ns is None:
            return
        with suppress(Exception):  # it would end the engine's step
            what = getattr(compiled, names.COMPILE_ID, "?")
            self._tell(began_ns, monotonic_ns() - began_ns, f"torch.compile {what}")


def serves() -> bool:
    """Whether this thread executes a step of the model, and not its warm-up."""
    frame, found = sys._getframe(1), False
    while frame is not None:
        name = frame.f_code.co_name
        if name in names.WARM_UP:
            return False
        found = found or name in names.EXECUTE
        frame = frame.f_back  # type: ignore[assignment]
    return found
