"""The calls in flight: each one ends in a record, whatever ends it."""

import asyncio
from collections.abc import Coroutine
from itertools import count
from typing import NamedTuple

import httpx

from collectors.readings import Phase
from inferwatch.loadgen.call import Call
from inferwatch.loadgen.client import Client
from inferwatch.loadgen.outbox import Outbox
from inferwatch.loadgen.prompts import Prompt
from inferwatch.loadgen.tally import Tally


class Flight(NamedTuple):
    """A call and the request that carries it, ready to be written."""

    call: Call
    request: httpx.Request


class Flights:
    """Numbers the calls of a run, sends them, and reports each when it ends."""

    def __init__(self, run_id: str, client: Client, outbox: Outbox) -> None:
        self._run_id = run_id
        self._client = client
        self._outbox = outbox
        self._indexes = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self.tally = Tally()

    def make(self, phase: Phase, prompt: Prompt, intended_ns: int) -> Flight:
        """A request that can be sent later without further work."""
        index = next(self._indexes)
        call = Call(
            index=index,
            external_id=f"{self._run_id}-{index}",
            phase=phase,
            intended_ns=intended_ns,
            prompt=prompt,
        )
        return Flight(call, self._client.prepare(call))

    async def fly(self, flight: Flight) -> None:
        """Send it, see it through to its end, report it."""
        call = flight.call
        try:
            await self._client.send(call, flight.request)
        finally:
            self.tally.count(call)
            self._outbox.put(call.record())
            if (times := call.token_times()) is not None:
                self._outbox.put(times)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Let work go on beside; it is waited for or aborted with the rest."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def land(self) -> None:
        """Wait until nothing is in flight."""
        await asyncio.gather(*self._tasks)

    async def abort(self) -> None:
        """Close the connections of all that is in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
