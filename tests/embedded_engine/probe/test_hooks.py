"""Wrapping methods of others: nothing that is wrapped may notice."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from embedded_engine.probe.hooks import LIMIT_NS, PATIENCE, Fuse, Hook, install, wrapped
from embedded_engine.probe.tap.engine_tap import (
    PrefillTracker,
    StepHook,
    engine_hooks,
    length_of,
)
from embedded_engine.probe.vllm_names import AttributeReader, VllmMethod


class Engine:
    def step(self, tokens: int, *, twice: bool = False) -> int:
        if tokens < 0:
            raise ValueError("no such step")
        return tokens * 2 if twice else tokens


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def fuse(reports: list[str]) -> Fuse:
    return Fuse(reports.append)


def hooked(hook: Hook, fuse: Fuse) -> Callable[..., int]:
    method = wrapped(Engine.step, hook, fuse)
    return lambda *args, **kwargs: method(Engine(), *args, **kwargs)


def broken(*_: object) -> None:
    raise LookupError("broken")


def test_the_hook_sees_arguments_result_and_times(fuse: Fuse) -> None:
    seen: list[Any] = []
    step = hooked(Hook(after=lambda _, *rest: seen.append(rest)), fuse)

    assert step(3, twice=True) == 6

    given, result, entered, returned = seen[0]
    assert (given, result) == ((3, True), 6)
    assert 0 < entered <= returned
    assert fuse.cost_ns > 0


def test_the_methods_own_exceptions_pass_untouched(
    fuse: Fuse, reports: list[str]
) -> None:
    step = hooked(Hook(after=broken), fuse)

    with pytest.raises(ValueError, match="no such step"):
        step(-1)
    assert reports == []


@pytest.mark.parametrize("hook", [Hook(after=broken), Hook(before=broken)])
def test_a_broken_hook_blows_the_fuse_once_and_the_call_succeeds(
    hook: Hook, fuse: Fuse, reports: list[str]
) -> None:
    step = hooked(hook, fuse)

    assert [step(1), step(2)] == [1, 2]

    assert fuse.blown
    assert len(reports) == 1
    assert "Engine.step: LookupError('broken')" in reports[0]


@pytest.mark.parametrize("key", ["schedule", "update"])
def test_a_broken_tap_blows_the_fuse_once_and_the_step_succeeds(
    key: str, fuse: Fuse, reports: list[str]
) -> None:
    hook = engine_hooks()[key]
    assert isinstance(hook, StepHook)
    step = hook.around(Engine.step, fuse)
    assert step(Engine(), tokens=1) == 1  # before there is a tap
    hook.tap = SimpleNamespace()  # type: ignore[assignment]

    with pytest.raises(ValueError, match="no such step"):
        step(Engine(), -1)
    assert reports == []
    assert [step(Engine(), 1), step(Engine(), tokens=2, twice=True)] == [1, 4]

    assert fuse.blown
    assert len(reports) == 1
    assert "Engine.step: AttributeError" in reports[0]


def test_a_queue_that_is_a_deque_is_counted_as_one() -> None:
    class Queue(deque[int]):
        def __len__(self) -> int:
            raise AssertionError("called though the deque's own would do")

    first, last = Queue([1, 2]), deque([1])

    assert [length_of([first, last])(each) for each in (first, last)] == [2, 1]
    assert length_of([first, ()])(()) == 0  # this vLLM has no second queue


def test_a_method_that_moved_is_said_and_the_others_are_wrapped(fuse: Fuse) -> None:
    owner = f"{__name__}:Engine"
    methods = {
        "moved": VllmMethod(owner, "moved", "moves"),
        "module": VllmMethod("no.such.module:Engine", "step", "modules"),
    }
    missing: list[str] = []

    install(methods, {"moved": Hook(), "module": Hook()}, fuse, missing.append)

    assert missing == [
        "Engine.moved: moves cannot be seen",
        "Engine.step: modules cannot be seen",
    ]


def test_the_fuse_bears_a_bad_moment_but_not_a_bad_time(
    fuse: Fuse, reports: list[str]
) -> None:
    steps = 0

    def second(*, costly: bool) -> None:
        nonlocal steps
        steps += 10
        fuse.cost_ns += 10 * LIMIT_NS * 2 if costly else 0
        fuse.check(steps, 0)

    for _ in range(PATIENCE - 1):
        second(costly=True)
    second(costly=False)
    for _ in range(PATIENCE - 1):
        second(costly=True)
    assert not fuse.blown

    second(costly=True)

    assert fuse.blown
    assert "per step" in reports[0]


def test_a_flood_of_refused_requests_does_not_blow_the_fuse(fuse: Fuse) -> None:
    for second in range(1, 2 * PATIENCE):
        fuse.cost_ns += LIMIT_NS + 1_000 * 50_000
        fuse.check(second, 0, 1_000 * second)

    assert not fuse.blown


def test_an_attribute_that_moved_reads_as_its_default_and_is_said_once() -> None:
    missing: list[str] = []
    reader = AttributeReader("Thing", (("here", 0), ("there.deep", 7)), missing.append)

    things = [SimpleNamespace(here=n) for n in (1, 2)]

    assert [reader.read(thing) for thing in things] == [(1, 7), (2, 7)]
    assert missing == ["Thing.there.deep"]


def test_one_attribute_alone_comes_bare() -> None:
    reader = AttributeReader("Thing", (("a.b", None),), print)

    assert reader.read(SimpleNamespace(a=SimpleNamespace(b=3))) == 3


def progress(computed: int, *, more: bool = False) -> SimpleNamespace:
    return SimpleNamespace(num_computed_tokens=computed, is_prefill_chunk=more)


def test_prefill_lasts_from_the_first_chunk_to_the_last() -> None:
    work = PrefillTracker(print)
    requests = {"a": progress(64, more=True), "b": progress(90)}
    engine = SimpleNamespace(requests=requests)

    assert work.of_step(engine, {"a": 64, "b": 1}, ["a"]) == (1, 64, 0)
    requests["a"] = progress(100)
    assert work.of_step(engine, {"a": 36, "b": 1}, []) == (1, 36, 0)
    assert work.prefilling == set()


def test_what_was_computed_before_a_preemption_is_recomputed() -> None:
    work = PrefillTracker(print)
    work.preempted("a", computed=100)

    chunks = []
    for computed, scheduled, starting in ((48, 32, ["a"]), (112, 64, [])):
        requests = {"a": progress(computed, more=computed < 112)}
        engine = SimpleNamespace(requests=requests)
        chunks.append(work.of_step(engine, {"a": scheduled}, starting))

    assert chunks == [(1, 32, 32), (1, 64, 52)]  # 16 were still in the prefix cache
