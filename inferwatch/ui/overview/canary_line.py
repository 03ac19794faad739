"""What our own tiny requests meet, in one line; there is none before there was one."""

from collections.abc import Sequence

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    UNKNOWN,
    format_count,
    format_durations,
)
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.load.canary import Canary
from inferwatch.metrics.series.window import Quantiles
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, age_text, fit, join_whole


class CanaryLine(Panel):
    """The canary's latencies over the window, as its client saw them."""

    DEFAULT_CSS = """
    CanaryLine { display: none; }
    CanaryLine.-flying { display: block; }
    """

    _canary: Canary | None = None
    _now_ns = 0

    def show(self, shown: Snapshot) -> None:
        """Take the present picture."""
        self._canary, self._now_ns = shown.canary, shown.now_ns
        self.set_class(shown.canary is not None, "-flying")
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """What matters most first; what has no room is left out whole."""
        del height
        canary = self._canary
        if canary is None:
            return ()
        parts = (
            (TextRun("canary", "strong"), TextRun(" client", "faint")),
            _latency("ttft_s", canary.ttft_s),
            _latency("itl_s", canary.itl_s),
            self._counts(canary),
            self._last(canary),
            (
                TextRun(format_count(canary.tokens).strip()),
                TextRun(" tokens of its own in the server's counts", "muted"),
            ),
        )
        return [fit((TextRun(" "), *join_whole(parts, width - 2)), width)]

    def _counts(self, canary: Canary) -> Line:
        sent = TextRun(f"n {canary.sent:,}", "muted")
        if not canary.failed:
            return (sent,)
        return (sent, TextRun(f" ▲ {canary.failed:,} failed", "bad"))

    def _last(self, canary: Canary) -> Line:
        if canary.last is None:
            return ()
        age = age_text(max(self._now_ns - canary.last.sent_ns, 0) / NS_PER_S)
        if canary.last.failure is not None:
            why = canary.last.detail or canary.last.failure
            return (TextRun(f"last {age} ago: ", "muted"), TextRun(why, "bad"))
        return (TextRun(f"last {age} ago", "muted"),)


def _latency(metric: str, quantiles: Quantiles) -> Line:
    """The median and the worst: of so few no other percentile is known."""
    p50, worst = format_durations((quantiles.p50, quantiles.max))
    label = TextRun(f"{label_of(metric)} ", "muted")
    if quantiles.p50 is None:
        return (label, TextRun(UNKNOWN, "faint"))
    return (
        label,
        TextRun("p50 ", "muted"),
        TextRun(p50.strip(), "strong"),
        TextRun("  max ", "muted"),
        TextRun(worst.strip()),
    )
