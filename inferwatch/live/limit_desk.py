"""Where limits of the watched engine are turned while it runs, and turned back."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from collectors.contract.collector import CollectorError
from collectors.contract.readings import LiveLimits
from collectors.probe.limit_control import (
    NO_CONTROL,
    LimitControl,
    LimitRefusedError,
    NoControlError,
    conflict_text,
    has_control,
    this_process,
)
from inferwatch.errors import SourceError, UsageError
from inferwatch.feed import LimitPair
from inferwatch.live.live_session import LiveSession

NO_ENGINE = "no engine is up whose limits could be turned"
ELSEWHERE = (
    "limits are turned on the host of the engine alone, and this one is heard over "
    "the network: run inferwatch there"
)
NO_PROBE = "limits are turned by the probe in the engine, and none is heard"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTarget:
    """The engine whose limits are turned."""

    engine_id: str
    source: str
    """What its readings are called."""
    host: str | None = None
    """To be named first, where others use it."""


FindTarget = Callable[[], LimitTarget | str]
"""The engine that is looked at now, else why its limits cannot be turned."""


class WatchedLimitDesk:
    """Turns limits of what is looked at, and is their watcher until it is closed.

    Who looks at another engine meanwhile goes on being the watcher of the first.
    """

    def __init__(self, session: LiveSession, target: FindTarget) -> None:
        self._session = session
        self._target = target
        self._controls: dict[str, LimitControl] = {}
        """By engine id, those that were turned."""
        self._turn = asyncio.Lock()
        self.by = this_process()
        """As whom the engine knows us."""

    @property
    def unavailable(self) -> str | None:
        """Why nothing can be turned now."""
        target = self._target()
        if isinstance(target, str):
            return target
        return None if has_control(target.engine_id) else NO_CONTROL

    @property
    def must_name_host(self) -> str | None:
        """The host's name, where others use the engine."""
        target = self._target()
        return None if isinstance(target, str) else target.host

    @property
    def answered(self) -> tuple[LiveLimits, ...]:
        """What the engine answered last, rank by rank; empty before it was asked."""
        target = self._target()
        if isinstance(target, str) or target.engine_id not in self._controls:
            return ()
        return self._controls[target.engine_id].known

    async def set(self, wanted: LimitPair, *, keep: bool = False) -> None:
        """Turn them on all ranks of what is looked at.

        Raises:
            UsageError: it cannot be, or others turned them since people looked.
            SourceError: the engine cannot be reached.
        """
        async with self._asking() as (control, target):
            before = control.known
            now = await control.limits()
            seen = {_values(before), _values(self._shown(target.source))} - {()}
            if seen and _values(now) not in seen:
                raise UsageError(conflict_text(now[0]))
            await control.set(
                max_num_seqs=wanted.max_num_seqs,
                max_num_batched_tokens=wanted.max_num_batched_tokens,
                keep=keep,
            )

    async def reset(self) -> None:
        """Back to what the engine was started with, whoever turned it.

        Raises:
            UsageError: it cannot be.
            SourceError: the engine cannot be reached.
        """
        async with self._asking() as (control, _):
            await control.reset()

    async def close(self) -> None:
        """Be no watcher any more: the start-up values return, but what is kept."""
        controls, self._controls = self._controls, {}
        for each in controls.values():
            await each.close()

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[tuple[LimitControl, LimitTarget]]:
        """One change at a time; what fails is told as errors of ours."""
        async with self._turn:
            target = self._target()
            if isinstance(target, str):
                raise UsageError(target)
            control = self._controls.get(target.engine_id)
            if control is None:
                control = LimitControl(target.engine_id, by=self.by)
                self._controls[target.engine_id] = control
            try:
                yield control, target
            except (LimitRefusedError, NoControlError) as error:
                raise UsageError(str(error)) from error
            except CollectorError as error:
                raise SourceError(str(error)) from error

    def _shown(self, source: str) -> Iterable[LiveLimits]:
        told = self._session.known().live_limits
        return [each for each in told if each.source == source]


def _values(limits: Iterable[LiveLimits]) -> tuple[tuple[int, int], ...]:
    """What people see of them."""
    ranks = sorted(limits, key=lambda each: each.rank)
    return tuple((each.max_num_seqs, each.max_num_batched_tokens) for each in ranks)
