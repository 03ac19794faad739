"""Our probe in a server that was there before us, as long as it has one."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from collectors.clock import SessionClock, monotonic_ns
from collectors.collector import CollectorError, SourceLostError
from collectors.probe.discover import probe_at
from collectors.probe.stream import ProbeStream
from collectors.readings import AnyReading, Endpoint, EngineInfo, Note, NoteKind
from collectors.runtime_dir import ProbeSocket
from collectors.server import Server

LOOK_S = 2.0
"""How often to look for a probe where there is none."""


class LocalProbe:
    """What the probe of a server on this host tells, in one life after the other."""

    def __init__(self, clock: SessionClock, server: Server) -> None:
        self._clock = clock
        self._server = server
        self._stream: ProbeStream | None = None

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, whenever a probe can be heard."""
        while True:
            server = self._server
            found = await asyncio.to_thread(probe_at, server.url, server.uds)
            if found is None:
                await asyncio.sleep(LOOK_S)
                continue
            async for batch in self._life(found):
                yield batch

    async def close(self) -> None:
        """Stop listening."""
        if self._stream is not None:
            await self._stream.close()

    async def _life(self, found: ProbeSocket) -> AsyncIterator[Sequence[AnyReading]]:
        self._stream = ProbeStream(self._clock, found.engine_id)
        try:
            async for batch in self._stream.batches():
                yield [*self._endpoints(batch, found), *batch]
        except SourceLostError as error:
            yield [self._note(NoteKind.LOST, str(error), found.engine_id)]
        except CollectorError as error:
            yield [self._note(NoteKind.PROBE, str(error), found.engine_id)]
            await asyncio.sleep(LOOK_S)
        finally:
            await self._stream.close()

    def _endpoints(
        self, batch: Sequence[AnyReading], found: ProbeSocket
    ) -> Sequence[AnyReading]:
        """Where the engine listens that has just introduced itself."""
        server = self._server
        return [
            Endpoint(
                t_ns=monotonic_ns() - self._clock.start_ns,
                source=found.engine_id,
                pid=found.pid,
                model=each.model,
                url=None if server.uds else server.shown_url,
                uds=server.uds,
            )
            for each in batch
            if isinstance(each, EngineInfo)
        ][:1]

    def _note(self, kind: NoteKind, text: str, source: str) -> Note:
        t_ns = monotonic_ns() - self._clock.start_ns
        return Note(t_ns=t_ns, kind=kind, text=text, source=source)
