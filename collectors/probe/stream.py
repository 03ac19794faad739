"""Subscribes to the probes of one engine: a collector of all their readings."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import zmq
import zmq.asyncio
from msgspec.structs import replace

from collectors.contract.clock import (
    NS_PER_S,
    ClockRelation,
    SessionClock,
    boot_id,
    monotonic_ns,
)
from collectors.contract.collector import (
    CollectorError,
    SourceLostError,
    SourceSilentError,
)
from collectors.contract.liveness import birth
from collectors.contract.readings import AnyReading, Note, NoteKind
from collectors.contract.runtime_dir import ProbeSocket, probe_sockets
from collectors.contract.wire import UNREADABLE
from collectors.probe.hello import Hello, Role
from collectors.probe.reception import (
    ProbeMessage,
    Reception,
    SendingOrder,
    StreamPosition,
    position_after,
)

LOOK_S = 0.2
"""Pause between searches for new sockets."""
AGAIN_S = 1.0
"""Pause after an unexpected error before a process is read again."""
PATIENCE_S = 3.0
"""Time until processes whose ring is incomplete no longer delay the others."""
BATCH_READINGS = 500
"""Readings decoded without yielding to the event loop."""
PULSE_MS = 250
"""How often a silent process is checked for being alive."""
SILENT_NS = 5 * NS_PER_S
"""Probes send every second; a process we cannot see is lost after this silence."""
EARLIEST_NS, AHEAD_NS = -3_600 * NS_PER_S, 60 * NS_PER_S
"""Bounds on the age of a reading, relative to now: a time in the far future would hide
everything after it in a recording."""
RECONNECT_MS = 100, 2_000
QUEUE_BATCHES = 1_000
"""Batches buffered; when full we stop reading, and the probe drops and counts."""
WHAT = {
    Role.API: "API server",
    Role.CORE: "EngineCore",
    Role.WORKER: "worker",
    Role.AGENT: "agent",
}


class ProbeMemory:
    """State of a server's probe that outlives a connection."""

    def __init__(self) -> None:
        self.positions: dict[str, StreamPosition] = {}
        """How far each stream was received, so that nothing is returned twice."""
        self.clocks = ClockRelation()

    def remember(self, messages: Sequence[ProbeMessage]) -> None:
        """Update the positions for messages that were returned."""
        for message in messages:
            if (got := message.envelope) is not None:
                self.positions[got.stream] = position_after(got)


class ProbeStream:
    """All processes of an engine, as they appear."""

    def __init__(
        self,
        clock: SessionClock,
        engine_id: str,
        *,
        backfill: bool = True,
        source: str = "",
        sockets: Callable[[], list[ProbeSocket]] | None = None,
        memory: ProbeMemory | None = None,
    ) -> None:
        self.engine_id = engine_id
        self.hellos: dict[int, Hello] = {}
        """Hellos of the processes that answered, by their PID on this host."""
        self._seen: set[int] = set()
        self._memory = memory or ProbeMemory()
        self._source = source or engine_id
        self._sockets = sockets or partial(probe_sockets, engine_id)
        self._clock = clock
        self._backfill = backfill
        self._context = zmq.asyncio.Context()
        self._queue: asyncio.Queue[Sequence[AnyReading] | Exception | None]
        self._queue = asyncio.Queue(QUEUE_BATCHES)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._order = SendingOrder()
        self._passing_on = asyncio.Lock()
        self._patient_until_s = 0.0
        self._silent: set[int] = set()
        """PIDs of processes that are alive but silent."""
        self._faults: dict[int, str] = {}
        """Last error per PID; each is reported once."""
        self._closed = False

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, until closed.

        Raises:
            SourceLostError: a process that had answered died.
            SourceSilentError: a process we cannot see is silent.
            WireVersionError: a probe uses another major version.
        """
        self._tasks[0] = asyncio.create_task(self._look())
        failure: Exception | None = None
        while not (self._closed and self._queue.empty()):
            batch = await self._queue.get()
            if isinstance(batch, Exception):
                failure = failure or batch
                await self.close()
            elif batch is not None:
                yield batch
        self._order.give_up(tuple(self._order.awaited))
        while messages := self._order.released(BATCH_READINGS):
            yield self._batch(messages)
        if failure is not None:
            raise failure

    def sees(self, pid: int) -> bool:
        """Whether the PID is one of this host, in our namespace."""
        return pid in self._seen

    async def close(self) -> None:
        """Stop reading; what was received is still yielded. Safe to call twice."""
        self._closed = True
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.term()
        if self._queue.empty():
            self._queue.put_nowait(None)  # wakes batches()

    async def _look(self) -> None:
        try:
            while True:
                self._meet()
                await self._lose_patience()
                await asyncio.sleep(LOOK_S)
        except OSError as error:
            await self._queue.put(CollectorError(f"cannot look for probes: {error}"))
        except Exception as error:  # noqa: BLE001 - raised where readings are taken
            await self._queue.put(error)

    def _meet(self) -> None:
        sockets = self._sockets()
        if self._backfill and len(self._tasks) == 1:  # their rings overlap in time
            self._order.expect(found.pid for found in sockets)
            self._be_patient()
        for found in sockets:
            if not found.foreign:
                self._seen.add(found.pid)
            if found.pid not in self._tasks:
                self._tasks[found.pid] = asyncio.create_task(self._listen(found))

    def _be_patient(self) -> None:
        self._patient_until_s = asyncio.get_running_loop().time() + PATIENCE_S

    async def _lose_patience(self) -> None:
        late = asyncio.get_running_loop().time() > self._patient_until_s
        if self._order.awaited and late:
            self._order.give_up(tuple(self._order.awaited))
            await self._release()

    async def _listen(self, found: ProbeSocket) -> None:
        socket = self._context.socket(zmq.SUB)
        socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT_MS
        failure: CollectorError | None = None
        try:
            await self._follow(found, socket)
        except CollectorError as error:
            failure = error
        except UNREADABLE as error:
            failure = CollectorError(f"what {found.path.name} says is unknown: {error}")
        except Exception as error:  # noqa: BLE001 - it is listened to anew
            await self._stumbled(found, error)
        finally:
            socket.close(linger=0)
            self._order.give_up((found.pid,))
            if found.pid not in self.hellos:  # it may still answer
                self._tasks.pop(found.pid, None)
        await self._release()
        if failure is not None:
            await self._queue.put(failure)

    async def _stumbled(self, found: ProbeSocket, error: Exception) -> None:
        """Report an unexpected error, and wait before the process is read again."""
        self.hellos.pop(found.pid, None)
        self._order.forget(found.pid)
        if self._faults.get(found.pid) != (text := f"{type(error).__name__}: {error}"):
            self._faults[found.pid] = text
            who = f"{found.path.name} of {self.engine_id}"
            await self._note(f"listening to {who} failed, and begins anew: {text}")
        await asyncio.sleep(AGAIN_S)

    async def _note(self, text: str) -> None:
        now_ns, source = self._clock.now_ns(), self._source
        note = Note(t_ns=now_ns, kind=NoteKind.PROBE, text=text, source=source)
        await self._queue.put([note])

    async def _follow(self, found: ProbeSocket, socket: zmq.asyncio.Socket) -> None:
        born = birth(found.pid)
        reception = Reception(backfill=self._backfill, positions=self._memory.positions)
        socket.connect(f"ipc://{found.path}")
        for topic in reception.topics:
            socket.subscribe(topic)
        asked_ns = heard_ns = monotonic_ns()
        while True:
            if await socket.poll(PULSE_MS):
                frames = await socket.recv_multipart()
                heard_ns = monotonic_ns()
                reception = reception.renewed(frames)
                await self._take(found.pid, reception, frames, asked_ns)
            elif self._is_gone(found, born, heard_ns):
                break
            elif reception.hello is not None:
                await self._mind_silence(reception.hello, found.pid, heard_ns)
        if hello := reception.hello:
            who = self._named(hello)
            if found.foreign:
                raise SourceSilentError(f"{who} cannot be heard")
            raise SourceLostError(f"{who} is gone")

    async def _take(
        self, pid: int, reception: Reception, frames: list[bytes], asked_ns: int
    ) -> None:
        messages = self._greeted(reception, frames, asked_ns)
        if reception.hello is not None:
            self.hellos[pid] = reception.hello
            if pid in self._silent:
                self._silent.discard(pid)
                await self._note(f"{self._named(reception.hello)} is heard again")
        await self._pass_on(pid, messages, caught_up=reception.caught_up)

    async def _mind_silence(self, hello: Hello, pid: int, heard_ns: int) -> None:
        """Report a living process that sends nothing, as its values become outdated."""
        if pid not in self._silent and monotonic_ns() > heard_ns + SILENT_NS:
            self._silent.add(pid)
            silent_s = SILENT_NS // NS_PER_S
            await self._note(
                f"{self._named(hello)} lives, and has told nothing for {silent_s} s"
            )

    def _named(self, hello: Hello) -> str:
        return f"{WHAT[hello.role]} (pid {hello.pid}) of {self.engine_id}"

    @staticmethod
    def _is_gone(found: ProbeSocket, born: int | None, heard_ns: int) -> bool:
        if found.foreign:
            return monotonic_ns() > heard_ns + SILENT_NS
        return born is None or birth(found.pid) != born

    def _greeted(
        self, reception: Reception, frames: list[bytes], asked_ns: int
    ) -> list[ProbeMessage]:
        """Messages in these frames; a first hello relates its host's clock to ours."""
        met, messages = reception.hello, reception.hear(frames)
        hello = reception.hello
        if hello is None or hello is met:
            return messages
        if hello.anchor.boot_id != boot_id():
            self._memory.clocks.answered(hello.anchor, asked_ns, monotonic_ns())
            close = replace(hello.anchor, uncertainty_ns=self._memory.clocks.bound_ns)
            messages[0].preface[0] = close
        return messages

    async def _pass_on(
        self, pid: int, messages: Sequence[ProbeMessage], *, caught_up: bool
    ) -> None:
        if pid in self._order.awaited:
            self._be_patient()
        self._order.take(pid, messages, caught_up=caught_up)
        await self._release()

    async def _release(self) -> None:
        """Queue messages whose turn it is; locked, so that batches keep their order."""
        async with self._passing_on:
            while messages := self._order.released(BATCH_READINGS):
                await self._queue.put(self._batch(messages))
                await asyncio.sleep(0)

    def _batch(self, messages: Sequence[ProbeMessage]) -> list[AnyReading]:
        rebase, source = self._memory.clocks.theirs(self._clock).rebase, self._source
        self._memory.remember(messages)
        told = [each for one in messages for each in one.readings()]
        return [rebase(each, source) for each in self._of_our_time(told)]

    def _of_our_time(self, told: list[AnyReading]) -> list[AnyReading]:
        """Readings with plausible times, and a note on how many were dropped."""
        now_ns = monotonic_ns() - self._memory.clocks.offset_ns
        known = [each for each in told if _happened(each, now_ns + AHEAD_NS)]
        if lost := len(told) - len(known):
            text = f"{lost:,} readings of {self.engine_id} are of times that cannot be"
            kind = NoteKind.DROPPED
            known.append(Note(t_ns=now_ns, kind=kind, text=text, count=lost))
        return known


def _happened(reading: AnyReading, latest_ns: int) -> bool:
    moments = (getattr(reading, name) for name in reading.INSTANTS)
    return all(each is None or EARLIEST_NS <= each <= latest_ns for each in moments)
