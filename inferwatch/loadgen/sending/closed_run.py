"""A run of users who ask again once answered; how many may change on the way."""

import asyncio
from collections.abc import Iterator
from itertools import islice

from collectors.clock import NS_PER_S, monotonic_ns
from collectors.readings import LoadKind, Phase
from inferwatch.loadgen.plan.commands import Change
from inferwatch.loadgen.prompts.prompts import Prompt, Prompts
from inferwatch.loadgen.schedule.schedule import warmup_of
from inferwatch.loadgen.sending.closed_loop import ClosedLoop
from inferwatch.loadgen.sending.conversations import Conversations
from inferwatch.loadgen.sending.setting import Asked, Setting


class ClosedRun:
    """Sends what its users ask."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._plan = setting.plan
        self._users = setting.plan.concurrency
        self._loop: ClosedLoop | None = None

    async def follow(self, prompts: Prompts) -> None:
        """Until its time is up or its requests are all asked."""
        plan, flights = self._plan, self._setting.flights
        begin_ns = monotonic_ns() + warmup_of(plan)
        self._setting.announce_warm_up()
        self._tell()
        asked: dict[Phase, Iterator[Prompt]] = {}
        if warmup_of(plan):
            asked[Phase.WARMUP] = prompts.all(Phase.WARMUP)
        asked[Phase.STEADY] = islice(prompts.all(Phase.STEADY), plan.requests)
        conversations = Conversations(plan, flights)
        self._loop = loop = ClosedLoop(flights, asked, plan.think_s, conversations)
        users = flights.spawn(loop.run(self._users, lambda: _phase_at(begin_ns)))
        try:
            await _or_until(users, begin_ns, plan.duration_s)
        finally:
            loop.stop()

    def change(self, change: Change) -> None:
        """Go on with another number of users."""
        if change.concurrency is None:
            return
        was, self._users = self._users, change.concurrency
        self._tell(f", was {was}", changed=True)
        if self._loop is not None:
            self._setting.beside(self._loop.set_users(self._users))

    def _tell(self, also: str = "", *, changed: bool = False) -> None:
        text = f"closed loop, {self._users} users{also}"
        asked = Asked(users=self._users, changed=changed)
        self._setting.report(LoadKind.RATE, text, asked=asked)


async def _or_until(
    users: asyncio.Task[None], begin_ns: int, duration_s: float | None
) -> None:
    """Wait for the users to end, or for the end of their time."""
    if duration_s is None:
        await asyncio.wait([users])
        return
    left_s = duration_s + (begin_ns - monotonic_ns()) / NS_PER_S
    await asyncio.wait([users], timeout=left_s)


def _phase_at(begin_ns: int) -> Phase:
    return Phase.WARMUP if monotonic_ns() < begin_ns else Phase.STEADY
