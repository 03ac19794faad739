"""A collector that follows the probe of one server across restarts.

The server was started by someone else and may end and return; its probe may appear late
or never. The probe's backlog is returned first, and marked by a note.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from collectors.contract.clock import NS_PER_S, SessionClock, monotonic_ns
from collectors.contract.collector import (
    CollectorError,
    SourceLostError,
    SourceNeverCameError,
    SourceSilentError,
)
from collectors.contract.readings import (
    AnyReading,
    Contact,
    Endpoint,
    EngineInfo,
    Note,
    NoteKind,
    Step,
)
from collectors.contract.runtime_dir import (
    SOCKETS_IN,
    ProbeSocket,
    forwarded_sockets,
    probe_sockets,
)
from collectors.contract.wire import TCP
from collectors.http.http_client import goes_direct
from collectors.http.server import Server
from collectors.probe.discover import addresses_here, listening, port_of, probe_at
from collectors.probe.hello import Hello
from collectors.probe.relayed import ProbeEndpoint, RelayedStream
from collectors.probe.stream import ProbeMemory, ProbeStream

LOOK_AGAIN_S, LOOK_AT_LEAST_S = 1.0, 5.0
"""Pause before the next search for the probe: short at first, then up to the second."""
WORTH_A_NOTE_NS = 2 * NS_PER_S
"""A backlog from this length on is noted."""


class ServerProbe:
    """Every reading of a server's probe, across restarts of the server.

    Unless ``server.probe`` names one, it is the probe whose process listens on the
    server's address.
    """

    def __init__(self, clock: SessionClock, server: Server) -> None:
        self.server = server
        self._clock = clock
        self._memory = ProbeMemory()
        self._stream: ProbeStream | None = None
        self._silent_ns: int | None = None
        """When the probe fell silent, if its process may still be alive."""
        self._marked = False
        self._told = ""
        self._why: str | None = ""
        """Why the probe does not answer; None while it does, empty at first."""
        self._ended = asyncio.Event()
        self.is_awaited = True
        """True until the probe's backlog has been read or no probe was found."""

    @property
    def engine_id(self) -> str:
        """Id of the connected engine; empty without one."""
        return self._stream.engine_id if self._stream and self.hellos else ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the probe is on another host."""
        return self.server.probe.startswith((TCP, SOCKETS_IN))

    @property
    def hellos(self) -> dict[int, Hello]:
        """Hellos of the processes that answer, by PID."""
        return self._stream.hellos if self._stream else {}

    def processes(self) -> list[tuple[int, str]]:
        """PID and role of the processes visible on this host."""
        stream = self._stream
        if stream is None:
            return []
        return [(p, hello.role) for p, hello in self.hellos.items() if stream.sees(p)]

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time under the server's name, until closed.

        Ends at once if there can be no probe: the server is on another host and no
        address is given.
        """
        if not await asyncio.to_thread(self._can_be_found):
            self.is_awaited = False
            return
        pause_s = LOOK_AGAIN_S
        while not self._ended.is_set():
            try:
                stream = await self._connected()
                pause_s = LOOK_AGAIN_S
                async for batch in self._life(stream):
                    yield batch
            except SourceLostError as error:
                yield [self._note(NoteKind.LOST, str(error))]
                yield self._contact(str(error))
            except SourceSilentError as error:
                self._silent_ns = monotonic_ns()
                yield self._say(str(error))
            except (CollectorError, OSError) as error:
                yield self._say(str(error))
                yield self._contact(str(error) or "no probe of that id answers here")
            finally:
                self.is_awaited = False
                await self._let_go()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ended.wait()
            pause_s = min(1.2 * pause_s, LOOK_AT_LEAST_S)

    async def close(self) -> None:
        """Stop following; safe to call twice."""
        self._ended.set()
        if self._stream is not None:
            await self._stream.close()

    async def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def _connected(self) -> ProbeStream:
        """A stream connected to the server's probe."""
        server = self.server
        if server.probe.startswith(TCP):
            place = ProbeEndpoint.of(server)
            self._stream = RelayedStream(
                self._clock, place, source=server.source, memory=self._memory
            )
            return self._stream
        engine_id = server.probe
        if engine_id.startswith(SOCKETS_IN) or not engine_id:
            found = await asyncio.to_thread(self._at_its_address)
            engine_id = found.engine_id if found else ""
        if not engine_id or not self._sockets(engine_id) or self._ended.is_set():
            raise SourceNeverCameError
        self._stream = ProbeStream(
            self._clock,
            engine_id,
            source=server.source,
            sockets=partial(self._sockets, engine_id),
            memory=self._memory,
        )
        return self._stream

    def _can_be_found(self) -> bool:
        server = self.server
        if server.probe or server.uds:
            return True
        return bool(addresses_here(urlsplit(server.url).hostname or ""))

    def _at_its_address(self) -> ProbeSocket | None:
        """The probe whose process listens on the server's address."""
        server = self.server
        if not server.probe:
            return probe_at(server.url, server.uds)
        if not goes_direct(server.url):
            return None  # on yet another host
        return listening(self._sockets(None), port_of(server.url), set(), None)

    def _sockets(self, engine_id: str | None) -> list[ProbeSocket]:
        """Probe sockets of one engine or all, here or at the end of the tunnel."""
        place = self.server.probe
        if place.startswith(SOCKETS_IN):
            directory = Path(place.removeprefix(SOCKETS_IN))
            return forwarded_sockets(directory, engine_id)
        return probe_sockets(engine_id)

    async def _life(self, stream: ProbeStream) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings of the server's processes until they end."""
        known = set(self._memory.positions)
        self._marked = bool(known)
        came_ns = self._clock.now_ns()
        async for batch in stream.batches():
            self.is_awaited = False
            yield self._contact(None)
            yield self._new_life(stream, known)
            yield [*self._endpoint(batch), *batch]
            yield self._backlog_note(batch, came_ns)

    def _new_life(self, stream: ProbeStream, known: set[str]) -> list[AnyReading]:
        """A note that the server restarted while its probe was silent."""
        since_ns, self._silent_ns = self._silent_ns, None
        self._told = ""
        if since_ns is None or any(h.stream in known for h in stream.hellos.values()):
            return []
        return [self._note(NoteKind.LOST, "its processes were started anew", since_ns)]

    def _backlog_note(
        self, batch: Sequence[AnyReading], came_ns: int
    ) -> list[AnyReading]:
        """A note, once, of how far back the readings stored in the probe go."""
        oldest_ns = next((s.start_ns for s in batch if isinstance(s, Step)), None)
        if self._marked or oldest_ns is None:
            return []
        self._marked = True
        past_ns = came_ns - oldest_ns
        if past_ns < WORTH_A_NOTE_NS:
            return []
        minutes, seconds = divmod(past_ns // NS_PER_S, 60)
        ago = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        return self._say(f"the {ago} before this are from the probe's own memory")

    def _endpoint(self, batch: Sequence[AnyReading]) -> list[Endpoint]:
        """The endpoint of an engine whose EngineInfo is in the batch."""
        server = self.server
        return [
            Endpoint(
                t_ns=self._clock.now_ns(),
                source=server.source,
                pid=each.pid,
                model=each.model,
                url=None if server.uds else server.shown_url,
                uds=server.uds,
            )
            for each in batch
            if isinstance(each, EngineInfo) and not server.only_probe
        ][:1]

    def _contact(self, why: str | None) -> list[AnyReading]:
        """Whether the probe answers, where it is all that can; if that has changed."""
        if not self.server.only_probe or why == self._why:
            return []
        self._why = why
        return [
            Contact(
                t_ns=self._clock.now_ns(),
                source=self.server.source,
                answers=why is None,
                why=why,
            )
        ]

    def _say(self, text: str) -> list[AnyReading]:
        """A note, unless it repeats the last one."""
        if text in {"", self._told}:
            return []
        self._told = text
        return [self._note(NoteKind.PROBE, text)]

    def _note(self, kind: NoteKind, text: str, raw_ns: int | None = None) -> Note:
        t_ns = (raw_ns or monotonic_ns()) - self._clock.start_ns
        return Note(t_ns=t_ns, kind=kind, text=text, source=self.server.source)
