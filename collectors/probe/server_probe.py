"""Follows the probe of one server for as long as anybody wants: a collector.

The server was started by somebody else and may end and come again; its probe may come
late or never. What the probe held before we came is told first, and marked.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from collectors.clock import NS_PER_S, SessionClock, monotonic_ns
from collectors.collector import CollectorError, SourceLostError
from collectors.probe.discover import probe_at
from collectors.probe.hello import Hello, Role
from collectors.probe.stream import ProbeMemory, ProbeStream
from collectors.readings import AnyReading, EngineInfo, Note, NoteKind
from collectors.runtime_dir import probe_sockets
from collectors.server import Server

LOOK_AGAIN_S = 1.0
WORTH_A_NOTE_NS = 2 * NS_PER_S
"""Of the past that the ring had."""


class ServerProbe:
    """Everything that the probe of a server on this host tells, life after life."""

    def __init__(
        self, clock: SessionClock, server: Server, *, engine_id: str = ""
    ) -> None:
        self.server = server
        self._clock = clock
        self._engine_id = engine_id
        """The probe to follow; else the one whose server listens at the url."""
        self._memory = ProbeMemory()
        self._stream: ProbeStream | None = None
        self._told: set[str] = set()
        self._ended = asyncio.Event()

    @property
    def hellos(self) -> dict[int, Hello]:
        """By pid, of the server's processes that answer now."""
        return self._stream.hellos if self._stream else {}

    def processes(self) -> list[tuple[int, str]]:
        """Those of this host, each with its role."""
        return [(pid, hello.role) for pid, hello in self.hellos.items()]

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time under the server's name, until closed."""
        while not self._ended.is_set():
            try:
                self._stream = await self._found()
                if self._stream is not None:
                    async for batch in self._marked(self._stream):
                        yield batch
            except SourceLostError as error:
                yield [self._note(NoteKind.LOST, str(error))]
            except (CollectorError, OSError) as error:
                if str(error) not in self._told:
                    self._told.add(str(error))
                    yield [self._note(NoteKind.PROBE, str(error))]
            await self._let_go()
            await self._pause()

    async def close(self) -> None:
        """Stop following; safe to call twice."""
        self._ended.set()
        if self._stream is not None:
            await self._stream.close()

    async def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_AGAIN_S):
                await self._ended.wait()
        except TimeoutError:
            return

    async def _found(self) -> ProbeStream | None:
        """What to listen to; None while there is none."""
        engine_id = self._engine_id
        if not engine_id:
            server = self.server
            found = await asyncio.to_thread(probe_at, server.url, server.uds)
            engine_id = found.engine_id if found else ""
        if not engine_id or not probe_sockets(engine_id):
            return None
        return ProbeStream(
            self._clock, engine_id, source=self.server.source, memory=self._memory
        )

    async def _marked(self, stream: ProbeStream) -> AsyncIterator[Sequence[AnyReading]]:
        """What the stream tells, and a note of how much of it was before we came."""
        came_ns, first = self._clock.now_ns(), True
        async for batch in stream.batches():
            yield batch
            oldest = min((_moment(each) for each in batch if _moment(each)), default=0)
            if first and oldest and came_ns - oldest > WORTH_A_NOTE_NS:
                first = False
                ago = (came_ns - oldest) // NS_PER_S
                yield [
                    self._note(
                        NoteKind.PROBE,
                        f"the {ago // 60} min {ago % 60:02} s before we came are from "
                        "the probe's memory",
                    )
                ]

    def _note(self, kind: NoteKind, text: str) -> Note:
        note = Note(t_ns=monotonic_ns(), kind=kind, text=text)
        rebased = self._clock.rebase(note, self.server.source)
        assert isinstance(rebased, Note)
        return rebased
