"""Changes the limits of a running engine, on all its ranks or on none.

Connections stay open: when the one that made a change closes, the start-up values soon
return (:mod:`collectors.probe.control`).
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from collectors.contract.collector import CollectorError, SourceLostError
from collectors.contract.readings import LimitChange, LiveLimits
from collectors.contract.runtime_dir import LIMITS_END
from collectors.probe.control import (
    BETWEEN_CHANGES_S,
    LimitAction,
    LimitAnswer,
    LimitRequest,
)
from collectors.probe.control_connection import (
    GONE,
    ControlConnection,
    NobodyThereError,
    NotOursError,
    control_sockets,
    shown,
    this_process,
)

NO_CONTROL = (
    "this engine was not started with control: restart it with "
    "`inferwatch serve --control`, or with INFERWATCH_CONTROL=1 beside the probe"
)
NOT_OURS = "only the user whom the engine runs as may turn its limits"


class NoControlError(CollectorError):
    """The engine's limits cannot be changed."""


class LimitRefusedError(CollectorError):
    """The engine refused a change, which took no effect."""


class LimitConflictError(LimitRefusedError):
    """The limits were changed by someone else since they were read."""


class LimitControl:
    """A client that reads and changes one engine's limits while it is open."""

    def __init__(self, engine_id: str, *, by: str | None = None) -> None:
        self.engine_id = engine_id
        self.by = by or this_process()
        """Name of this client, which the engine reports to others."""
        self._reset = LimitRequest(action=LimitAction.RESET, by=self.by)
        self._ranks: dict[Path, _Rank] = {}
        self._came = False
        """A rank has answered at some time."""
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, engine_id: str, *, by: str | None = None) -> Self:
        """Connect to all ranks and read their limits.

        Raises:
            NoControlError: the limits cannot be changed.
            CollectorError: a rank is unreachable.
        """
        made = cls(engine_id, by=by)
        try:
            await made.limits()
        except BaseException:
            await made.close()
            raise
        return made

    @property
    def known(self) -> tuple[LiveLimits, ...]:
        """The limits last received, by rank; a change is relative to them."""
        told = [each.limits for each in self._ranks.values() if each.limits is not None]
        return tuple(sorted(told, key=lambda limits: limits.rank))

    async def limits(self) -> tuple[LiveLimits, ...]:
        """Read the current limits, by rank.

        Raises:
            NoControlError: the limits cannot be changed.
            CollectorError: a rank is unreachable.
        """
        async with self._turn:
            await self._connect()
            for rank in self._ranks.values():
                await rank.ask(LimitRequest(action=LimitAction.GET))
            return self.known

    async def set(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        keep: bool = False,
    ) -> tuple[LiveLimits, ...]:
        """Change the given limits on all ranks; if one refuses, roll back the others.

        Raises:
            LimitConflictError: someone else changed them; the current ones were read.
            LimitRefusedError: a rank refused.
            CollectorError: a rank is unreachable.
        """
        wanted = LimitRequest(
            action=LimitAction.SET,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            keep=keep,
            by=self.by,
        )
        async with self._turn:
            await self._connect()
            told: dict[Path, LiveLimits] = {}
            for path, rank in self._ranks.items():
                try:
                    before = rank.limits or await rank.ask(_GET)
                    told[path] = before
                    await rank.change(wanted)
                except BaseException as error:
                    if isinstance(error, LimitRefusedError):
                        told.pop(path, None)  # unchanged
                    await asyncio.shield(self._roll_back(told))
                    raise _of_rank(error, rank, len(self._ranks)) from error
            return self.known

    async def reset(self) -> tuple[LiveLimits, ...]:
        """Restore the start-up values on every reachable rank.

        Raises:
            NoControlError: the limits cannot be changed.
            CollectorError: a rank is unreachable; the others were reset.
        """
        failed: list[CollectorError] = []
        async with self._turn:
            try:
                await self._connect()
            # the remaining ranks are reset all the same
            except SourceLostError as error:
                failed.append(error)
            for rank in self._ranks.values():
                try:
                    await rank.change(self._reset)
                except CollectorError as error:
                    failed.append(error)
            if failed:
                raise failed[0]
            return self.known

    async def close(self) -> None:
        """Disconnect from all ranks; safe to call twice."""
        for rank in self._ranks.values():
            rank.hang_up()
        self._ranks.clear()

    async def _connect(self) -> None:
        """Connect to new ranks and drop lost ones."""
        there = await asyncio.to_thread(control_sockets, self.engine_id, LIMITS_END)
        gone = [path for path, rank in self._ranks.items() if rank.is_gone]
        for path in gone:  # engines also close idle connections
            self._ranks.pop(path).hang_up()
        for path in there:
            if path in self._ranks:
                continue
            with suppress(NobodyThereError):
                self._ranks[path] = await _Rank.connect(path)
                self._came = True
        if not self._ranks.keys() >= set(gone):
            raise SourceLostError(GONE)
        if not self._ranks:
            raise SourceLostError(GONE) if self._came else NoControlError(NO_CONTROL)

    async def _roll_back(self, told: Mapping[Path, LiveLimits]) -> None:
        """Roll back a change: reset all ranks, then restore their earlier limits.

        A rank whose connection broke may have applied the change, so it is reset as
        well.
        """
        for path in told:
            with suppress(CollectorError):
                if self._ranks[path].is_gone:
                    self._ranks[path] = await _Rank.connect(path)
                await self._ranks[path].change(self._reset)
        slow = [path for path, before in told.items() if before.in_force]
        if not slow:
            return
        await asyncio.sleep(BETWEEN_CHANGES_S + MARGIN_S)
        for path in slow:
            before = told[path]
            again = LimitRequest(
                action=LimitAction.SET,
                max_num_seqs=before.max_num_seqs,
                max_num_batched_tokens=before.max_num_batched_tokens,
                keep=before.kept,
                by=self.by,
            )
            with suppress(CollectorError):
                await self._ranks[path].change(again)


MARGIN_S = 0.1
"""Allowance for the difference of two processes' clocks."""
_GET = LimitRequest(action=LimitAction.GET)


class _Rank:
    """The connection to one EngineCore's control socket."""

    def __init__(self, connection: ControlConnection) -> None:
        self._connection = connection
        self.limits: LiveLimits | None = None
        """Limits in the last response."""

    @classmethod
    async def connect(cls, path: Path) -> Self:
        """Connect to the control socket of a rank.

        Raises:
            CollectorError: the socket is unreachable.
        """
        try:
            return cls(await ControlConnection.connect(path))
        except NotOursError as error:
            raise NoControlError(NOT_OURS) from error

    @property
    def is_gone(self) -> bool:
        """Whether the connection can no longer be used."""
        return self._connection.is_gone

    def hang_up(self) -> None:
        self._connection.hang_up()

    async def change(self, request: LimitRequest) -> LiveLimits:
        """Request a change relative to the limits last received.

        Raises:
            LimitConflictError: they have changed since.
            LimitRefusedError: the engine refused.
            CollectorError: the engine is unreachable.
        """
        known = self.limits
        if request.action is LimitAction.SET:
            version = known.version if known is not None else None
            request = msgspec.structs.replace(request, version=version)
        now, refused = await self._answered(request)
        if refused is None:
            return now
        if known is not None and now.version != known.version:
            raise LimitConflictError(conflict_text(now))
        raise LimitRefusedError(shown(refused))

    async def ask(self, request: LimitRequest) -> LiveLimits:
        """Send a request; the limits in the response are remembered.

        Raises:
            LimitRefusedError: the engine refused.
            CollectorError: the engine is unreachable.
        """
        limits, refused = await self._answered(request)
        if refused is not None:
            raise LimitRefusedError(shown(refused))
        return limits

    async def _answered(self, request: LimitRequest) -> tuple[LiveLimits, str | None]:
        answer = await self._connection.ask(request, LimitAnswer)
        self.limits = answer.limits
        return answer.limits, answer.refused


def conflict_text(now: LiveLimits) -> str:
    """Explains to users who changed the limits, and to what."""
    seqs, tokens = now.max_num_seqs, now.max_num_batched_tokens
    values = f"max_num_seqs {seqs:,}, max_num_batched_tokens {tokens:,}"
    if now.change is LimitChange.WATCHER_GONE:
        return f"the start-up values came back meanwhile ({values}); look again"
    who = shown(now.by) if now.by else "somebody else"
    return f"changed meanwhile by {who} ({values}); look again"


def _of_rank(error: BaseException, rank: _Rank, ranks: int) -> BaseException:
    """Name the rank in an error, if there are several."""
    if ranks < 2 or rank.limits is None or not isinstance(error, CollectorError):
        return error
    return type(error)(f"rank {rank.limits.rank}: {error}")


def has_control(engine_id: str) -> bool:
    """Whether the engine has, or had, control sockets."""
    try:
        return bool(control_sockets(engine_id, LIMITS_END))
    except CollectorError:
        return False
