"""What is compiled while requests are served, by PyTorch's calls and vLLM's log."""

import logging
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.contract.readings import NoteKind
from collectors.probe.hello import Role
from embedded_engine.probe.about.compilations import CompilationListener
from embedded_engine.probe.probe import Probe

MONITOR = (
    "%s %s during inference: %s%s. "
    "This causes a latency spike; consider extending warmup "
    "to cover this shape/config."
)
"""As vLLM 0.32 has it in ``vllm.utils.jit_monitor``."""
Callback = Callable[[object], None]


class Callbacks:
    """As PyTorch's handler."""

    def __init__(self) -> None:
        self.start: list[Callback] = []
        self.end: list[Callback] = []
        self.register_start_callback = self.start.append
        self.register_end_callback = self.end.append

    def compile(self) -> None:
        for each in (*self.start, *self.end):
            each(SimpleNamespace(compile_id="3/1"))

    def execute_model(self) -> None:
        self.compile()

    def compile_or_warm_up_model(self) -> None:
        self.execute_model()


Told = list[tuple[int, int | None, str]]


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch) -> Callbacks:
    callbacks = Callbacks()
    module = SimpleNamespace(callback_handler=callbacks)
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", module)
    return callbacks


@pytest.fixture
def told(callbacks: Callbacks) -> Iterator[Told]:
    told: Told = []
    listener = CompilationListener(lambda *each: told.append(each))
    listener.listen()
    yield told
    logging.getLogger("vllm").removeHandler(listener)


def test_what_is_compiled_in_a_step_is_told_with_its_duration(
    callbacks: Callbacks, told: Told
) -> None:
    callbacks.execute_model()

    ((_, duration_ns, what),) = told
    assert duration_ns is not None
    assert duration_ns > 0
    assert what == "torch.compile 3/1"


def test_what_is_compiled_before_serving_is_not_told(
    callbacks: Callbacks, told: Told
) -> None:
    callbacks.compile()
    callbacks.compile_or_warm_up_model()

    assert told == []


def test_kernels_that_vllm_warns_of_are_told_without_a_duration(told: Told) -> None:
    logger = logging.getLogger("vllm.utils.jit_monitor")
    logger.warning(MONITOR, "Triton", "kernel JIT compilation", "_fwd_kernel", "")
    logger.warning("something else: %s", "compiled")

    assert [(took, what) for _, took, what in told] == [(None, "_fwd_kernel (Triton)")]


def test_a_listener_that_fails_harms_no_step(callbacks: Callbacks) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError

    listener = CompilationListener(fails)
    listener.listen()
    try:
        callbacks.execute_model()
        logging.getLogger("vllm").warning(MONITOR, "Triton", "autotuning", "f", "")
    finally:
        logging.getLogger("vllm").removeHandler(listener)


def test_a_worker_without_a_channel_opens_one_to_tell_of_a_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where workers are processes of their own, nobody else knows."""
    puts: list[tuple[Any, ...]] = []
    channel = SimpleNamespace(open=lambda: None, put=lambda *each: puts.append(each))
    monkeypatch.setattr("embedded_engine.probe.probe.Channel", lambda *_: channel)
    probe = Probe("engine-1")

    probe._compiled(5, 7, "torch.compile 3/1")

    ((readings,),) = puts
    (note,) = readings()
    assert probe.role is Role.WORKER
    assert (note.kind, note.t_ns, note.duration_ns) == (NoteKind.COMPILATION, 5, 7)
