"""How far two runs of one setting may differ, where one run a side cannot know.

An engine that computes on the CPU shares cores, caches and memory with whatever else
runs, on this host and, where it is a virtual one, beside it; each step waits for its
slowest thread. Runs of one setting on real vLLM differed by 1% to 7% on an idle host,
by 15% where others took 4% of two cores, and by up to 20% where they took 37%. So much
two single runs may differ before anything is said of the setting. Repeated runs have
it in their intervals.
"""

from collections.abc import Iterable

from inferwatch.studies.compare.reading.session_numbers import SessionNumbers
from inferwatch.studies.compare.statistics.significance import Interval

IDLE = 0.05
BESIDE_OTHERS = 0.20
"""On a host that did other work; or half of what that took, where it is more."""
OF_THE_SHARE = 0.5
LEAST = 0.03
"""Others that take less of its cores leave a host idle."""
SHARED = (
    "two runs of one setting may differ as much on a CPU: repeat runs by turns, A B A B"
)
BUSY = (
    "the hosts did other work, which may be why: measure when they are idle, or repeat "
    "runs by turns"
)


def allowance(runs: Iterable[SessionNumbers]) -> float:
    """How far single runs may differ by themselves, as a share."""
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
    """The interval of a ratio does not lie beyond what is allowed for."""
    if span is None or not allowed:
        return False
    low, high = span
    return low < 1 + allowed and high > 1 / (1 + allowed)
