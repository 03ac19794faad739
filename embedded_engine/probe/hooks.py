"""Wraps methods of vLLM's classes without being able to change what they do.

Each hook is behind a fuse, which an exception or excessive cost blows.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from embedded_engine.probe.vllm_names import Vllm, VllmMethod

Given = tuple[Any, ...]
"""The arguments of a call, keyword arguments last."""
Before = Callable[[Vllm, Given, int], Any]
"""Called with the object, the arguments, and the time the call began."""
After = Callable[[Vllm, Given, Any, int, int], None]
"""Called with the object, arguments, result, and the times of call and return."""


LIMIT_NS, LIMIT_NS_PER_MEMBER = 250_000, 2_000
"""The cost of a step, and of each request in it, that is excessive: ten times the
budget, which noise on a busy machine does not exceed for long."""
LIMIT_NS_PER_REFUSAL = 250_000
"""The cost of a look at a refused request that is excessive, in the same way."""
PATIENCE = 10
"""Consecutive seconds of excessive cost after which the fuse blows."""


class Fuse:
    """Disables all hooks of a probe before it can harm its engine."""

    __slots__ = "_checked", "_costly", "_report", "blown", "cost_ns"

    def __init__(self, report: Callable[[str], None]) -> None:
        self.blown = False
        self.cost_ns = 0
        """Time spent in hooks."""
        self._report = report
        self._checked = (0, 0, 0, 0)
        self._costly = 0

    def blow(self, why: str) -> None:
        """Disable the hooks, and report the reason once."""
        if not self.blown:
            self.blown = True
            self._report(why)

    def check(self, steps: int, members: int, refusals: int = 0) -> None:
        """Disable the hooks if they cost too much; takes counts, once a second."""
        before, self._checked = self._checked, (self.cost_ns, steps, members, refusals)
        cost_ns, steps, members, refusals = (
            now - then for now, then in zip(self._checked, before, strict=True)
        )
        allowed_ns = steps * LIMIT_NS + members * LIMIT_NS_PER_MEMBER
        allowed_ns += refusals * LIMIT_NS_PER_REFUSAL
        self._costly = self._costly + 1 if steps and cost_ns > allowed_ns else 0
        if self._costly >= PATIENCE:
            self.blow(f"it cost {cost_ns / steps / 1000:.0f} µs per step")


@dataclass(slots=True)
class Hook:
    """Callbacks around a method; None while unused."""

    after: After | None = None
    before: Before | None = None

    def around(self, original: Callable[..., Any], fuse: Fuse) -> Callable[..., Any]:
        """The method with this hook."""
        return wrapped(original, self, fuse)


@dataclass(slots=True)
class AwaitedHook(Hook):
    """The same around a coroutine function: ``after`` follows what it returns."""

    def around(self, original: Callable[..., Any], fuse: Fuse) -> Callable[..., Any]:
        name = original.__qualname__

        def guarded(callback: Callable[..., Any], *given: Vllm) -> None:
            began = monotonic_ns()
            try:
                callback(*given)
            except Exception as error:
                fuse.blow(f"{name}: {error!r}")
            fuse.cost_ns += monotonic_ns() - began

        @functools.wraps(original)
        async def method(of: Vllm, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            before, after = self.before, self.after
            if fuse.blown or (before is None and after is None):
                return await original(of, *args, **kwargs)
            entered = monotonic_ns()
            given = (*args, *kwargs.values())
            if before is not None:
                guarded(before, of, given, entered)
            result = await original(of, *args, **kwargs)
            if after is not None:
                guarded(after, of, given, result, entered, monotonic_ns())
            return result

        return method


def install(
    methods: Mapping[str, VllmMethod],
    hooks: Mapping[str, Hook],
    fuse: Fuse,
    missing: Callable[[str], None],
) -> None:
    """Wrap each method that has a hook, and report missing methods."""
    for key, hook in hooks.items():
        method = methods[key]
        owner = owner_of(method)
        if owner is None or method.name not in vars(owner):
            owner_name = method.owner.partition(":")[2]
            missing(f"{owner_name}.{method.name}: {method.loses} cannot be seen")
        else:
            original = vars(owner)[method.name]
            setattr(owner, method.name, hook.around(original, fuse))


def owner_of(method: VllmMethod) -> type | None:
    """The class of a method; None if this vLLM lacks it."""
    module, _, name = method.owner.partition(":")
    try:
        owner: type | None = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return owner


def wrapped(original: Callable[..., Any], hook: Hook, fuse: Fuse) -> Callable[..., Any]:
    """The method with its hook; results and exceptions pass unchanged."""

    @functools.wraps(original)
    def method(self: Vllm, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        after = hook.after
        if fuse.blown or (after is None and hook.before is None):
            return original(self, *args, **kwargs)
        entered = monotonic_ns()
        given = (*args, *kwargs.values()) if kwargs else args
        if hook.before is not None:
            try:
                hook.before(self, given, entered)
            except Exception as error:
                fuse.blow(f"{original.__qualname__}: {error!r}")
            fuse.cost_ns += monotonic_ns() - entered
        result = original(self, *args, **kwargs)
        returned = monotonic_ns()
        if after is not None:
            try:
                after(self, given, result, entered, returned)
            except Exception as error:
                fuse.blow(f"{original.__qualname__}: {error!r}")
        fuse.cost_ns += monotonic_ns() - returned
        return result

    return method
