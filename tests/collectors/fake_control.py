"""Engines that can be told their limits, by the protocol alone: no vLLM."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Any

import msgspec
from msgspec.structs import replace

from collectors.contract.readings import LimitChange, LiveLimits
from collectors.probe.control import (
    LimitAction,
    LimitAnswer,
    LimitRequest,
    control_path,
)

START_SEQS, START_TOKENS = 32, 2_048


class FakeRank:
    """One EngineCore: it answers as the protocol says, or wrongly where told to."""

    def __init__(self, rank: int = 0, *, between_s: float = 0.0) -> None:
        self.limits = LiveLimits(
            t_ns=monotonic_ns(),
            rank=rank,
            version=1,
            change=LimitChange.START,
            max_num_seqs=START_SEQS,
            max_num_batched_tokens=START_TOKENS,
            start_max_num_seqs=START_SEQS,
            start_max_num_batched_tokens=START_TOKENS,
        )
        self.between_s = between_s
        self.refuses: str | None = None
        self.says: bytes | None = None
        """In place of every answer; nothing: it hangs up."""
        self.is_slow = False
        self.requests: list[LimitRequest] = []
        self.callers = 0
        self._changed_s = -1e9
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One caller, until it hangs up."""
        self.callers += 1
        self._writers.add(writer)
        try:
            await self._answer(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while line := await reader.readline():
            if self.says is not None:
                writer.write(self.says)
                if not self.says:
                    break
                continue
            request = msgspec.json.decode(line, type=LimitRequest)
            self.requests.append(request)
            refused = self._turned(request)
            if not self.is_slow:
                answer = LimitAnswer(limits=self.limits, refused=refused)
                writer.write(msgspec.json.encode(answer) + b"\n")

    @property
    def watched(self) -> int:
        """How many are connected."""
        return len(self._writers)

    def turn(self, change: LimitChange, by: str | None, **values: Any) -> None:
        """Somebody else changes them."""
        self.limits = replace(
            self.limits,
            version=self.limits.version + 1,
            change=change,
            by=by,
            **values,
        )

    def hang_up(self) -> None:
        """On everybody."""
        for writer in tuple(self._writers):
            writer.close()

    def _turned(self, asked: LimitRequest) -> str | None:
        now = self.limits
        start = {
            "max_num_seqs": now.start_max_num_seqs,
            "max_num_batched_tokens": now.start_max_num_batched_tokens,
        }
        if asked.action is not LimitAction.SET:
            if asked.action is LimitAction.RESET:
                self.turn(LimitChange.RESET, asked.by, kept=False, **start)
            return None
        if asked.version != now.version:
            return f"these are version {now.version}"
        if monotonic() - self._changed_s < self.between_s:
            return f"one change in {self.between_s:g} s"
        values = {
            name: value for name in start if (value := getattr(asked, name)) is not None
        }
        if any(value > start[name] for name, value in values.items()):
            return "only downwards from the start"
        if self.refuses is not None:
            return self.refuses
        self._changed_s = monotonic()
        self.turn(LimitChange.SET, asked.by, kept=asked.keep, **values)
        return None


@asynccontextmanager
async def controlled(
    *ranks: FakeRank, engine_id: str = "eng"
) -> AsyncIterator[list[Path]]:
    """Their sockets, while they listen."""
    async with AsyncExitStack() as stack:
        paths = []
        for number, rank in enumerate(ranks):
            path = control_path(engine_id, 100 + number)
            server = await asyncio.start_unix_server(rank.serve, path)
            stack.callback(path.unlink, missing_ok=True)
            stack.push_async_callback(_end, server, rank)
            paths.append(path)
        yield paths


async def _end(server: asyncio.Server, rank: FakeRank) -> None:
    await asyncio.sleep(0.01)  # whoever is let in just now needs an open server
    server.close()
    rank.hang_up()
    while rank.watched:  # noqa: ASYNC110 - handlers that end
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)  # transports close their sockets a turn later
