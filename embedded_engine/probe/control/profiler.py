"""Switches the engine's own profiler on and off, on the engine's thread.

The profiler of torch must be ended by the thread that began it, and vLLM calls its
workers from the engine's thread alone. So another thread only says what is wanted and
wakes the engine, which does it between two steps, idle or not. While no profile is
asked for, the one hook, on messages of API servers, is empty.

vLLM counts the steps itself where it can, and ends the profile within a step.
"""

import inspect
import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import time_ns

from msgspec.structs import replace

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.readings import AnyReading, Profile, ProfileState
from embedded_engine.probe import vllm_names as names
from embedded_engine.probe.hooks import Given, Hook
from embedded_engine.probe.vllm_names import AttributeReader, Vllm

PREFIX, BOUND = "profile_prefix", "max_iterations"
"""Parameters of ``EngineCore.profile``; older ones have neither."""
LONGEST_REASON = 200
MOST_TRIES = 3
RETRY_NS = NS_PER_S
"""Pause before vLLM is asked again to end a profile, which it failed to do."""
STUCK = "vLLM cannot switch its profiler off: restart the engine"
OTHERS = "somebody else began one over HTTP (/start_profile): end that first"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedProfile:
    """A profile as it was asked for."""

    steps: int
    by: str | None


class EngineProfiler:
    """The profiler of one EngineCore."""

    def __init__(
        self,
        engine_id: str,
        rank: int,
        directory: str,
        message: Hook,
        steps: Callable[[], int],
        tell: Callable[[Callable[[], list[AnyReading]]], None],
    ) -> None:
        """``message``: the hook on what EngineCore is sent, and reads between steps.

        ``tell`` has a reading made once all steps so far were reported, as ``steps``
        then counts them.
        """
        self.rank = rank
        self.directory = directory
        self.latest: Profile | None = None
        self.bytes_per_step: float | None = None
        self.by_others = False
        """Whether vLLM's profiler was switched on by others."""
        self._message = message
        message.before = self._meet
        self._engine_id = engine_id
        self._steps, self._tell = steps, tell
        self._core: weakref.ref[Vllm] | None = None
        self._parameters: frozenset[str] = frozenset()
        self._wanted: WantedProfile | None = None
        """What is on, or is to be; None when it is off, or is to be."""
        self._on: WantedProfile | None = None
        self._why: str | None = None
        """Why the profile that is on is to be ended early."""
        self._begun_steps: int | None = None
        """The engine's steps when the profile began; None while it is off."""
        self._number = 0
        self._process = secrets.token_hex(3)
        """Tells its traces from those of an engine before it with the same id."""
        self._failed_ends = 0
        self._failed_ns = 0
        """When vLLM last failed to end it."""
        self._ours = False
        """Whether we are calling ``EngineCore.profile`` ourselves."""

    @property
    def unavailable(self) -> str | None:
        """Why no profile can begin, as text for users."""
        core = None if self._core is None else self._core()
        if core is None or not hasattr(core, names.CORE_QUEUE):
            return "this engine is not a process of its own, or has not started yet"
        if PREFIX not in self._parameters:
            return "this vLLM cannot name its traces: profiles need a newer one"
        if self._failed_ends >= MOST_TRIES:
            return STUCK
        return OTHERS if self.by_others else None

    @property
    def is_on(self) -> bool:
        """Whether a profile is on, or is about to be switched on or off."""
        return self._wanted is not None or self._on is not None

    @property
    def steps(self) -> int | None:
        """Steps since the profiler was switched on; None while it is off."""
        begun = self._begun_steps
        return None if begun is None else self._steps() - begun

    def want(self, wanted: WantedProfile) -> None:
        """Have the profiler switched on before the next step; on any thread."""
        self._why = None
        self._wanted = wanted
        self._wake()

    def end(self, why: str | None = None) -> None:
        """Have it switched off before the next step; on any thread.

        ``why`` tells why it has not all its steps.
        """
        if self._wanted is not None:
            self._why = why
            self._wanted = None
            self._wake()

    def try_again(self, now_ns: int) -> None:
        """Have it switched off once more where vLLM failed to; on any thread."""
        is_left_on = self._on is not None and self._wanted is None
        if is_left_on and self._failed_ends and now_ns - self._failed_ns >= RETRY_NS:
            self._failed_ns = now_ns
            self._wake()

    def asked(self, given: Given) -> None:
        """After ``EngineCore.profile()``, which API servers call as well."""
        if self._ours:
            return
        self.by_others = bool(given[0]) if given else True
        if not self.by_others:
            self.end("somebody else ended it over HTTP")

    def _meet(self, core: Vllm, *_: Vllm) -> None:
        """On the first message, which API servers send as they start."""
        self._message.before = None
        self._core = weakref.ref(core)
        self._parameters = frozenset(inspect.signature(core.profile).parameters)

    def _wake(self) -> None:
        core = None if self._core is None else self._core()
        if core is None:
            return
        self._message.before = self._look
        module, _, kind = names.CORE_MESSAGE.partition(":")
        kinds = getattr(import_module(module), kind)
        # Either does nothing but wake the thread.
        wake = getattr(kinds, "WAKEUP", None)
        empty: tuple[Vllm, Vllm] = (kinds.ABORT, []) if wake is None else (wake, None)
        getattr(core, names.CORE_QUEUE).put_nowait(empty)

    def _look(self, core: Vllm, *_: Vllm) -> None:
        """On the engine's thread, between steps: do what is wanted."""
        self._message.before = None
        wanted = self._wanted
        if wanted is self._on:
            return
        if self._on is not None:
            self._end(core, self._on)
        if wanted is not None:
            self._begin(core, wanted)

    def _begin(self, core: Vllm, wanted: WantedProfile) -> None:
        self._number += 1
        prefix = (
            f"inferwatch-{self._engine_id}-{self.rank}-{self._process}-{self._number}"
        )
        bound = {BOUND: wanted.steps} if BOUND in self._parameters else {}
        failed, switch_ns = self._call(core, prefix, is_start=True, **bound)
        begun = Profile(
            t_ns=monotonic_ns(),
            rank=self.rank,
            number=self._number,
            state=ProfileState.STARTED if failed is None else ProfileState.FAILED,
            steps_asked=wanted.steps,
            prefix=prefix,
            directory=self.directory,
            by=wanted.by,
            why=failed,
            switch_ns=switch_ns,
            realtime_ns=time_ns(),
        )
        if failed is None:
            self._on = wanted
        else:
            self._wanted = None
            self._call(core, None, is_start=False)  # some workers may have begun
        self._tell(lambda: self._begun(begun))

    def _begun(self, begun: Profile) -> list[AnyReading]:
        """Report that it began, after all steps before it."""
        self.latest = begun
        if begun.state is ProfileState.STARTED:
            self._begun_steps = self._steps()
        return [begun]

    def _end(self, core: Vllm, on: WantedProfile) -> None:
        failed, switch_ns = self._call(core, None, is_start=False)
        now_ns, realtime_ns = monotonic_ns(), time_ns()
        self._failed_ends = self._failed_ends + 1 if failed is not None else 0
        if 0 < self._failed_ends < MOST_TRIES:
            self._failed_ns = now_ns
            return  # it is on still
        self._on = None
        why = failed or self._why

        def ended() -> list[AnyReading]:
            begun, steps = self.latest, self.steps
            self._begun_steps = None
            if begun is None:
                return []
            if steps is not None:
                steps = min(steps, on.steps)
                self.bytes_per_step = _bytes(begun) / steps if steps else None
            self.latest = replace(
                begun,
                t_ns=now_ns,
                state=ProfileState.ENDED if failed is None else ProfileState.FAILED,
                steps=steps,
                why=why,
                switch_ns=switch_ns,
                realtime_ns=realtime_ns,
            )
            return [self.latest]

        self._tell(ended)

    def _call(
        self, core: Vllm, prefix: str | None, *, is_start: bool, **bound: int
    ) -> tuple[str | None, int]:
        """Call vLLM's method; return why that failed, and how long it took."""
        began_ns, failed = monotonic_ns(), None
        self._ours = True
        try:
            core.profile(is_start, prefix, **bound)
        except Exception as error:  # the engine must not see it
            failed = f"vLLM: {' '.join(str(error).split())}"[:LONGEST_REASON]
        finally:
            self._ours = False
        return failed, monotonic_ns() - began_ns


def _bytes(profile: Profile) -> int:
    """The size of a profile's traces."""
    try:
        found = Path(profile.directory).glob(f"{profile.prefix}_*.json*")
        return sum(each.stat().st_size for each in found)
    except OSError:
        return 0


def torch_directory(scheduler: Vllm, missing: Callable[[str], None]) -> str | None:
    """Where vLLM's torch profiler writes; None if this engine has none."""
    kind, directory = AttributeReader("Scheduler", names.PROFILER, missing).read(
        scheduler
    )
    if kind != "torch" or not directory or not Path(directory).is_absolute():
        return None
    return str(directory)
