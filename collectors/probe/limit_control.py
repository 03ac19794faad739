"""Turns the limits of a running engine, on all its ranks or on none.

Its connections stay open: whoever changed something is its watcher, and the start-up
values return soon after a watcher is gone (:mod:`collectors.probe.control`).
"""

import asyncio
import getpass
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from collectors.contract.collector import CollectorError, SourceLostError
from collectors.contract.liveness import peer_uid
from collectors.contract.readings import LimitChange, LiveLimits
from collectors.probe.control import (
    BETWEEN_CHANGES_S,
    LONGEST_LINE,
    LimitAction,
    LimitAnswer,
    LimitRequest,
    control_path,
)

ANSWER_S = 2.0
"""An engine answers from a thread of its own, in a long step too."""
NO_CONTROL = (
    "this engine was not started with control: restart it with "
    "`inferwatch serve --control`, or with INFERWATCH_CONTROL=1 beside the probe"
)
NOT_OURS = "only the user whom the engine runs as may turn its limits"
ROOT = 0
MOST_SHOWN = 80
"""Characters of a name that somebody else chose."""


class NoControlError(CollectorError):
    """Nobody may turn the limits of that engine."""


class LimitRefusedError(CollectorError):
    """The engine says no, and why; nothing was changed."""


class LimitConflictError(LimitRefusedError):
    """Somebody else changed them since they were looked at."""


class LimitControl:
    """The watcher of one engine's limits, for as long as it is open."""

    def __init__(self, engine_id: str, *, by: str | None = None) -> None:
        self.engine_id = engine_id
        self.by = by or this_process()
        """Who asks, as the engine tells everybody."""
        self._reset = LimitRequest(action=LimitAction.RESET, by=self.by)
        self._ranks: dict[Path, _Rank] = {}
        self._came = False
        """A rank has answered, now or earlier."""
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, engine_id: str, *, by: str | None = None) -> Self:
        """Connect to all ranks, and read their limits.

        Raises:
            NoControlError: they may not be turned.
            CollectorError: it cannot be reached.
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
        """As last answered, by rank; what is set next is a change of these."""
        told = [each.limits for each in self._ranks.values() if each.limits is not None]
        return tuple(sorted(told, key=lambda limits: limits.rank))

    async def limits(self) -> tuple[LiveLimits, ...]:
        """As they are now, by rank.

        Raises:
            NoControlError: they may not be turned.
            CollectorError: it cannot be reached.
        """
        async with self._turn:
            await self._meet()
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
        """Change what is named, on all ranks; where one does not, the others go back.

        Raises:
            LimitConflictError: others changed them since we looked; we looked again.
            LimitRefusedError: a rank says why not.
            CollectorError: it cannot be reached.
        """
        wanted = LimitRequest(
            action=LimitAction.SET,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            keep=keep,
            by=self.by,
        )
        async with self._turn:
            await self._meet()
            told: dict[Path, LiveLimits] = {}
            for path, rank in self._ranks.items():
                try:
                    before = rank.limits or await rank.ask(_GET)
                    told[path] = before
                    await rank.change(wanted)
                except BaseException as error:
                    if isinstance(error, LimitRefusedError):
                        told.pop(path, None)  # it is as it was
                    await asyncio.shield(self._back(told))
                    raise _of_rank(error, rank, len(self._ranks)) from error
            return self.known

    async def reset(self) -> tuple[LiveLimits, ...]:
        """Back to the start-up values, on every rank that answers.

        Raises:
            NoControlError: they may not be turned.
            CollectorError: a rank cannot be reached; the others went back.
        """
        failed: list[CollectorError] = []
        async with self._turn:
            try:
                await self._meet()
            except SourceLostError as error:  # the others are told all the same
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
        """Be the watcher no more; safe to call twice."""
        for rank in self._ranks.values():
            rank.hang_up()
        self._ranks.clear()

    async def _meet(self) -> None:
        """Connect to ranks that came since, and notice those that are gone.

        Raises:
            NoControlError: there is no rank that could be told.
            SourceLostError: one that we knew is gone.
        """
        there = await asyncio.to_thread(_sockets, self.engine_id)
        gone = [path for path, rank in self._ranks.items() if rank.is_gone]
        for path in gone:  # an engine hangs up on who has long been silent, too
            self._ranks.pop(path).hang_up()
        for path in there:
            if path in self._ranks:
                continue
            with suppress(_NobodyThereError):
                self._ranks[path] = await _Rank.met(path)
                self._came = True
        if not self._ranks.keys() >= set(gone):
            raise SourceLostError(GONE)
        if not self._ranks:
            raise SourceLostError(GONE) if self._came else NoControlError(NO_CONTROL)

    async def _back(self, told: Mapping[Path, LiveLimits]) -> None:
        """Undo: at once where the values before were those of the start.

        A rank that was cut off may have done as asked: it is told anew.
        """
        for path in told:
            with suppress(CollectorError):
                if self._ranks[path].is_gone:
                    self._ranks[path] = await _Rank.met(path)
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


GONE = "the engine is gone"
MARGIN_S = 0.1
"""Clocks of two processes do not tick alike."""
_GET = LimitRequest(action=LimitAction.GET)


class _NobodyThereError(SourceLostError):
    """Nobody is behind that socket."""


class _Rank:
    """One EngineCore, told on one connection, a line at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader, self._writer = reader, writer
        self._broken = False
        self.limits: LiveLimits | None = None
        """As it last answered."""

    @classmethod
    async def met(cls, path: Path) -> Self:
        """Connect.

        Raises:
            CollectorError: it cannot be reached; why.
        """
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(
                    path, limit=LONGEST_LINE
                )
            # In a directory that a group shares, anybody's socket may lie.
            if os.geteuid() not in (ROOT, peer_uid(writer.get_extra_info("socket"))):
                writer.close()
                raise NoControlError(NOT_OURS)
            return cls(reader, writer)
        except PermissionError as error:
            raise NoControlError(NOT_OURS) from error
        except (FileNotFoundError, ConnectionError) as error:
            raise _NobodyThereError(GONE) from error
        except TimeoutError as error:
            raise CollectorError(f"the engine {NO_ANSWER}") from error
        except OSError as error:
            raise CollectorError(f"the engine cannot be reached: {error}") from error

    @property
    def is_gone(self) -> bool:
        """Nothing more can be asked on this connection."""
        return self._broken or self._reader.at_eof() or self._writer.is_closing()

    def hang_up(self) -> None:
        """Close the connection."""
        self._broken = True
        self._writer.close()

    async def change(self, request: LimitRequest) -> LiveLimits:
        """Ask for a change of the limits as they were last told.

        Raises:
            LimitConflictError: others changed them since.
            LimitRefusedError: the engine says why not.
            CollectorError: it cannot be reached.
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
        raise LimitRefusedError(_shown(refused))

    async def ask(self, request: LimitRequest) -> LiveLimits:
        """What it answers, which is remembered.

        Raises:
            LimitRefusedError: the engine says why not.
            CollectorError: it cannot be reached.
        """
        limits, refused = await self._answered(request)
        if refused is not None:
            raise LimitRefusedError(_shown(refused))
        return limits

    async def _answered(self, request: LimitRequest) -> tuple[LiveLimits, str | None]:
        try:
            async with asyncio.timeout(ANSWER_S):
                self._writer.write(msgspec.json.encode(request) + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
            if not line.endswith(b"\n"):
                raise ConnectionResetError  # noqa: TRY301 - told below, as one that is
            answer = msgspec.json.decode(line, type=LimitAnswer)
        except TimeoutError as error:
            self.hang_up()
            raise CollectorError(f"the engine {NO_ANSWER}") from error
        except OSError as error:
            self.hang_up()
            raise SourceLostError(HUNG_UP if self.limits is None else GONE) from error
        except ValueError as error:  # a line that is too long, or none of ours
            self.hang_up()
            raise CollectorError("the engine answers what means nothing") from error
        except BaseException:
            self.hang_up()  # else the next answer would be taken for another
            raise
        self.limits = answer.limits
        return answer.limits, answer.refused


NO_ANSWER = f"does not answer within {ANSWER_S:g} s"
HUNG_UP = "the engine hung up: it is gone, or takes changes only of the user it runs as"


def conflict_text(now: LiveLimits) -> str:
    """Who changed them meanwhile, and to what."""
    seqs, tokens = now.max_num_seqs, now.max_num_batched_tokens
    values = f"max_num_seqs {seqs:,}, max_num_batched_tokens {tokens:,}"
    if now.change is LimitChange.WATCHER_GONE:
        return f"the start-up values came back meanwhile ({values}); look again"
    who = _shown(now.by) if now.by else "somebody else"
    return f"changed meanwhile by {who} ({values}); look again"


def _of_rank(error: BaseException, rank: _Rank, ranks: int) -> BaseException:
    """Which rank it was, where there are several."""
    if ranks < 2 or rank.limits is None or not isinstance(error, CollectorError):
        return error
    return type(error)(f"rank {rank.limits.rank}: {error}")


def _shown(text: str) -> str:
    """What an engine passes on, in one line of a fair length."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= MOST_SHOWN * 3 else plain[: MOST_SHOWN * 3] + "…"


def has_control(engine_id: str) -> bool:
    """Whether that engine has, or had, sockets at which it can be told."""
    try:
        return bool(_sockets(engine_id))
    except CollectorError:
        return False


def _sockets(engine_id: str) -> list[Path]:
    """Where the ranks of that engine can be told, those of the dead among them.

    Raises:
        CollectorError: our directory is somebody else's.
    """
    try:
        directory = control_path(engine_id, 0).parent
        found = sorted(directory.glob("*.ctl"))
    except OSError as error:
        raise CollectorError(str(error)) from error
    return [path for path in found if path.stem.rpartition(".")[0] == engine_id]


def this_process() -> str:
    """Our user and pid."""
    with suppress(KeyError, OSError):  # a user without a name
        return f"{getpass.getuser()} (pid {os.getpid()})"
    return f"pid {os.getpid()}"
