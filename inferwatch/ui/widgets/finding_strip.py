"""The findings that hold, one line each, under the verdict."""

from collections.abc import Sequence

from inferwatch.metrics.findings.finding import Finding
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, spread, width_of

OPENS = "screen.findings"
MARK = ("▲", "warn")
GRAVE = 0.3
"""Share of the SLO or of throughput lost from which a finding counts as grave."""
GRAVE_MARK = ("✖", "bad")


def mark_of(finding: Finding) -> TextRun:
    """Return the glyph for the severity of a finding."""
    glyph, ink = GRAVE_MARK if finding.cost >= GRAVE else MARK
    return TextRun(f" {glyph} ", f"{ink} bold")


class FindingStrip(Panel):
    """Up to three findings, the costliest first, and the key that opens them all.

    Its rows are always there, so nothing moves when findings come or go.
    """

    DEFAULT_CSS = """
    FindingStrip { height: 1; max-height: 3; }
    """

    _findings: Sequence[Finding] = ()

    def show(self, findings: Sequence[Finding], most: int) -> None:
        if self.styles.height is None or self.styles.height.value != most:
            self.styles.height = most
        self._findings = findings
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        lines = []
        for number, each in enumerate(self._findings[:height]):
            more = len(self._findings) - height
            hint = f"+{more} " if more > 0 and number == height - 1 else ""
            opens = (
                TextRun(hint, "muted", OPENS),
                TextRun("f ", "accent", OPENS),
                TextRun("what to do ", "muted", OPENS),
            )
            parts: Line = (
                mark_of(each),
                TextRun(f"{each.title} ", "strong", OPENS),
                TextRun(each.sentence, "", OPENS),
            )
            cost = (*parts, TextRun(f" · {each.cost_text}", "muted"))
            right = opens if number == 0 or hint else ()
            room = width - width_of(right) - 1
            line = cost if width_of(cost) <= room else fit(parts, room)
            lines.append(spread(line, right, width))
        return lines
