"""Closed loop: users who send again once answered and after thinking.

A closed loop hides queueing, because a slow server gets fewer requests. It is a good
measure of the most tokens per second a server can produce.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.readings import Phase
from inferwatch.loadgen.exchange.call import Call, Failure
from inferwatch.loadgen.exchange.transport import Exchange
from inferwatch.loadgen.prompts.prompts import Prompt
from inferwatch.loadgen.sending.conversations import Conversations
from inferwatch.loadgen.sending.in_flight import InFlight

CONNECT_NS = NS_PER_S
POLL_S = 0.001
RETRY_S = 0.25
"""Pause before a server that failed a request is tried again."""


class _Stock:
    """Requests of a phase prepared in advance."""

    def __init__(self, phase: Phase, prompts: Iterator[Prompt]) -> None:
        self.ready: deque[Exchange] = deque()
        self.all_made = False
        self._phase = phase
        self._prompts = prompts

    def make(self, in_flight: InFlight) -> Exchange | None:
        """Prepare the next request; None when there are no more prompts."""
        prompt = next(self._prompts, None)
        if prompt is None:
            self.all_made = True
            return None
        return in_flight.make(self._phase, prompt, 0)

    @property
    def all_taken(self) -> bool:
        """Whether no more requests will be sent."""
        return self.all_made and not self.ready


class ClosedLoop:
    """Keeps one request per user in flight, until stopped or out of prompts.

    Each phase has its own prompts, so a warm-up does not use up those of the run.
    """

    def __init__(
        self,
        in_flight: InFlight,
        prompts: Mapping[Phase, Iterator[Prompt]],
        think_s: float = 0.0,
        conversations: Conversations | None = None,
    ) -> None:
        self.calls: list[Call] = []
        """Calls started while ``keep`` is set."""
        self.keep = False
        self._in_flight = in_flight
        self._stocks = {phase: _Stock(phase, each) for phase, each in prompts.items()}
        self._conversations = conversations
        self._think_ns = int(think_s * NS_PER_S)
        self._taken = asyncio.Event()
        self._closed = asyncio.Event()
        self._wanted = 0
        self._present: set[int] = set()
        """Numbers of active users; those numbered ``wanted`` or above are about to
        stop."""
        self._users = asyncio.TaskGroup()
        self._phase: Callable[[], Phase] | None = None
        self._more: Callable[[], None] | None = None

    async def run(self, users: int, phase: Callable[[], Phase]) -> None:
        """Run until all users have stopped."""
        self._wanted, self._phase = users, phase
        await self._ready_for(users, phase())
        stocking = asyncio.create_task(self._restock())
        try:
            async with asyncio.TaskGroup() as self._users:
                self._fill(phase)
                self._more = partial(self._fill, phase)
        finally:
            self._more = None
            stocking.cancel()

    async def set_users(self, users: int) -> None:
        """Add users at once, or let some stop after their current request."""
        more = users - self._wanted
        self._wanted = users
        if more > 0 and self._phase is not None:
            await self._ready_for(more, self._phase())
        if self._more is not None:
            self._more()

    def _fill(self, phase: Callable[[], Phase]) -> None:
        """Start missing users; those about to stop may stay."""
        for number in range(self._wanted):
            if self._wants(number) and number not in self._present:
                self._present.add(number)
                self._users.create_task(self._user(number, phase))

    async def _ready_for(self, users: int, phase: Phase) -> None:
        """Connect and prepare requests, so that the first ones wait for neither."""
        await self._connected(users)
        stock = self._stocks[phase]
        for _ in range(users):
            if (exchange := stock.make(self._in_flight)) is None:
                return
            stock.ready.append(exchange)
            await asyncio.sleep(0)  # timestamps must not wait for this

    async def _connected(self, users: int) -> None:
        """Wait for connections for all users, for a limited time."""
        deadline_ns = monotonic_ns() + CONNECT_NS
        while not self._in_flight.ensure(users):
            await asyncio.sleep(POLL_S)
            if monotonic_ns() > deadline_ns:
                return

    def stop(self) -> None:
        """Stop users from sending or thinking; requests in flight continue."""
        self._closed.set()

    async def _user(self, number: int, phase: Callable[[], Phase]) -> None:
        due_ns = monotonic_ns()
        exchange: Exchange | None = None
        while self._wants(number):
            now = phase()
            exchange = exchange or self._take(now)
            if exchange is None:
                break  # no prompts are left, but other users may be in a conversation
            call = exchange.call
            call.intended_ns, call.phase = due_ns, now
            if self.keep:
                self.calls.append(call)
            await asyncio.wait([self._in_flight.send(exchange)])
            exchange = self._next_turn(call)
            if exchange is None and self._stocks[phase()].all_taken:
                break  # nothing is left to send
            due_ns = await self._think(call)
        self._present.discard(number)

    def _next_turn(self, call: Call) -> Exchange | None:
        conversations = self._conversations
        return conversations.next_turn(call) if conversations is not None else None

    def _wants(self, number: int) -> bool:
        return not self._closed.is_set() and number < self._wanted

    def _take(self, phase: Phase) -> Exchange | None:
        self._taken.set()
        stock = self._stocks[phase]
        return stock.ready.popleft() if stock.ready else stock.make(self._in_flight)

    async def _restock(self) -> None:
        """Keep one prepared request per user in stock, yielding after each.

        The next phase has its own stock, as it starts between two requests.
        """
        while not all(stock.all_made for stock in self._stocks.values()):
            low = next(filter(self._is_low, self._stocks.values()), None)
            if low is None:
                self._taken.clear()
                await self._taken.wait()
            elif (exchange := low.make(self._in_flight)) is not None:
                low.ready.append(exchange)
            await asyncio.sleep(0)

    def _is_low(self, stock: _Stock) -> bool:
        return not stock.all_made and len(stock.ready) < self._wanted

    async def _think(self, call: Call) -> int:
        """Wait for the think time after a response; returns the next due time."""
        if call.reply.short:
            call.judge()
        if call.failure not in {None, Failure.HUNG_UP}:
            await asyncio.sleep(RETRY_S)
            return monotonic_ns()
        due_ns = (call.end_ns or monotonic_ns()) + self._think_ns
        if (left_ns := due_ns - monotonic_ns()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_ns / NS_PER_S):
                    await self._closed.wait()
        return due_ns
