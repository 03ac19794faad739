"""The calls in flight: each one ends in a record, whatever ends it."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from functools import partial
from itertools import count

from collectors.readings import Phase
from inferwatch.loadgen.exchange.call import Call, Failure
from inferwatch.loadgen.exchange.reply import Reply
from inferwatch.loadgen.exchange.transport import Exchange, Transport
from inferwatch.loadgen.prompts.prompts import Prompt
from inferwatch.loadgen.sending.outbox import Outbox
from inferwatch.loadgen.sending.sampler import Sampler
from inferwatch.loadgen.sending.tally import Tally


class Flights:
    """Numbers the calls of a run, sends them, and reports each when it ends."""

    def __init__(
        self, run_id: str, transport: Transport, outbox: Outbox, sampler: Sampler
    ) -> None:
        self._run_id = run_id
        self._sampler = sampler
        self._transport = transport
        self._outbox = outbox
        self._indexes = count()
        self._in_flight: set[asyncio.Future[None]] = set()
        self._beside: set[asyncio.Task[None]] = set()
        self._unfiled: deque[Call] = deque()
        self._fault: BaseException | None = None
        self.tally = Tally()

    def __len__(self) -> int:
        """How many are in flight."""
        return len(self._in_flight)

    def make(self, phase: Phase, prompt: Prompt, intended_ns: int) -> Exchange:
        """A request that can be sent later without further work."""
        index = next(self._indexes)
        call = Call(
            index=index,
            external_id=f"{self._run_id}-{index}",
            phase=phase,
            intended_ns=intended_ns,
            prompt=prompt,
            reply=Reply(keep_words=bool(prompt.later)),
        )
        return self._transport.prepare(call)

    def ensure(self, connections: int) -> bool:
        """So many are about to be sent at once; true when there are connections."""
        return self._transport.ensure(connections)

    def fly(self, exchange: Exchange) -> asyncio.Future[None]:
        """Send it now; it is reported when it ends, which the future tells."""
        self._sampler.begun(exchange.call)
        ended = exchange.begin()
        self._in_flight.add(ended)
        self._sampler.in_flight = len(self._in_flight)
        ended.add_done_callback(partial(self._ended, exchange.call))
        return ended

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Let work go on beside; it is waited for or aborted with the rest."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._done_beside)
        return task

    def raise_fault(self) -> None:
        """What broke off work that went on beside, if anything did.

        Half of the load is no load: a run that lost its users must not end well.
        """
        if self._fault is not None:
            raise self._fault

    async def land(self, within_s: float) -> None:
        """Wait until nothing is in flight, but no longer than that."""
        try:
            async with asyncio.timeout(within_s):
                while waiting := {*self._beside, *self._in_flight}:
                    await asyncio.wait(waiting)
        except TimeoutError:
            await self.abort()
        self._file_all()

    async def abort(self) -> None:
        """Close the connections of all that is in flight."""
        for each in (*self._beside, *self._in_flight):
            each.cancel()
        # From Python 3.12 on gather() would return before what is done has told.
        if waiting := {*self._beside, *self._in_flight}:
            await asyncio.wait(waiting)
        self._file_all()

    def _done_beside(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        fault = None if task.cancelled() else task.exception()
        while isinstance(fault, BaseExceptionGroup):
            fault = fault.exceptions[0]
        self._fault = self._fault or fault

    def _ended(self, call: Call, ended: asyncio.Future[None]) -> None:
        self._in_flight.discard(ended)
        self._sampler.in_flight = len(self._in_flight)
        if not ended.cancelled() and (fault := ended.exception()) is not None:
            call.fail(Failure.BROKEN_STREAM, f"{type(fault).__name__} in our client")
        self._unfiled.append(call)
        if len(self._unfiled) == 1:
            asyncio.get_running_loop().call_soon(self._file_next)

    def _file_next(self) -> None:
        """One at a time: what comes and what is due goes first."""
        try:
            if self._unfiled:
                self._file(self._unfiled.popleft())
        finally:
            if self._unfiled:
                asyncio.get_running_loop().call_soon(self._file_next)

    def _file_all(self) -> None:
        while self._unfiled:
            self._file(self._unfiled.popleft())

    def _file(self, call: Call) -> None:
        call.judge()
        self.tally.count(call)
        self._sampler.count(call)
        self._outbox.put(call.record())
        if (times := call.token_times()) is not None:
            self._outbox.put(times)
