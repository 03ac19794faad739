"""How often something may happen: many times at once, and fewer in the long run."""

from collectors.contract.clock import NS_PER_S, monotonic_ns


class TokenBucket:
    """Whatever happens takes from it; it fills at a steady rate, up to a limit."""

    def __init__(self, *, most: float, per_s: float) -> None:
        """It is full at first."""
        self._most, self._per_s = most, per_s
        self._filled_ns = monotonic_ns()
        self.left: float = most
        """What could be taken when it was filled last."""

    def refill(self) -> float:
        """Add what the time since the last filling brings; what may be taken now."""
        now_ns = monotonic_ns()
        more = (now_ns - self._filled_ns) / NS_PER_S * self._per_s
        self.left, self._filled_ns = min(self.left + more, self._most), now_ns
        return self.left

    def take(self, count: float = 1) -> None:
        """So much has happened; where it was more than there is, that is made up."""
        self.left -= count
