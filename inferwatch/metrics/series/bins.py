"""One column of the timeline while it fills."""

import msgspec

from collectors.readings import BoundBy, Step

Spread = list[int]
"""n, sum and maximum of a latency in ns."""

KvBlocks = tuple[int | None, int | None, int | None]
"""Used, idle-cached and free."""


class Bin(msgspec.Struct, array_like=True):
    """What happened in a stretch of time; bins add up, in any order."""

    steps: int = 0
    duration_ns: int = 0
    prefill_requests: int = 0
    decode_requests: int = 0
    batch_max: int = 0
    waiting_max: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    slowest: Step | None = None
    bound: dict[BoundBy, int] = {}
    kv: KvBlocks = (None, None, None)
    kv_ns: int | None = None
    latencies: dict[str, Spread] = {}

    def add_step(self, step: Step, output_tokens: int, kv: KvBlocks) -> None:
        """Count a step that ended in this bin."""
        self.steps += 1
        self.duration_ns += step.duration_ns
        self.prefill_requests += step.prefill_requests
        self.decode_requests += step.decode_requests
        batch = step.prefill_requests + step.decode_requests
        self.batch_max = max(self.batch_max, batch)
        self.waiting_max = max(self.waiting_max, step.waiting)
        self.prefill_tokens += step.prefill_tokens
        self.output_tokens += output_tokens
        self.preemptions += len(step.preempted)
        self.bound[step.bound_by] = self.bound.get(step.bound_by, 0) + 1
        self._keep_slowest(step)
        self._keep_latest(kv, step.end_ns)

    def add_latency(self, metric: str, value_ns: int, weight: int) -> None:
        """Count equal samples of a latency."""
        spread = self.latencies.get(metric)
        if spread is None:
            self.latencies[metric] = [weight, value_ns * weight, value_ns]
            return
        spread[0] += weight
        spread[1] += value_ns * weight
        spread[2] = max(spread[2], value_ns)

    def merge(self, other: "Bin") -> None:
        """Add what happened in another part of this bin's time."""
        self.steps += other.steps
        self.duration_ns += other.duration_ns
        self.prefill_requests += other.prefill_requests
        self.decode_requests += other.decode_requests
        self.batch_max = max(self.batch_max, other.batch_max)
        self.waiting_max = max(self.waiting_max, other.waiting_max)
        self.prefill_tokens += other.prefill_tokens
        self.output_tokens += other.output_tokens
        self.preemptions += other.preemptions
        if other.slowest is not None:
            self._keep_slowest(other.slowest)
        if other.kv_ns is not None:
            self._keep_latest(other.kv, other.kv_ns)
        for cause, count in other.bound.items():
            self.bound[cause] = self.bound.get(cause, 0) + count
        for metric, (n, total, maximum) in other.latencies.items():
            mine = self.latencies.setdefault(metric, [0, 0, maximum])
            mine[:] = [mine[0] + n, mine[1] + total, max(mine[2], maximum)]

    @property
    def slowest_ns(self) -> int:
        """Duration of the longest step."""
        return self.slowest.duration_ns if self.slowest is not None else 0

    def forget_members(self) -> None:
        """Keep the slowest step without its members, which are most of it."""
        if self.slowest is not None and self.slowest.members:
            self.slowest = msgspec.structs.replace(
                self.slowest, members=[], scheduled=[], produced=[]
            )

    def _keep_slowest(self, step: Step) -> None:
        if self.slowest is None or step.duration_ns > self.slowest.duration_ns:
            self.slowest = step

    def _keep_latest(self, kv: KvBlocks, t_ns: int) -> None:
        if self.kv_ns is None or t_ns >= self.kv_ns:
            self.kv, self.kv_ns = kv, t_ns
