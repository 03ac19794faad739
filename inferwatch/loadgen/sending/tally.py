"""What became of the requests of a run, in one sentence."""

from collections import Counter

from collectors.clock import NS_PER_S
from collectors.readings import Phase
from inferwatch.loadgen.exchange.call import Call, Failure

SAID_CHARS = 120


class Tally:
    """Counts calls as they end; the warm-up's are counted apart."""

    def __init__(self) -> None:
        self.ended = 0
        self.warmup = 0
        self.late = 0
        self.failures: Counter[Failure] = Counter()
        self.first_said: dict[Failure, str] = {}
        """What the first failure of each kind said."""
        self.last_failure: str | None = None
        self._worst_lag_ns = 0

    def count(self, call: Call) -> None:
        """A call has ended."""
        if call.failure is not None:
            self.failures[call.failure] += 1
            self.first_said.setdefault(call.failure, (call.detail or "")[:SAID_CHARS])
            self.last_failure = f"{call.failure}: {call.detail}"
        if call.phase is Phase.WARMUP:
            self.warmup += 1
            return
        self.ended += 1
        self.late += call.late
        self._worst_lag_ns = max(self._worst_lag_ns, call.lag_ns)

    def sentence(self) -> str:
        """The counts, fit to show."""
        parts = [f"{self.ended} requests", f"{self.warmup} in warm-up"]
        if self.late:
            worst_s = self._worst_lag_ns / NS_PER_S
            parts.append(f"{self.late} sent late (worst {worst_s:.3f} s)")
        parts += [self._failed(kind) for kind in sorted(self.failures)]
        return ", ".join(parts)

    def _failed(self, kind: Failure) -> str:
        said = self.first_said[kind]
        return f"{self.failures[kind]} {kind}" + (f" ({said})" if said else "")
