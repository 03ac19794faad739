"""A token bucket: limits a rate while allowing bursts."""

from collectors.contract.clock import NS_PER_S, monotonic_ns


class TokenBucket:
    """Tokens are taken for each event and refilled at a steady rate up to a limit."""

    def __init__(self, *, most: float, per_s: float) -> None:
        """The bucket starts full."""
        self._most, self._per_s = most, per_s
        self._filled_ns = monotonic_ns()
        self.left: float = most
        """Tokens as of the last refill; negative after an overdraft."""

    def refill(self) -> float:
        """Add the tokens due since the last refill, and return how many there are."""
        now_ns = monotonic_ns()
        more = (now_ns - self._filled_ns) / NS_PER_S * self._per_s
        self.left, self._filled_ns = min(self.left + more, self._most), now_ns
        return self.left

    def take(self, count: float = 1) -> None:
        """Take tokens; an overdraft is made up by later refills."""
        self.left -= count
