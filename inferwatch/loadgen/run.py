"""A run: warm up, follow the schedule, drain; each turn of it reported."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import islice

from collectors.clock import NS_PER_S, monotonic_ns
from collectors.readings import LoadEvent, LoadKind, Phase
from inferwatch.loadgen.closed_loop import ClosedLoop
from inferwatch.loadgen.flights import Flights
from inferwatch.loadgen.open_loop import OpenLoop
from inferwatch.loadgen.outbox import Outbox
from inferwatch.loadgen.plan import Arrivals, LoadPlan
from inferwatch.loadgen.prompts import Prompts
from inferwatch.loadgen.rates import RateSeries, flat
from inferwatch.loadgen.sampler import Sampler
from inferwatch.loadgen.schedule import schedule, warmup_of
from inferwatch.loadgen.transport.seam import Transport, UnreachableError
from inferwatch.loadgen.warmup import NoOutputError, WarmUp
from inferwatch.loadgen.words import Words

RATE_POLL_S = 0.2
NOTABLE = 0.02
"""A rate by time is reported when it has changed by this share."""


class Run:
    """One run of a plan. Cancel it to stop: what is in flight is aborted."""

    def __init__(self, plan: LoadPlan, transport: Transport, outbox: Outbox) -> None:
        self._plan = plan
        self._transport = transport
        self._outbox = outbox
        self._sampler = Sampler(transport.kind, transport.receipts, outbox)
        self._flights = Flights(plan.run_id, transport, outbox, self._sampler)
        self._helpers: list[asyncio.Task[None]] = []
        self._why = ""

    async def run(self) -> None:
        """Follow the plan to its end.

        Raises:
            NoOutputError: the warm-up brought nothing to measure.
            UnreachableError: the server has no address.
        """
        try:
            prompts = await self._set_out()
            await self._follow(prompts)
            self._report(LoadKind.DRAINING, f"{len(self._flights)} in flight")
            await self._flights.land(self._drain_s)
        except (NoOutputError, UnreachableError) as error:
            self._why = f"; {error}"
            raise
        finally:
            for helper in self._helpers:
                helper.cancel()
            await self._flights.abort()
            self._sampler.end()
            self._report(LoadKind.STOPPED, self._flights.tally.sentence() + self._why)

    @property
    def _drain_s(self) -> float:
        plan = self._plan
        return plan.request_timeout_s + 1 if plan.drain_s is None else plan.drain_s

    async def _set_out(self) -> Prompts:
        """All that can be done before the first request."""
        words = await Words.learn(self._plan) if self._plan.text_prompts else None
        plan = self._plan
        said = f"{plan.model}, seed {plan.seed}, {self._transport.kind}, {_form(words)}"
        self._report(LoadKind.STARTED, said)
        await self._transport.open()
        self._sampler.begin()
        self._beside(self._sampler.run())
        return Prompts(plan, words)

    async def _follow(self, prompts: Prompts) -> None:
        if self._plan.arrivals is Arrivals.CLOSED:
            await self._closed_loop(prompts)
            return
        rates = await self._rates(prompts)
        start_ns = monotonic_ns()
        self._announce_warm_up()
        self._beside(self._tell_rate(rates, start_ns + warmup_of(self._plan)))
        loop = OpenLoop(self._flights, self._plan.max_in_flight, self._on_burst)
        await loop.follow(schedule(self._plan, prompts, rates), start_ns)

    async def _rates(self, prompts: Prompts) -> RateSeries:
        """As asked, else a fraction of what the warm-up measures."""
        plan = self._plan
        if plan.rates is not None:
            return plan.rates
        if not plan.measures_rate:
            return flat(plan.rate_per_s or _mean_rate(plan))
        tokens_per_s = await WarmUp(plan, self._flights, prompts).measure()
        self._sampler.begin()
        self._report(
            LoadKind.WARMUP_ENDED,
            f"measured {tokens_per_s:.0f} output tokens/s",
            rate_per_s=tokens_per_s / plan.output_tokens.mean,
        )
        return flat(plan.request_rate(tokens_per_s))

    async def _closed_loop(self, prompts: Prompts) -> None:
        """Until its time is up or its requests are all asked."""
        plan = self._plan
        begin_ns = monotonic_ns() + warmup_of(plan)
        self._announce_warm_up()
        self._report(LoadKind.RATE, f"closed loop, {plan.concurrency} users")
        asked = islice(prompts.all(Phase.STEADY), plan.requests)
        loop = ClosedLoop(self._flights, asked, plan.think_s)
        users = self._flights.spawn(
            loop.run(plan.concurrency, lambda: _phase_at(begin_ns))
        )
        try:
            await _or_until(users, begin_ns, plan.duration_s)
        finally:
            loop.stop()

    def _announce_warm_up(self) -> None:
        if warmup_ns := warmup_of(self._plan):
            self._beside(self._after(warmup_ns / NS_PER_S, self._warmup_ended))

    def _warmup_ended(self) -> None:
        self._sampler.begin()
        self._report(LoadKind.WARMUP_ENDED, f"{self._plan.warmup_s:g} s")

    @staticmethod
    async def _after(seconds: float, act: Callable[[], None]) -> None:
        await asyncio.sleep(seconds)
        act()

    async def _tell_rate(self, rates: RateSeries, begin_ns: int) -> None:
        """Report the asked rate, and again when it has changed."""
        told: float | None = None
        while True:
            at_s = max(monotonic_ns() - begin_ns, 0) / NS_PER_S
            rate = rates.rate_at(at_s)
            if told is None or abs(rate - told) > NOTABLE * max(told, rate):
                told = rate
                text = f"{self._plan.arrivals} {rate:.2f} requests/s"
                self._report(LoadKind.RATE, text, rate_per_s=rate)
            if self._plan.rates is None:
                return
            await asyncio.sleep(RATE_POLL_S)

    def _beside(self, work: Coroutine[None, None, None]) -> None:
        self._helpers.append(asyncio.create_task(work))

    def _on_burst(self, requests: int) -> None:
        tokens = self._plan.burst_tokens
        self._report(LoadKind.BURST, f"{requests} requests for {tokens} tokens of KV")

    def _report(
        self, kind: LoadKind, text: str, rate_per_s: float | None = None
    ) -> None:
        self._outbox.put(
            LoadEvent(t_ns=monotonic_ns(), kind=kind, rate_per_s=rate_per_s, text=text)
        )


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


def _mean_rate(plan: LoadPlan) -> float:
    """Of a trace: what is asked on average."""
    last_s = plan.trace[-1].offset_s / plan.speed
    return len(plan.trace) / last_s if last_s else float(len(plan.trace))


def _form(words: Words | None) -> str:
    if words is None:
        return "prompts as token ids"
    if words.exact:
        return "prompts counted by /tokenize"
    return "length of prompts estimated"
