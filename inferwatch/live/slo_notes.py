"""Notes when too few requests hold their objectives, and when enough do again."""

from collections.abc import Callable

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import format_nines
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.objectives.view import SloState
from inferwatch.metrics.requests.slo import FAILED

StateOf = Callable[[], SloState | None]


class SloNotes:
    """Turns changes of the SLO state into notes; cheap while nothing changes."""

    def __init__(self) -> None:
        self._since_ns: int | None = None

    def news(self, since_ns: int | None, now_ns: int, state: StateOf) -> str | None:
        """Return the text to note if the state changed; None otherwise."""
        before_ns, self._since_ns = self._since_ns, since_ns
        if (before_ns is None) == (since_ns is None):
            return None
        if since_ns is None:
            lasted_s = (now_ns - (before_ns or 0)) / NS_PER_S
            return f"SLO met again after {lasted_s:.0f} s"
        return _began(state())


def _began(state: SloState | None) -> str:
    if state is None or state.share is None:
        return "SLO missed"
    missed = sorted((state.missed or {}).items(), key=lambda each: -each[1])
    by = [f"{n:,} {'failed' if m == FAILED else label_of(m)}" for m, n in missed]
    text = f"SLO missed: {format_nines(state.share)} of {state.judged:,} requests good"
    return f"{text}, missed by {', '.join(by)}: {state.slo}"
