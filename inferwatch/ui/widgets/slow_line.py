"""Causes of the slowest requests, as a line or as part of the verdict."""

from inferwatch.formatting import counted, format_duration
from inferwatch.metrics.causes.cause import SPOKEN, SlowRequests
from inferwatch.ui.kit.panel import LinePanel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    join_whole,
    spread,
    width_of,
)

OPENS = "screen.worst"
LEAST_SHARE = 0.005
"""Smaller shares would round to 0%."""


class SlowLine(LinePanel):
    """What made the slowest requests slow; blank while no cause is known.

    The row is always there, so nothing moves when text appears.
    """

    _slow: SlowRequests | None = None

    def __init__(self, key: str) -> None:
        super().__init__()
        self._opener = key

    def show(self, slow: SlowRequests | None) -> None:
        self._slow = slow
        self.redraw()

    def line(self, width: int) -> Line:
        slow = self._slow
        if slow is None or not slow.groups:
            return ()
        worst = format_duration(slow.worst_ttft_s).strip()
        opens = (
            TextRun(f"{self._opener} ", "accent", OPENS),
            TextRun(f"why {worst} ", "muted", OPENS),
        )
        first, *rest = (
            (TextRun(f"{group.share:.0%} ", "strong"), TextRun(SPOKEN[group.cause]))
            for group in slow.groups
            if group.share >= LEAST_SHARE
        )
        head = (TextRun(f" {_which(slow)}: ", "muted"), *first)
        causes = join_whole((head, *rest), width - width_of(opens) - 1, " · ")
        return spread(causes or head, opens, width)


def _which(slow: SlowRequests) -> str:
    if slow.is_p99:
        return "slowest 1% by cause"
    return f"slowest {slow.n:,} of {counted(slow.of, 'request')} by cause"


def slow_words(slow: SlowRequests | None, room: int, key: str) -> Line:
    """Return the main cause of the slowest requests, in the longest text that fits."""
    if slow is None or not slow.groups:
        return ()
    share, first = f"{slow.groups[0].share:.0%}", slow.groups[0].cause
    whose = "p99 TTFT" if slow.is_p99 else "slowest TTFT"
    opens = (TextRun(f"  {key} ", "accent", OPENS), TextRun("why", "muted", OPENS))
    sentence = TextRun(slow.sentence, "", OPENS)
    shorter = TextRun(f"{share} of {whose}: {SPOKEN[first]}", "", OPENS)
    shortest = TextRun(f"{share} of {whose}: {first.value}", "", OPENS)
    texts = ((sentence, *opens), (sentence,), (shorter,), (shortest,))
    return next((line for line in texts if width_of(line) <= room), ())
