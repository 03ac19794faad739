"""A run of a plan: warm up, send by schedule or by users, drain, and report."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from itertools import islice

from collectors.contract.clock import NS_PER_S, monotonic_ns
from collectors.contract.readings import LoadEvent, LoadKind, Phase
from inferwatch.loadgen.exchange.call import UnreachableError
from inferwatch.loadgen.exchange.transport import Transport
from inferwatch.loadgen.plan.commands import Change
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.loadgen.plan.rates import RateSeries, flat
from inferwatch.loadgen.prompts.dataset import DatasetError
from inferwatch.loadgen.prompts.prompts import Prompt, Prompts, prompts_of
from inferwatch.loadgen.schedule.schedule import Schedule, warmup_of
from inferwatch.loadgen.sending.closed_loop import ClosedLoop
from inferwatch.loadgen.sending.conversations import Conversations
from inferwatch.loadgen.sending.in_flight import InFlight
from inferwatch.loadgen.sending.open_loop import OpenLoop
from inferwatch.loadgen.sending.pipes import Outbox
from inferwatch.loadgen.sending.sampler import Sampler
from inferwatch.loadgen.sending.warmup import CapacityMeasurement, NoOutputError

RATE_POLL_S = 0.2
NOTABLE = 0.02
"""Relative change of a rate over time that is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """The rate or number of users that a run asks for from now on."""

    rate_per_s: float | None = None
    users: int | None = None
    changed: bool = False
    """Changed by the user during the run."""


NOTHING = OfferedLoad()


class RunContext:
    """What the parts of a run share: its plan, calls in flight, samples, reports."""

    def __init__(self, plan: LoadPlan, transport: Transport, outbox: Outbox) -> None:
        self.plan = plan
        self.transport = transport
        self.sampler = Sampler(transport.kind, transport.receive_stamps, outbox)
        self.in_flight = InFlight(plan.run_id, transport, outbox, self.sampler)
        self._outbox = outbox
        self._helpers: list[asyncio.Task[None]] = []

    def report(
        self,
        kind: LoadKind,
        text: str,
        *,
        load: OfferedLoad = NOTHING,
        at_ns: int | None = None,
    ) -> None:
        """Report a load event, now unless another time is given."""
        self._outbox.put(
            LoadEvent(
                t_ns=monotonic_ns() if at_ns is None else at_ns,
                kind=kind,
                rate_per_s=load.rate_per_s,
                users=load.users,
                changed=load.changed,
                text=text,
            )
        )

    def beside(self, work: Coroutine[None, None, None]) -> None:
        """Run work in the background until the run ends."""
        self._helpers.append(asyncio.create_task(work))

    def announce_warm_up(self) -> None:
        """Report the end of the warm-up when it is reached, if there is one."""
        if warmup_ns := warmup_of(self.plan):
            self.beside(self._end_warm_up(warmup_ns / NS_PER_S))

    async def end(self) -> None:
        """Stop background work, abort all calls, and report the final sample."""
        for helper in self._helpers:
            helper.cancel()
        await self.in_flight.abort()
        self.sampler.end()

    async def _end_warm_up(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.sampler.begin()
        self.report(LoadKind.WARMUP_ENDED, f"{self.plan.warmup_s:g} s")


class OpenRun:
    """A run at a given or measured rate, which may be changed."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._plan = context.plan
        self._latest_rate: float | None = None
        """The rate reported last, or set by a change before the start."""
        self._schedule: Schedule | None = None
        self._loop: OpenLoop | None = None
        self._start_ns = 0

    async def follow(self, prompts: Prompts) -> None:
        """Send the whole schedule.

        Raises:
            NoOutputError: the warm-up yielded no tokens to measure.
        """
        rates = await self._rates(prompts)
        if self._latest_rate is not None:
            rates = flat(self._latest_rate)
        plan, in_flight = self._plan, self._context.in_flight
        self._schedule = Schedule(plan, prompts, rates)
        self._loop = OpenLoop(in_flight, self._schedule, plan, self._on_burst)
        self._start_ns = monotonic_ns()
        self._context.announce_warm_up()
        self._context.beside(self._tell_rate(self._schedule))
        await self._loop.follow(self._start_ns)

    def change(self, change: Change) -> None:
        now_ns, rate = monotonic_ns(), change.rate_per_s
        if change.burst is not None and self._loop is not None:
            self._loop.burst(now_ns, change.burst)
        if rate is None:
            return
        was = self._was(now_ns)
        if self._loop is not None:
            self._loop.change(now_ns, rate)
        self._tell(rate, f", was {was}{self._when_text(now_ns)}", changed_ns=now_ns)

    def _was(self, now_ns: int) -> str:
        if self._schedule is not None:
            return f"{self._schedule.rate_at(now_ns - self._start_ns):.2f}"
        if self._latest_rate is not None:
            return f"{self._latest_rate:.2f}"
        if self._plan.measures_rate:
            return f"{self._plan.rate_fraction:g} of the rate the warm-up measures"
        return f"{_given_rates(self._plan).rate_at(0):.2f}"

    def _when_text(self, now_ns: int) -> str:
        """Text that says when a change takes effect: not before the warm-up's end."""
        begun = self._loop is not None
        if begun and now_ns - self._start_ns >= warmup_of(self._plan):
            return ""
        return ", from the end of the warm-up" if self._plan.warmup_s else ""

    async def _rates(self, prompts: Prompts) -> RateSeries:
        """The plan's rates, else a fraction of the rate measured by the warm-up."""
        plan, context = self._plan, self._context
        if not plan.measures_rate:
            return _given_rates(plan)
        tokens_per_s = await CapacityMeasurement(
            plan, context.in_flight, prompts
        ).measure()
        context.sampler.begin()
        context.report(
            LoadKind.WARMUP_ENDED,
            f"measured {tokens_per_s:.0f} output tokens/s",
            load=OfferedLoad(rate_per_s=tokens_per_s / plan.expected_tokens),
        )
        return flat(plan.request_rate(tokens_per_s))

    async def _tell_rate(self, schedule: Schedule) -> None:
        """Report the intended rate, and again whenever it has changed notably."""
        self._tell(schedule.rate_at(0))
        while self._plan.rates is not None:
            await asyncio.sleep(RATE_POLL_S)
            rate = schedule.rate_at(monotonic_ns() - self._start_ns)
            if self._notable(rate):
                self._tell(rate)

    def _notable(self, rate: float) -> bool:
        latest = self._latest_rate or 0.0
        return abs(rate - latest) > NOTABLE * max(latest, rate)

    def _tell(self, rate: float, also: str = "", changed_ns: int | None = None) -> None:
        self._latest_rate = rate
        text = f"{self._plan.arrivals} {rate:.2f} requests/s{also}"
        load = OfferedLoad(rate_per_s=rate, changed=changed_ns is not None)
        self._context.report(LoadKind.RATE, text, load=load, at_ns=changed_ns)

    def _on_burst(self, requests: int) -> None:
        tokens = self._plan.burst_tokens
        text = f"{requests} requests"
        text += f" for {tokens} tokens of KV" if tokens else ""
        self._context.report(LoadKind.BURST, text)


def _given_rates(plan: LoadPlan) -> RateSeries:
    """The rates of a plan that gives them, so that they need not be measured."""
    return plan.rates or flat(plan.rate_per_s or _mean_rate(plan))


def _mean_rate(plan: LoadPlan) -> float:
    last_s = plan.trace[-1].offset_s / plan.speed
    return (len(plan.trace) - 1) / last_s if last_s else float(len(plan.trace))


class ClosedRun:
    """A run of users who send again once answered; their number may be changed."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._plan = context.plan
        self._users = context.plan.concurrency
        self._loop: ClosedLoop | None = None

    async def follow(self, prompts: Prompts) -> None:
        """Send until time is up or all requests were sent."""
        plan, in_flight = self._plan, self._context.in_flight
        begin_ns = monotonic_ns() + warmup_of(plan)
        self._context.announce_warm_up()
        self._tell()
        phases: dict[Phase, Iterator[Prompt]] = {}
        if warmup_of(plan):
            phases[Phase.WARMUP] = prompts.all(Phase.WARMUP)
        phases[Phase.STEADY] = islice(prompts.all(Phase.STEADY), plan.requests)
        conversations = Conversations(plan, in_flight)
        self._loop = loop = ClosedLoop(in_flight, phases, plan.think_s, conversations)
        users = in_flight.spawn(loop.run(self._users, lambda: _phase_at(begin_ns)))
        try:
            await _wait_for_users(users, begin_ns, plan.duration_s)
        finally:
            loop.stop()

    def change(self, change: Change) -> None:
        if change.concurrency is None:
            return
        was, self._users = self._users, change.concurrency
        self._tell(f", was {was}", changed=True)
        if self._loop is not None:
            self._context.beside(self._loop.set_users(self._users))

    def _tell(self, also: str = "", *, changed: bool = False) -> None:
        text = f"closed loop, {self._users} users{also}"
        load = OfferedLoad(users=self._users, changed=changed)
        self._context.report(LoadKind.RATE, text, load=load)


async def _wait_for_users(
    users: asyncio.Task[None], begin_ns: int, duration_s: float | None
) -> None:
    """Wait until all users have ended or the duration is over."""
    if duration_s is None:
        await asyncio.wait([users])
        return
    left_s = duration_s + (begin_ns - monotonic_ns()) / NS_PER_S
    await asyncio.wait([users], timeout=left_s)


def _phase_at(begin_ns: int) -> Phase:
    return Phase.WARMUP if monotonic_ns() < begin_ns else Phase.STEADY


class LoadRunner:
    """Follows one plan to its end; cancelling :meth:`run` aborts all calls."""

    def __init__(self, plan: LoadPlan, transport: Transport, outbox: Outbox) -> None:
        self._plan = plan
        self._context = RunContext(plan, transport, outbox)
        closed = plan.arrivals is Arrivals.CLOSED
        self._sending: ClosedRun | OpenRun | None = (
            ClosedRun(self._context) if closed else OpenRun(self._context)
        )
        self._why = ""

    async def run(self) -> None:
        """Follow the plan to its end.

        Raises:
            DatasetError: its dataset cannot be read.
            NoOutputError: the warm-up yielded no tokens to measure.
            UnreachableError: the server has no address.
        """
        in_flight, report = self._context.in_flight, self._context.report
        try:
            await self._send()
            report(LoadKind.DRAINING, f"{len(in_flight)} in flight")
            await in_flight.drain(self._drain_s)
            in_flight.raise_fault()
        except (DatasetError, NoOutputError, UnreachableError) as error:
            self._why = f"; {error}"
            raise
        finally:
            self._sending = None
            await self._context.end()
            report(LoadKind.STOPPED, in_flight.counts.sentence() + self._why)

    def change(self, change: Change) -> str | None:
        """Change the load from now on; returns the reason if that is impossible."""
        if why := change.refusal(self._plan):
            return why
        if self._sending is None:
            return "nothing more is sent"
        self._sending.change(change)
        return None

    async def _send(self) -> None:
        if self._sending is not None:
            await self._sending.follow(await self._prepare())
        self._sending = None

    @property
    def _drain_s(self) -> float:
        plan = self._plan
        return plan.request_timeout_s + 1 if plan.drain_s is None else plan.drain_s

    async def _prepare(self) -> Prompts:
        """Prepare prompts and transport, and start sampling; no request is sent."""
        plan, context = self._plan, self._context
        prompts, form = await prompts_of(plan)
        kind = context.transport.kind
        summary = f"{plan.model}, seed {plan.seed}, {kind}, {form}"
        context.report(LoadKind.STARTED, summary)
        await context.transport.open()
        context.sampler.begin()
        context.beside(context.sampler.run())
        return prompts
