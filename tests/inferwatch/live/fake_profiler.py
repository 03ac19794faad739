"""Engines that can be profiled, by the protocol alone: no vLLM."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns, time_ns

import msgspec
from msgspec.structs import replace

from collectors.contract.readings import Profile, ProfileState
from collectors.probe.profiling import (
    ProfileAction,
    ProfileAnswer,
    ProfileRequest,
    profiling_path,
)


@dataclass
class FakeProfiledRank:
    """One EngineCore: a step is over each time it is asked how far it is."""

    tell: Callable[[Profile], None]
    """Takes what its probe reports."""
    directory: Path
    rank: int = 0
    refuses: str | None = None
    fails: str | None = None
    """Why it cannot be switched on."""
    is_stuck: bool = False
    """Whether no step ends."""
    is_silent: bool = False
    """Whether its probe reports nothing."""
    is_hung: bool = False
    """Whether it hangs up once its steps are over, as if it wrote its traces."""
    dies_at: int | None = None
    """After which step it hangs up."""
    writes: bool = True
    latest: Profile | None = None
    steps: int | None = None
    is_on: bool = False
    asked: list[ProfileRequest] = field(default_factory=list)
    callers: int = 0

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One caller, until it hangs up."""
        self.callers += 1
        try:
            while line := await reader.readline():
                request = msgspec.json.decode(line, type=ProfileRequest)
                self.asked.append(request)
                refused = self._heed(request)
                answer = ProfileAnswer(
                    rank=self.rank,
                    latest=self.latest,
                    is_on=self.is_on,
                    steps=self.steps,
                    refused=refused,
                )
                if self.dies_at is not None and self.steps == self.dies_at:
                    break
                if self.is_hung and not self.is_on and self.latest is not None:
                    writer.write(b"?\n")
                    break
                writer.write(msgspec.json.encode(answer) + b"\n")
        finally:
            self._end("who asked for it is gone")
            writer.close()
            self.callers -= 1

    def _heed(self, request: ProfileRequest) -> str | None:
        if request.action is ProfileAction.START:
            if self.refuses is None:
                self._begin(request)
            return self.refuses
        if request.action is ProfileAction.STOP:
            self._end("it was stopped")
        elif self.is_on and self.latest is not None and not self.is_stuck:
            self.steps = (self.steps or 0) + 1
            if self.steps >= self.latest.steps_asked:
                self._end(None)
        return None

    def _begin(self, request: ProfileRequest) -> None:
        number = self.latest.number + 1 if self.latest else 1
        self.latest = Profile(
            t_ns=monotonic_ns(),
            rank=self.rank,
            number=number,
            state=ProfileState.FAILED if self.fails else ProfileState.STARTED,
            steps_asked=request.steps,
            prefix=f"inferwatch-eng-{self.rank}-{number}",
            directory=str(self.directory),
            by=request.by,
            why=self.fails,
            realtime_ns=time_ns(),
        )
        self.steps, self.is_on = 0, self.fails is None
        self._report()

    def _end(self, why: str | None) -> None:
        if not self.is_on or self.latest is None:
            return
        self.is_on = False
        if self.writes:
            self.directory.mkdir(exist_ok=True)
            name = f"{self.latest.prefix}_rank{self.rank}.1.pt.trace.json"
            (self.directory / name).write_text("{}")
        self.latest = replace(
            self.latest,
            t_ns=monotonic_ns(),
            state=ProfileState.ENDED,
            steps=self.steps,
            why=why,
            switch_ns=5,
            realtime_ns=time_ns(),
        )
        self._report()

    def _report(self) -> None:
        if not self.is_silent and self.latest is not None:
            self.tell(self.latest)


@asynccontextmanager
async def profiled(
    *ranks: FakeProfiledRank, engine_id: str = "engine-1"
) -> AsyncIterator[None]:
    """Their sockets, while they listen."""
    async with AsyncExitStack() as stack:
        for number, rank in enumerate(ranks):
            path = profiling_path(engine_id, 100 + number)
            server = await asyncio.start_unix_server(rank.serve, path)
            stack.callback(path.unlink, missing_ok=True)
            stack.callback(server.close)
        yield
        async with asyncio.timeout(5):
            while any(each.callers for each in ranks):  # noqa: ASYNC110 - their end
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)  # transports close their sockets a turn later
