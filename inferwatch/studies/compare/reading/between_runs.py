"""How far two single runs of one setting may differ on a CPU.

An engine that computes on the CPU shares cores, caches and memory with whatever else
runs on this host and, for a virtual host, beside it; each step waits for its slowest
thread. Runs of one setting on real vLLM differed by 1% to 7% on an idle host, by 15%
where other work took 4% of two cores, and by up to 20% where it took 37%. Single runs
must differ by more than this before a setting is blamed. Repeated runs have the
variation in their intervals.
"""

from collections.abc import Iterable

from inferwatch.studies.compare.reading.session_numbers import SessionNumbers
from inferwatch.studies.compare.statistics.significance import Interval

IDLE = 0.05
BESIDE_OTHERS = 0.20
"""Allowed difference on a host with other work, or half that work's share if more."""
OF_THE_SHARE = 0.5
LEAST = 0.03
"""Other work below this share of the cores leaves a host idle."""
SHARED = (
    "two runs of one setting may differ as much on a CPU: repeat runs by turns, A B A B"
)
BUSY = (
    "the hosts did other work, which may be why: measure when they are idle, or repeat "
    "runs by turns"
)


def allowance(runs: Iterable[SessionNumbers]) -> float:
    """How far single runs of one setting may differ by chance, as a share."""
    return max((_of(run) for run in runs), default=0.0)


def is_on_cpu(run: SessionNumbers) -> bool:
    return run.configuration.get("engine device") == "cpu"


def _of(run: SessionNumbers) -> float:
    if not is_on_cpu(run):
        return 0.0
    others = max((host.others or 0.0 for host in run.conditions.hosts), default=0.0)
    return max(BESIDE_OTHERS, OF_THE_SHARE * others) if others > LEAST else IDLE


def why(allowed: float) -> str:
    return BUSY if allowed > IDLE else SHARED


def may_be_why(span: Interval | None, allowed: float) -> bool:
    """Whether variation between runs could explain an interval of ratios."""
    if span is None or not allowed:
        return False
    low, high = span
    return low < 1 + allowed and high > 1 / (1 + allowed)
