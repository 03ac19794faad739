"""Follows an engine from its first sign of life to its first healthy answer.

Every stage is an event of the process itself; the log is not read.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import httpx

from collectors.clock import SessionClock, monotonic_ns
from collectors.collector import CollectorError
from collectors.probe.hello import Role
from collectors.probe.stream import ProbeStream
from collectors.readings import EngineInfo, Note, NoteKind
from embedded_engine.server import healthy
from embedded_engine.startup_pipe import StartupPipe

LOOK_S = 0.05

OnStage = Callable[[Note], None]


def stage(text: str) -> Note:
    """A stage reached now."""
    return Note(kind=NoteKind.STAGE, text=text, t_ns=monotonic_ns())


class Progress:
    """Tells the stages of one start as they are reached, in their order."""

    def __init__(self, pipe: StartupPipe, engine_id: str, on_stage: OnStage) -> None:
        self.stream = ProbeStream(SessionClock(), engine_id, backfill=False)
        self._on_stage = on_stage
        self._kv_ready = False
        self._ahead: list[tuple[str, Callable[[], bool]]] = [
            ("process up", lambda: pipe.up),
            ("plug-in in API server", lambda: self._heard(Role.API)),
            ("plug-in in EngineCore", lambda: self._heard(Role.CORE)),
            ("weights and KV done", lambda: self._kv_ready),
        ]

    def _heard(self, role: Role) -> bool:
        return any(hello.role is role for hello in self.stream.hellos.values())

    def tell(self) -> None:
        """Tell what was reached since."""
        while self._ahead and self._ahead[0][1]():
            self._on_stage(stage(self._ahead.pop(0)[0]))

    def tell_rest(self) -> None:
        """Tell what was reached although something before it never was."""
        for text, reached in self._ahead:
            if reached():
                self._on_stage(stage(text))

    async def listen(self) -> None:
        """Hear the probes; of lost processes the watch on deaths knows more."""
        with suppress(CollectorError):
            async for batch in self.stream.batches():
                infos = [r for r in batch if isinstance(r, EngineInfo)]
                self._kv_ready |= any(i.num_kv_blocks is not None for i in infos)


async def follow(
    pipe: StartupPipe, engine_id: str, client: httpx.AsyncClient, on_stage: OnStage
) -> None:
    """Return once the server is healthy; whether it lives is for others to watch."""
    progress = Progress(pipe, engine_id, on_stage)
    listening = asyncio.create_task(progress.listen())
    try:
        while not await healthy(client):
            progress.tell()
            await asyncio.sleep(LOOK_S)
        progress.tell_rest()
        on_stage(stage("health 200"))
    finally:
        await progress.stream.close()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
