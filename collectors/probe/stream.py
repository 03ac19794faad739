"""Listens to the probes of one engine: a collector of everything they tell."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import zmq
import zmq.asyncio

from collectors.clock import SessionClock
from collectors.collector import CollectorError, SourceLostError
from collectors.liveness import birth
from collectors.probe.hello import Hello, Role
from collectors.probe.reception import ProbeMessage, Reception, SendingOrder
from collectors.readings import AnyReading
from collectors.runtime_dir import ProbeSocket, probe_sockets

LOOK_S = 0.2
"""How often to look for new sockets."""
PATIENCE_S = 3.0
"""Who does not answer for so long holds the others up no longer."""
BATCH_READINGS = 500
"""Decoded in one go: the screen is drawn on the same thread."""
PULSE_MS = 100
"""A silent process is asked whether it lives this often."""
QUEUE_BATCHES = 1_000
"""When nobody takes batches we stop reading; then the probe drops and we count."""
WHAT = {Role.API: "API server", Role.CORE: "EngineCore", Role.WORKER: "worker"}


class ProbeStream:
    """All processes of an engine, as they come up one after the other."""

    def __init__(
        self, clock: SessionClock, engine_id: str, *, backfill: bool = True
    ) -> None:
        self.engine_id = engine_id
        self.hellos: dict[int, Hello] = {}
        """By pid, of the processes that answered."""
        self._clock = clock
        self._backfill = backfill
        self._context = zmq.asyncio.Context()
        self._queue: asyncio.Queue[Sequence[AnyReading] | CollectorError | None]
        self._queue = asyncio.Queue(QUEUE_BATCHES)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._order = SendingOrder()
        self._passing_on = asyncio.Lock()
        self._patient_until_s = 0.0
        self._closed = False

    async def batches(self) -> AsyncIterator[Sequence[AnyReading]]:
        """Readings in session time, until closed.

        Raises:
            SourceLostError: a process that had answered is dead.
            WireVersionError: a probe speaks another major version.
        """
        self._tasks[0] = asyncio.create_task(self._look())
        while not (self._closed and self._queue.empty()):
            batch = await self._queue.get()
            if isinstance(batch, CollectorError):
                raise batch
            if batch is not None:
                yield batch
        self._order.give_up(tuple(self._order.awaited))
        while messages := self._order.released(BATCH_READINGS):
            yield self._batch(messages)

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

    def _meet(self) -> None:
        sockets = probe_sockets(self.engine_id)
        if self._backfill and len(self._tasks) == 1:  # they have a past in common
            self._order.expect(found.pid for found in sockets)
            self._be_patient()
        for found in sockets:
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
        failure: CollectorError | None = None
        try:
            await self._follow(found, socket)
        except CollectorError as error:
            failure = error
        finally:
            socket.close(linger=0)
            self._order.give_up((found.pid,))
        await self._release()
        if failure is not None:
            await self._queue.put(failure)

    async def _follow(self, found: ProbeSocket, socket: zmq.asyncio.Socket) -> None:
        born = birth(found.pid)
        reception = Reception(backfill=self._backfill)
        socket.connect(f"ipc://{found.path}")
        for topic in reception.topics:
            socket.subscribe(topic)
        while True:
            if await socket.poll(PULSE_MS):
                frames = await socket.recv_multipart()
                await self._pass_on(found.pid, reception, frames)
            elif born is None or birth(found.pid) != born:
                break
        if hello := reception.hello:
            raise SourceLostError(
                f"{WHAT[hello.role]} (pid {hello.pid}) of {self.engine_id} is gone"
            )

    async def _pass_on(
        self, pid: int, reception: Reception, frames: list[bytes]
    ) -> None:
        messages = reception.hear(frames)
        if reception.hello:
            self.hellos[reception.hello.pid] = reception.hello
        if pid in self._order.awaited:
            self._be_patient()
        self._order.take(pid, messages, caught_up=reception.caught_up)
        await self._release()

    async def _release(self) -> None:
        """Pass on what has its turn; one at a time, or batches would overtake."""
        async with self._passing_on:
            while messages := self._order.released(BATCH_READINGS):
                await self._queue.put(self._batch(messages))
                await asyncio.sleep(0)

    def _batch(self, messages: Sequence[ProbeMessage]) -> list[AnyReading]:
        rebase, source = self._clock.rebase, self.engine_id
        return [rebase(each, source) for one in messages for each in one.readings()]
