"""What the parts of a run work with: its plan, its calls in flight, what it reports."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

from collectors.clock import NS_PER_S, monotonic_ns
from collectors.readings import LoadEvent, LoadKind
from inferwatch.loadgen.exchange.transport import Transport
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.schedule.schedule import warmup_of
from inferwatch.loadgen.sending.flights import Flights
from inferwatch.loadgen.sending.outbox import Outbox
from inferwatch.loadgen.sending.sampler import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What holds from a turn of the run on."""

    rate_per_s: float | None = None
    users: int | None = None
    changed: bool = False
    """By somebody, on the way."""


NOTHING = Asked()


class Setting:
    """Of one run."""

    def __init__(self, plan: LoadPlan, transport: Transport, outbox: Outbox) -> None:
        self.plan = plan
        self.transport = transport
        self.sampler = Sampler(transport.kind, transport.receive_stamps, outbox)
        self.flights = Flights(plan.run_id, transport, outbox, self.sampler)
        self._outbox = outbox
        self._helpers: list[asyncio.Task[None]] = []

    def report(
        self,
        kind: LoadKind,
        text: str,
        *,
        asked: Asked = NOTHING,
        at_ns: int | None = None,
    ) -> None:
        """A turn of the run, at this moment unless said."""
        self._outbox.put(
            LoadEvent(
                t_ns=monotonic_ns() if at_ns is None else at_ns,
                kind=kind,
                rate_per_s=asked.rate_per_s,
                users=asked.users,
                changed=asked.changed,
                text=text,
            )
        )

    def beside(self, work: Coroutine[None, None, None]) -> None:
        """Let work go on until the run ends."""
        self._helpers.append(asyncio.create_task(work))

    def announce_warm_up(self) -> None:
        """Tell its end, if the schedule begins with one."""
        if warmup_ns := warmup_of(self.plan):
            self.beside(self._end_warm_up(warmup_ns / NS_PER_S))

    async def end(self) -> None:
        """Nothing goes on, beside or in flight, and the last sample is told."""
        for helper in self._helpers:
            helper.cancel()
        await self.flights.abort()
        self.sampler.end()

    async def _end_warm_up(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.sampler.begin()
        self.report(LoadKind.WARMUP_ENDED, f"{self.plan.warmup_s:g} s")
