"""Use of a host's cores by process, over the last seconds."""

from collections import deque
from collections.abc import Iterable

import msgspec

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import HostSample, ProcessUsage

SPAN_NS = 5 * NS_PER_S
"""Approximate span of CPU shares."""


class HostUse(msgspec.Struct, array_like=True, frozen=True):
    """Use of the host's cores, in cores."""

    cores: int | None = None
    busy: float | None = None
    by_role: dict[str, float] = {}
    """By role of the watched processes: api, core, worker, load, inferwatch."""


class RecentUse:
    """The samples of one host's last seconds."""

    def __init__(self, kept_ns: int) -> None:
        self.samples: deque[HostSample] = deque()
        self._kept_ns = kept_ns

    def add(self, sample: HostSample) -> None:
        samples = self.samples
        samples.append(sample)
        while len(samples) > 2 and samples[1].t_ns <= sample.t_ns - self._kept_ns:
            samples.popleft()

    def restore(self, samples: Iterable[HostSample]) -> None:
        self.samples = deque(samples)

    @property
    def last(self) -> HostSample | None:
        return self.samples[-1] if self.samples else None

    def use(self, span_ns: int) -> HostUse:
        """Return the CPU use of the last ``span_ns``, or of as much as is known."""
        if len(self.samples) < 2:
            return HostUse()
        first, last = self._before(span_ns), self.samples[-1]
        return HostUse(
            cores=last.cores,
            busy=busy_between(first, last),
            by_role=by_role(shares_between(first, last)),
        )

    def by_role(self, span_ns: int) -> dict[str, float]:
        return self.use(span_ns).by_role

    def by_process(self, span_ns: int) -> dict[int, tuple[float, float | None]]:
        """Return by pid the share of one core, and of time that it was throttled."""
        if len(self.samples) < 2:
            return {}
        first, last = self._before(span_ns), self.samples[-1]
        before = {each.pid: each for each in first.processes}
        return {
            each.pid: (share, _throttled(before[each.pid], each, first, last))
            for each, share in shares_between(first, last)
        }

    def _before(self, span_ns: int) -> HostSample:
        """Return the latest sample at least ``span_ns`` old, else the oldest."""
        begin_ns = self.samples[-1].t_ns - span_ns
        old = (each for each in reversed(self.samples) if each.t_ns <= begin_ns)
        return next(old, self.samples[0])


Shares = list[tuple[ProcessUsage, float]]


def busy_between(first: HostSample, last: HostSample) -> float | None:
    elapsed_s = (last.t_ns - first.t_ns) / NS_PER_S
    if first.busy_s is None or last.busy_s is None or elapsed_s <= 0:
        return None
    return (last.busy_s - first.busy_s) / elapsed_s


def shares_between(first: HostSample, last: HostSample) -> Shares:
    """Return processes that are in both samples, each with its share of one core."""
    before = {each.pid: each.cpu_s for each in first.processes}
    elapsed_s = (last.t_ns - first.t_ns) / NS_PER_S
    return [
        (each, (each.cpu_s - before[each.pid]) / elapsed_s)
        for each in last.processes
        if each.pid in before and elapsed_s > 0
    ]


def by_role(shares: Shares) -> dict[str, float]:
    shares_by_role: dict[str, float] = {}
    for process, share in shares:
        shares_by_role[process.role] = shares_by_role.get(process.role, 0.0) + share
    return shares_by_role


def _throttled(
    before: ProcessUsage, after: ProcessUsage, first: HostSample, last: HostSample
) -> float | None:
    if before.throttled_s is None or after.throttled_s is None:
        return None
    held_s = after.throttled_s - before.throttled_s
    elapsed_s = (last.t_ns - first.t_ns) / NS_PER_S
    return min(max(held_s / elapsed_s, 0.0), 1.0)
