"""A plan before it is followed: the rate by time and the requests its seed draws."""

from itertools import chain, islice, takewhile

import numpy as np

from collectors.clock import NS_PER_S
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.loadgen.plan.rates import RateSeries, flat
from inferwatch.loadgen.schedule.arrivals import arrival_times, counted_times
from inferwatch.metrics.snapshot import (
    ClientTimeline,
    ClientView,
    Health,
    Snapshot,
    Verdict,
    Window,
)

ENDLESS_S = 60.0
"""What is shown of a plan without an end."""
MOST_DRAWN = 20_000
"""What comes after so many is not drawn, for then somebody waits."""
NOTHING = Snapshot(
    now_ns=0,
    window=Window.SESSION,
    covered_ns=0,
    verdict=Verdict(health=Health.IDLE, sentence=""),
)


def span_s(plan: LoadPlan) -> float:
    """How much of a plan is shown: all of it, where it has an end."""
    if plan.duration_s is not None:
        return plan.duration_s
    ends = [ENDLESS_S]
    if plan.rates is not None:
        ends.append(plan.rates.points[-1][0] * 1.2)
    if plan.rates is None and plan.requests and plan.rate_per_s:
        ends = [plan.requests / plan.rate_per_s]
    return max(ends)


def preview(plan: LoadPlan, columns: int) -> Snapshot:
    """As a run of it would look, told by the client, from the end of the warm-up on."""
    rates = _rates(plan)
    if rates is None or columns < 1:
        return NOTHING
    edges_s = np.linspace(0, span_s(plan), columns + 1)
    middles_s = (edges_s[:-1] + edges_s[1:]) / 2
    drawn_s = _drawn_s(plan, rates, edges_s[-1])
    until_s = np.inf if len(drawn_s) < MOST_DRAWN else drawn_s[-1]
    per_s = np.histogram(drawn_s, edges_s)[0] / (edges_s[1] - edges_s[0])
    timeline = ClientTimeline(
        asked_per_s=tuple(rates.rate_at(at_s) for at_s in middles_s.tolist()),
        sent_per_s=tuple(
            rate if end_s <= until_s else None
            for rate, end_s in zip(per_s.tolist(), edges_s[1:], strict=True)
        ),
    )
    return Snapshot(
        now_ns=0,
        window=Window.SESSION,
        covered_ns=0,
        verdict=NOTHING.verdict,
        client=ClientView(timeline=timeline),
    )


def unseen(plan: LoadPlan) -> str:
    """Why there is no sketch; empty when there is one."""
    if plan.arrivals is Arrivals.CLOSED:
        users = f"{plan.concurrency} user{'s' * (plan.concurrency > 1)}"
        return f"{users}: each asks again when answered, whatever the rate"
    if plan.arrivals is Arrivals.TRACE:
        return f"the times of a trace{f', {plan.trace_of}' if plan.trace_of else ''}"
    if plan.measures_rate:
        return f"{plan.rate_fraction:.0%} of what the warm-up measures"
    return ""


def _rates(plan: LoadPlan) -> RateSeries | None:
    if unseen(plan):
        return None
    if plan.rates is not None:
        return plan.rates
    return None if plan.rate_per_s is None else flat(plan.rate_per_s)


def _drawn_s(plan: LoadPlan, rates: RateSeries, end_s: float) -> list[float]:
    how, shape = plan.arrivals, plan.burstiness
    if plan.requests:
        count = min(plan.requests, MOST_DRAWN)
        times = counted_times(how, rates, count, seed=plan.seed, burstiness=shape)
        return [t_ns / NS_PER_S for t_ns in times.tolist()]
    blocks = arrival_times(how, rates, seed=plan.seed, burstiness=shape)
    drawn = chain.from_iterable(block.tolist() for block in blocks)
    within = takewhile(lambda t_ns: t_ns < end_s * NS_PER_S, drawn)
    return [t_ns / NS_PER_S for t_ns in islice(within, MOST_DRAWN)]
