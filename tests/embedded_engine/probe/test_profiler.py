"""The profiler is switched on the engine's thread, between steps, and told in order."""

import queue
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.contract.clock import monotonic_ns
from collectors.contract.readings import AnyReading, Profile, ProfileState
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.control.profiler import (
    RETRY_NS,
    EngineProfiler,
    WantedProfile,
    torch_directory,
)
from embedded_engine.probe.hooks import Hook

TWENTY = WantedProfile(steps=20, by="ann")


@dataclass
class Core:
    """What EngineCore has of its own that matters here."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    fails: str = ""

    def __post_init__(self) -> None:
        self.input_queue: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def profile(
        self,
        is_start: bool = True,
        profile_prefix: str | None = None,
        max_iterations: int | None = None,
    ) -> None:
        self.calls.append((is_start, profile_prefix, max_iterations))
        if self.fails:
            raise RuntimeError(self.fails)


class Messages:
    """vLLM's kinds of messages, which need no vLLM here."""

    WAKEUP = b"\x05"


@pytest.fixture(autouse=True)
def messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "CORE_MESSAGE", f"{__name__}:Messages")


class Engine:
    """A core whose thread is this one, and what its probe told."""

    def __init__(self, core: Any = None, *, met: bool = True) -> None:
        self.core, self.message = core or Core(), Hook()
        self.steps, self.told, self.waiting = 100, [], []  # type: ignore[var-annotated]
        self.profiler = EngineProfiler(
            "e1", 3, "/traces", self.message, lambda: self.steps, self._tell
        )
        if met:
            self.read()

    def _tell(self, make: Callable[[], list[AnyReading]]) -> None:
        self.waiting.append(make)

    def read(self) -> None:
        """Read a message, as EngineCore does between steps, and report."""
        if self.message.before is not None:
            self.message.before(self.core, (), 0)
        self.report()

    def report(self) -> None:
        while self.waiting:
            self.told += self.waiting.pop(0)()

    def begun(self) -> None:
        self.profiler.want(TWENTY)
        self.read()


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_without_a_profile_nothing_is_hooked(engine: Engine) -> None:
    assert engine.message.before is None
    assert engine.core.calls == []
    engine.begun()
    assert engine.message.before is None
    engine.profiler.end()
    engine.read()
    assert engine.message.before is None


def test_the_engine_is_woken_and_switches_itself(engine: Engine) -> None:
    engine.profiler.want(TWENTY)

    assert engine.core.calls == []
    assert engine.core.input_queue.qsize() == 1
    engine.read()
    ((is_start, prefix, bound),) = engine.core.calls
    assert (is_start, bound) == (True, 20)
    assert re.fullmatch(r"inferwatch-e1-3-[0-9a-f]{6}-1", prefix)
    assert engine.profiler.is_on


def test_an_engine_after_it_with_the_same_id_names_its_traces_otherwise() -> None:
    prefixes = []
    for engine in (Engine(), Engine()):
        engine.begun()
        prefixes.append(engine.told[0].prefix)

    assert len({*prefixes}) == 2


def test_what_is_told_has_the_steps_in_between(engine: Engine) -> None:
    engine.begun()
    engine.steps += 20
    engine.profiler.end()
    engine.read()

    begun, ended = engine.told
    assert isinstance(ended, Profile)
    assert (begun.state, begun.number, begun.rank) == (ProfileState.STARTED, 1, 3)
    assert (ended.state, ended.steps, ended.why) == (ProfileState.ENDED, 20, None)
    assert ended.t_ns > begun.t_ns
    assert ended.prefix == begun.prefix
    assert engine.core.calls[-1] == (False, None, None)


def test_steps_that_are_reported_late_are_counted(engine: Engine) -> None:
    engine.profiler.want(TWENTY)
    engine.message.before(engine.core, (), 0)  # type: ignore[misc]
    engine.steps += 2  # ended before it began, reported after
    engine.report()

    assert engine.profiler.steps == 0


def test_a_profile_that_has_more_steps_than_asked_says_those_asked(
    engine: Engine,
) -> None:
    engine.begun()
    engine.steps += 23
    engine.profiler.end("it was stopped")
    engine.read()

    assert (engine.told[-1].steps, engine.told[-1].why) == (20, "it was stopped")


def test_one_that_is_ended_before_it_began_leaves_nothing(engine: Engine) -> None:
    engine.profiler.want(TWENTY)
    engine.profiler.end()
    engine.read()

    assert engine.core.calls == []
    assert engine.told == []
    assert not engine.profiler.is_on


def test_a_failure_is_told_and_not_raised() -> None:
    engine = Engine(Core(fails="no room\nleft"))
    engine.begun()

    assert not engine.profiler.is_on
    assert engine.told[0].state is ProfileState.FAILED
    assert engine.told[0].why == "vLLM: no room left"


def test_a_profile_of_others_refuses_ours(engine: Engine) -> None:
    engine.profiler.asked((True, None))
    assert "over HTTP" in (engine.profiler.unavailable or "")
    engine.profiler.asked((False,))
    assert engine.profiler.unavailable is None


def test_others_may_end_ours(engine: Engine) -> None:
    engine.begun()
    engine.steps += 5

    engine.profiler.asked((False,))
    engine.read()

    assert engine.told[-1].why == "somebody else ended it over HTTP"
    assert engine.told[-1].steps == 5


def test_our_own_call_is_nobody_elses() -> None:
    engine = Engine()
    plain = engine.core.profile

    def profile(*args: Any, **kwargs: Any) -> None:
        engine.profiler.asked(args)
        plain(*args, **kwargs)

    engine.core.profile = profile  # type: ignore[method-assign]
    engine.begun()

    assert engine.profiler.unavailable is None


def test_before_its_first_message_an_engine_has_not_started() -> None:
    assert "not started" in (Engine(met=False).profiler.unavailable or "")


def test_an_engine_that_is_no_process_cannot_be_woken() -> None:
    inside = Core()
    del inside.input_queue

    assert "not a process" in (Engine(inside).profiler.unavailable or "")


def test_a_vllm_that_cannot_name_its_traces_is_said() -> None:
    class OldCore(Core):
        def profile(self, is_start: bool = True) -> None:  # type: ignore[override]
            self.calls.append((is_start,))

    assert "cannot name" in (Engine(OldCore()).profiler.unavailable or "")


@pytest.mark.parametrize(
    ("kind", "directory", "found"),
    [
        ("torch", "/traces", "/traces"),
        ("torch", "", None),
        ("torch", "gs://traces", None),
        ("cuda", "/traces", None),
        (None, "", None),
    ],
)
def test_only_torchs_profiler_with_a_directory_is_ours(
    kind: str | None, directory: str, found: str | None
) -> None:
    config = SimpleNamespace(profiler=kind, torch_profiler_dir=directory)
    scheduler = SimpleNamespace(vllm_config=SimpleNamespace(profiler_config=config))

    assert torch_directory(scheduler, lambda _: None) == found


def test_a_profiler_that_cannot_be_ended_counts_as_on_and_is_ended_again(
    engine: Engine,
) -> None:
    engine.begun()
    engine.core.fails = "a worker does not answer"
    engine.profiler.end()
    engine.read()

    assert engine.profiler.is_on
    assert [each.state for each in engine.told] == [ProfileState.STARTED]
    engine.profiler.try_again(monotonic_ns())
    engine.read()
    assert [call[0] for call in engine.core.calls] == [True, False]  # not at once
    engine.core.fails = ""
    engine.profiler.try_again(monotonic_ns() + RETRY_NS)
    engine.read()
    assert not engine.profiler.is_on
    assert engine.told[-1].state is ProfileState.ENDED
    assert engine.profiler.unavailable is None


def test_no_profile_begins_beside_one_that_cannot_be_ended(engine: Engine) -> None:
    engine.begun()
    engine.core.fails = "a worker does not answer"
    engine.profiler.end()
    engine.read()
    for tries in range(1, 5):
        engine.profiler.try_again(monotonic_ns() + tries * 2 * RETRY_NS)
        engine.read()

    assert [call[0] for call in engine.core.calls] == [True, False, False, False]
    assert engine.told[-1].state is ProfileState.FAILED
    assert not engine.profiler.is_on
    assert "restart the engine" in (engine.profiler.unavailable or "")


def test_workers_that_began_are_ended_where_others_could_not_begin(
    engine: Engine,
) -> None:
    engine.core.fails = "a worker cannot"
    engine.begun()

    assert [call[0] for call in engine.core.calls] == [True, False]
    assert not engine.profiler.is_on
