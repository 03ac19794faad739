"""Is it all right, and if not, what binds? In one row."""

from collections.abc import Sequence

from inferwatch.metrics.snapshot import Health, Verdict
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.text import Line, TextRun, age_text, spread

GLYPHS = {
    Health.STARTING: ("◌", "accent"),
    Health.IDLE: ("○", "muted"),
    Health.HEALTHY: ("●", "good"),
    Health.QUEUEING: ("▲", "warn"),
    Health.STALLED: ("■", "bad"),
    Health.LOST: ("✖", "bad"),
}
"""Shape, word and colour say the same: colour is never the only signal."""


class VerdictLine(Panel):
    """A glyph, a word, a sentence, and since when."""

    _verdict: Verdict | None = None
    _now_ns = 0

    def show(self, verdict: Verdict, now_ns: int) -> None:
        """Take the verdict as of now."""
        self._verdict, self._now_ns = verdict, now_ns
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        if self._verdict is None:
            return ()
        glyph, ink = GLYPHS[self._verdict.health]
        first_line = self._verdict.sentence.partition("\n")[0]
        word = TextRun(f" {glyph} {self._verdict.health.value.upper()} ", f"{ink} bold")
        return (spread((word, TextRun(f" {first_line}")), self._aside(), width),)

    def _aside(self) -> Line:
        since_ns = self._verdict.since_ns if self._verdict else None
        if since_ns is None:
            return ()
        lasted_s = max(self._now_ns - since_ns, 0) / 1_000_000_000
        return (TextRun(f"for {age_text(lasted_s)} ", "muted"),)
