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
    """Up to three findings, the costliest first, and the key that opens them all."""

    DEFAULT_CSS = """
    FindingStrip { height: auto; max-height: 3; display: none; }
    """

    _findings: Sequence[Finding] = ()

    def show(self, findings: Sequence[Finding], most: int) -> None:
        visible = findings[:most]
        if len(visible) != len(self._findings[:most]) or self.display != bool(visible):
            self.styles.height = max(len(visible), 1)
            self.display = bool(visible)
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
