"""What a host did besides may be why two single runs on it differ.

An engine that computes on the CPU shares cores, caches and memory with whatever else
runs. While other work took 37% of two cores, runs of one setting on real vLLM differed
by 7% (standard deviation of TPOT, six runs by turns), four times what one run's
requests tell of it: two of them by up to 20%. That is half of the share, and so much
two single runs may differ before anything is said of the setting. Repeated runs have
it in their intervals.
"""

from collections.abc import Iterable

from inferwatch.compare.session_numbers import SessionNumbers
from inferwatch.compare.significance import Interval

OF_THE_SHARE = 0.5
LEAST = 0.10
"""A host that does less besides counts as left to the engine."""
WHY = (
    "the hosts did other work, which may be why: measure when they are idle, or repeat "
    "runs by turns"
)


def allowance(runs: Iterable[SessionNumbers]) -> float:
    """How far single runs may differ by what else their hosts did, as a share."""
    return max((_of(run) for run in runs), default=0.0)


def _of(run: SessionNumbers) -> float:
    if run.configuration.get("engine device") != "cpu":
        return 0.0
    others = max((host.others or 0.0 for host in run.conditions.hosts), default=0.0)
    return OF_THE_SHARE * others if others > LEAST else 0.0


def may_be_why(span: Interval | None, allowed: float) -> bool:
    """The interval of a ratio does not lie beyond what is allowed for."""
    if span is None or not allowed:
        return False
    low, high = span
    return low < 1 + allowed and high > 1 / (1 + allowed)
