"""Whether a server has nothing to do: who loads it would be in others' way."""

import asyncio
from collections.abc import Mapping
from math import inf

from collectors.contract.clock import NS_PER_S, monotonic_ns
from inferwatch.errors import UsageError
from inferwatch.formatting import counted
from inferwatch.loadgen.target_server import TargetServer, tokens_made, traffic

TRAFFIC_LOOKS = 6
TRAFFIC_LOOK_S = 0.2


async def refuse_traffic(target: TargetServer, flag: str) -> None:
    """Refuse to load a busy server; looks for a while, for it may pause.

    Raises:
        UsageError: it is busy, and so would be who uses it; that flag says it is fine.
    """
    before = inf
    for _ in range(TRAFFIC_LOOKS):
        counters = await target.counters()
        if said := _busy(counters, before):
            raise UsageError(
                f"{target.name} is serving other traffic: {said}. "
                f"Add {flag} to load it anyway"
            )
        before = tokens_made(counters)
        await asyncio.sleep(TRAFFIC_LOOK_S)


async def drained(target: TargetServer, within_s: float) -> bool:
    """Wait until nothing runs or waits there; False if that takes too long."""
    until_ns = monotonic_ns() + round(within_s * NS_PER_S)
    while any(traffic(await target.counters())):
        if monotonic_ns() > until_ns:
            return False
        await asyncio.sleep(TRAFFIC_LOOK_S)
    return True


def _busy(counters: Mapping[str, float], made_before: float) -> str:
    running, waiting = traffic(counters)
    if running or waiting:
        return f"{counted(round(running), 'request')} running, {waiting:,.0f} waiting"
    return (
        "it is producing tokens right now"
        if tokens_made(counters) > made_before
        else ""
    )
