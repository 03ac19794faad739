"""A run at a rate: found or given, told, and changed on the way."""

import asyncio

from collectors.clock import monotonic_ns
from collectors.readings import LoadKind
from inferwatch.loadgen.plan.commands import Change
from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.loadgen.plan.rates import RateSeries, flat
from inferwatch.loadgen.prompts.prompts import Prompts
from inferwatch.loadgen.schedule.schedule import Schedule, warmup_of
from inferwatch.loadgen.sending.open_loop import OpenLoop
from inferwatch.loadgen.sending.setting import Asked, Setting
from inferwatch.loadgen.sending.warmup import WarmUp

RATE_POLL_S = 0.2
NOTABLE = 0.02
"""A rate by time is reported when it has changed by this share."""


class OpenRun:
    """Sends by a schedule."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._plan = setting.plan
        self._asked: float | None = None
        """The rate that was told last, or that a change has asked before the start."""
        self._schedule: Schedule | None = None
        self._loop: OpenLoop | None = None
        self._start_ns = 0

    async def follow(self, prompts: Prompts) -> None:
        """Send all of the schedule.

        Raises:
            NoOutputError: the warm-up brought nothing to measure.
        """
        rates = await self._rates(prompts)
        if self._asked is not None:
            rates = flat(self._asked)
        plan, flights = self._plan, self._setting.flights
        self._schedule = Schedule(plan, prompts, rates)
        self._loop = OpenLoop(flights, self._schedule, plan, self._on_burst)
        self._start_ns = monotonic_ns()
        self._setting.announce_warm_up()
        self._setting.beside(self._tell_rate(self._schedule))
        await self._loop.follow(self._start_ns)

    def change(self, change: Change) -> None:
        """Go on at another rate, or begin at it."""
        now_ns, rate = monotonic_ns(), change.rate_per_s
        if rate is None:
            return
        was = self._was(now_ns)
        if self._loop is not None:
            self._loop.change(now_ns, rate)
        self._tell(rate, f", was {was}{self._when(now_ns)}", changed_ns=now_ns)

    def _was(self, now_ns: int) -> str:
        if self._schedule is not None:
            return f"{self._schedule.rate_at(now_ns - self._start_ns):.2f}"
        if self._asked is not None:
            return f"{self._asked:.2f}"
        if self._plan.measures_rate:
            return f"{self._plan.rate_fraction:g} of what the warm-up measures"
        return f"{_given(self._plan).rate_at(0):.2f}"

    def _when(self, now_ns: int) -> str:
        """A warm-up is not changed, what comes after it is."""
        begun = self._loop is not None
        if begun and now_ns - self._start_ns >= warmup_of(self._plan):
            return ""
        return ", from the end of the warm-up" if self._plan.warmup_s else ""

    async def _rates(self, prompts: Prompts) -> RateSeries:
        """As asked, else a fraction of what the warm-up measures."""
        plan, setting = self._plan, self._setting
        if not plan.measures_rate:
            return _given(plan)
        tokens_per_s = await WarmUp(plan, setting.flights, prompts).measure()
        setting.sampler.begin()
        setting.report(
            LoadKind.WARMUP_ENDED,
            f"measured {tokens_per_s:.0f} output tokens/s",
            asked=Asked(rate_per_s=tokens_per_s / plan.expected_tokens),
        )
        return flat(plan.request_rate(tokens_per_s))

    async def _tell_rate(self, schedule: Schedule) -> None:
        """Report the asked rate, and again when it has changed by itself."""
        self._tell(schedule.rate_at(0))
        while self._plan.rates is not None:
            await asyncio.sleep(RATE_POLL_S)
            rate = schedule.rate_at(monotonic_ns() - self._start_ns)
            if self._notable(rate):
                self._tell(rate)

    def _notable(self, rate: float) -> bool:
        asked = self._asked or 0.0
        return abs(rate - asked) > NOTABLE * max(asked, rate)

    def _tell(self, rate: float, also: str = "", changed_ns: int | None = None) -> None:
        self._asked = rate
        text = f"{self._plan.arrivals} {rate:.2f} requests/s{also}"
        asked = Asked(rate_per_s=rate, changed=changed_ns is not None)
        self._setting.report(LoadKind.RATE, text, asked=asked, at_ns=changed_ns)

    def _on_burst(self, requests: int) -> None:
        tokens = self._plan.burst_tokens
        text = f"{requests} requests for {tokens} tokens of KV"
        self._setting.report(LoadKind.BURST, text)


def _given(plan: LoadPlan) -> RateSeries:
    """Of a plan that does not measure it."""
    return plan.rates or flat(plan.rate_per_s or _mean_rate(plan))


def _mean_rate(plan: LoadPlan) -> float:
    """Of a trace: what is asked on average."""
    last_s = plan.trace[-1].offset_s / plan.speed
    return (len(plan.trace) - 1) / last_s if last_s else float(len(plan.trace))
