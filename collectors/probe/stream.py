"""Listens to the probes of one engine: a collector of everything they tell."""

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
    Position,
    ProbeMessage,
    Reception,
    SendingOrder,
    position_after,
)

LOOK_S = 0.2
"""How often to look for new sockets."""
AGAIN_S = 1.0
"""After a fault of ours, until somebody is listened to anew."""
PATIENCE_S = 3.0
"""Who does not answer for so long holds the others up no longer."""
BATCH_READINGS = 500
"""Decoded in one go: the screen is drawn on the same thread."""
PULSE_MS = 100
"""A silent process is asked whether it lives this often."""
SILENT_NS = 5 * NS_PER_S
"""A probe speaks every second, so one that cannot be seen is gone after so long."""
EARLIEST_NS, AHEAD_NS = -3_600 * NS_PER_S, 60 * NS_PER_S
"""Nothing happened before the sender's boot or after now, but for the clocks' error: a
moment in the far future would hide all that follows it in a record."""
RECONNECT_MS = 100, 2_000
QUEUE_BATCHES = 1_000
"""When nobody takes batches we stop reading; then the probe drops and we count."""
WHAT = {
    Role.API: "API server",
    Role.CORE: "EngineCore",
    Role.WORKER: "worker",
    Role.AGENT: "agent",
}


class ProbeMemory:
    """What is known of a server's probe from one connection to the next."""

    def __init__(self) -> None:
        self.positions: dict[str, Position] = {}
        """How far each stream was heard; what was is not told again."""
        self.clocks = ClockRelation()

    def remember(self, messages: Sequence[ProbeMessage]) -> None:
        """They are passed on."""
        for message in messages:
            if (got := message.envelope) is not None:
                self.positions[got.stream] = position_after(got)


class ProbeStream:
    """All processes of an engine, as they come up one after the other."""

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
        """By pid, as it is here, of the processes that answered."""
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
        """Processes, by pid, that live and say nothing."""
        self._faults: dict[int, str] = {}
        """What last went wrong in listening to each; told once."""
        self._closed = False

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, until closed.

        Raises:
            SourceLostError: a process that had answered is dead.
            SourceSilentError: one that cannot be seen is silent.
            WireVersionError: a probe speaks another major version.
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
        """The pid is one of this host, as we see it."""
        return pid in self._seen

    async def close(self) -> None:
        """Stop listening; what was heard is still yielded. Safe to call twice."""
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
        if self._backfill and len(self._tasks) == 1:  # they have a past in common
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
            if found.pid not in self.hellos:  # it may yet answer
                self._tasks.pop(found.pid, None)
        await self._release()
        if failure is not None:
            await self._queue.put(failure)

    async def _stumbled(self, found: ProbeSocket, error: Exception) -> None:
        """Say what went wrong, and let it be heard anew, from where it was."""
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
        """Say that a process lives and tells nothing: what is shown of it is old."""
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
        """What a message makes known; the first says whose clock its times are of."""
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
        """Pass on what has its turn; one at a time, or batches would overtake."""
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
        """Those of moments that can be, in the sender's time, and how many are not."""
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
