"""Switches a probe off before it can harm the engine it watches."""

from collections.abc import Callable

LIMIT_NS, LIMIT_NS_PER_MEMBER = 250_000, 2_000
"""Ten times the budget: no noise of a busy machine gets there for long."""
PATIENCE = 10
"""Seconds in a row."""


class Fuse:
    """Once blown, every hook passes straight through."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.blown = False
        self.cost_ns = 0
        """Time spent in the hooks."""
        self._report = report
        self._checked = (0, 0, 0)
        self._costly = 0

    def blow(self, why: str) -> None:
        """Switch off, and say why, once."""
        if not self.blown:
            self.blown = True
            self._report(why)

    def check(self, steps: int, members: int) -> None:
        """Called once a second with what was done so far: is it worth its cost?"""
        before, self._checked = self._checked, (self.cost_ns, steps, members)
        cost_ns, steps, members = (
            now - then for now, then in zip(self._checked, before, strict=True)
        )
        allowed_ns = steps * LIMIT_NS + members * LIMIT_NS_PER_MEMBER
        self._costly = self._costly + 1 if steps and cost_ns > allowed_ns else 0
        if self._costly >= PATIENCE:
            self.blow(f"it cost {cost_ns / steps / 1000:.0f} µs per step")
