"""Calls in flight: each one ends in a RequestRecord, however it ends."""

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine
from functools import partial
from itertools import count

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Phase
from inferwatch.formatting import counted
from inferwatch.loadgen.exchange.call import Call, Failure
from inferwatch.loadgen.exchange.reply import Reply
from inferwatch.loadgen.exchange.transport import Exchange, Transport
from inferwatch.loadgen.prompts.prompts import Prompt
from inferwatch.loadgen.sending.pipes import Outbox
from inferwatch.loadgen.sending.sampler import Sampler

SAID_CHARS = 120


class CallCounts:
    """Outcomes of a run's calls; those of the warm-up are counted separately."""

    def __init__(self) -> None:
        self.ended = 0
        self.warmup = 0
        self.late = 0
        self.failures: Counter[Failure] = Counter()
        self.first_said: dict[Failure, str] = {}
        """Detail of the first failure of each kind."""
        self.last_failure: str | None = None
        self._worst_lag_ns = 0

    def count(self, call: Call) -> None:
        if call.failure is not None:
            self.failures[call.failure] += 1
            self.first_said.setdefault(call.failure, (call.detail or "")[:SAID_CHARS])
            self.last_failure = f"{call.failure}: {call.detail}"
        if call.phase is Phase.WARMUP:
            self.warmup += 1
            return
        self.ended += 1
        self.late += call.late
        self._worst_lag_ns = max(self._worst_lag_ns, call.lag_ns)

    def sentence(self) -> str:
        """The counts as a sentence for users."""
        parts = [counted(self.ended, "request"), f"{self.warmup:,} in warm-up"]
        if self.late:
            worst_s = self._worst_lag_ns / NS_PER_S
            parts.append(f"{self.late:,} sent late (worst {worst_s:.3f} s)")
        parts += [self._failed(kind) for kind in sorted(self.failures)]
        return ", ".join(parts)

    def _failed(self, kind: Failure) -> str:
        detail = self.first_said[kind]
        return f"{self.failures[kind]:,} {kind}" + (f" ({detail})" if detail else "")


class InFlight:
    """Numbers the calls of a run, sends them, and reports each when it ends."""

    def __init__(
        self, run_id: str, transport: Transport, outbox: Outbox, sampler: Sampler
    ) -> None:
        self._run_id = run_id
        self._sampler = sampler
        self._transport = transport
        self._outbox = outbox
        self._indexes = count()
        self._futures: set[asyncio.Future[None]] = set()
        self._beside: set[asyncio.Task[None]] = set()
        self._unfiled: deque[Call] = deque()
        self._fault: BaseException | None = None
        self.counts = CallCounts()

    def __len__(self) -> int:
        return len(self._futures)

    def make(self, phase: Phase, prompt: Prompt, intended_ns: int) -> Exchange:
        """Build a request that can be sent later without further work."""
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
        """Open connections for upcoming requests; True once all are open."""
        return self._transport.ensure(connections)

    def send(self, exchange: Exchange) -> asyncio.Future[None]:
        """Send a request; the future is done when the call has ended."""
        self._sampler.begun(exchange.call)
        ended = exchange.begin()
        self._futures.add(ended)
        self._sampler.in_flight = len(self._futures)
        ended.add_done_callback(partial(self._ended, exchange.call))
        return ended

    def held_back(self, exchange: Exchange) -> None:
        """Count a request that is late because too many were in flight."""
        self._sampler.held_back(exchange.call)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run work in the background, to be drained or aborted with the calls."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._done_beside)
        return task

    def raise_fault(self) -> None:
        """Raise the first exception of background work.

        A run that lost part of its users must not end successfully.
        """
        if self._fault is not None:
            raise self._fault

    async def drain(self, within_s: float) -> None:
        """Wait until nothing is in flight; aborts the rest after ``within_s``."""
        try:
            async with asyncio.timeout(within_s):
                while waiting := {*self._beside, *self._futures}:
                    await asyncio.wait(waiting)
        except TimeoutError:
            await self.abort()
        self._file_all()

    async def abort(self) -> None:
        """Close the connections of all calls in flight."""
        for each in (*self._beside, *self._futures):
            each.cancel()
        # From Python 3.12 on, gather() would return before done callbacks have run.
        if waiting := {*self._beside, *self._futures}:
            await asyncio.wait(waiting)
        self._file_all()

    def _done_beside(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        fault = None if task.cancelled() else task.exception()
        while isinstance(fault, BaseExceptionGroup):
            fault = fault.exceptions[0]
        self._fault = self._fault or fault

    def _ended(self, call: Call, ended: asyncio.Future[None]) -> None:
        self._futures.discard(ended)
        self._sampler.in_flight = len(self._futures)
        if not ended.cancelled() and (fault := ended.exception()) is not None:
            call.fail(
                Failure.BROKEN_STREAM, f"{type(fault).__name__} in our own client"
            )
        self._unfiled.append(call)
        if len(self._unfiled) == 1:
            asyncio.get_running_loop().call_soon(self._file_next)

    def _file_next(self) -> None:
        """Report one call at a time, so that arrivals and due requests go first."""
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
        self.counts.count(call)
        self._sampler.count(call)
        self._outbox.put(call.record())
        if (times := call.token_times()) is not None:
            self._outbox.put(times)
