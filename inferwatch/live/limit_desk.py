"""Sets the limits of the watched engine while it runs, and restores them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from collectors.contract.collector import CollectorError
from collectors.contract.readings import LiveLimits
from collectors.probe.control_connection import this_process
from collectors.probe.limit_control import (
    NO_CONTROL,
    LimitControl,
    LimitRefusedError,
    NoControlError,
    conflict_text,
    has_control,
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
    """The engine whose limits are set."""

    engine_id: str
    source: str
    """The source of its readings."""
    host: str | None = None
    """The host name that the user must type first, as others use the engine."""


FindTarget = Callable[[], LimitTarget | str]
"""Returns the engine that is viewed, or why its limits cannot be set."""


class WatchedLimitDesk:
    """Sets limits of the viewed engine, and restores them when closed.

    An engine that is no longer viewed keeps its limits until then.
    """

    def __init__(self, session: LiveSession, target: FindTarget) -> None:
        self._session = session
        self._target = target
        self._controls: dict[str, LimitControl] = {}
        """The engines whose limits were set, by engine id."""
        self._turn = asyncio.Lock()
        self.by = this_process()
        """The name by which the engine knows us."""

    @property
    def unavailable(self) -> str | None:
        """Why no limit can be set now; None when one can."""
        target = self._target()
        if isinstance(target, str):
            return target
        return None if has_control(target.engine_id) else NO_CONTROL

    @property
    def must_name_host(self) -> str | None:
        """The host name to type first, if others use the engine; else None."""
        target = self._target()
        return None if isinstance(target, str) else target.host

    @property
    def answered(self) -> tuple[LiveLimits, ...]:
        """The limits in the engine's last answer, by rank; empty before any answer."""
        target = self._target()
        if isinstance(target, str) or target.engine_id not in self._controls:
            return ()
        return self._controls[target.engine_id].known

    async def set(self, wanted: LimitPair, *, keep: bool = False) -> None:
        """Set the limits on all ranks of the viewed engine.

        Raises:
            UsageError: they cannot be set, or others set them after what was shown.
            SourceError: the engine cannot be reached.
        """
        async with self._asking() as (control, target):
            before = control.known
            now = await control.limits()
            shown = {_values(before), _values(self._shown_limits(target.source))} - {()}
            if shown and _values(now) not in shown:
                raise UsageError(conflict_text(now[0]))
            await control.set(
                max_num_seqs=wanted.max_num_seqs,
                max_num_batched_tokens=wanted.max_num_batched_tokens,
                keep=keep,
            )

    async def reset(self) -> None:
        """Restore the limits that the engine was started with, whoever set others.

        Raises:
            UsageError: they cannot be restored.
            SourceError: the engine cannot be reached.
        """
        async with self._asking() as (control, _):
            await control.reset()

    async def close(self) -> None:
        """Disconnect: the engine restores its limits, unless they were set to stay."""
        controls, self._controls = self._controls, {}
        for each in controls.values():
            await each.close()

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[tuple[LimitControl, LimitTarget]]:
        """Yield the engine's control to one caller at a time; translate errors."""
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

    def _shown_limits(self, source: str) -> Iterable[LiveLimits]:
        limits = self._session.snapshot().live_limits
        return [each for each in limits if each.source == source]


def _values(limits: Iterable[LiveLimits]) -> tuple[tuple[int, int], ...]:
    """Return the values that the screen shows, by rank, to compare them."""
    ranks = sorted(limits, key=lambda each: each.rank)
    return tuple((each.max_num_seqs, each.max_num_batched_tokens) for each in ranks)
