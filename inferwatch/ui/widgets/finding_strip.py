"""The findings that hold, one line each, under the verdict; one on trust."""

from collections.abc import Sequence

from inferwatch.metrics.findings.finding import GRAVE, SLIGHT, Finding, Subject, is_told
from inferwatch.ui.kit.panel import LinePanel, Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    cut_within,
    fit,
    join_whole,
    spread,
    width_of,
)

OPENS = "screen.findings"
MARK = ("▲", "warn")
GRAVE_MARK = ("✖", "bad")
SLIGHT_MARK = ("·", "muted")
TRUST_OPENS = "screen.trust"
TRUST_FROM = 60
"""Least width for a finding with a hint at what may be doubtful."""


def mark_of(finding: Finding) -> TextRun:
    """Return the glyph for the severity of a finding."""
    glyph, ink = GRAVE_MARK if finding.cost >= GRAVE else MARK
    if finding.cost < SLIGHT or finding.subject is Subject.MEASURING:
        glyph, ink = SLIGHT_MARK
    return TextRun(f" {glyph} ", f"{ink} bold")


class FindingStrip(Panel):
    """Up to three findings, the costliest first, and the key that opens them all.

    Its rows are always there, so nothing moves when findings come or go.
    """

    DEFAULT_CSS = """
    FindingStrip { height: 1; max-height: 3; }
    """

    _findings: Sequence[Finding] = ()
    _doubts = False

    def show(
        self, findings: Sequence[Finding], most: int, *, doubts: bool = False
    ) -> None:
        """Show up to ``most`` findings; with ``doubts``, hint at those of trust."""
        self._doubts = doubts
        if most and (self.styles.height is None or self.styles.height.value != most):
            self.styles.height = most
        self._findings = findings
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        lines = []
        for number, each in enumerate(self._findings[:height]):
            more = len(self._findings) - height
            hint = f"+{more} " if more > 0 and number == height - 1 else ""
            opens: Line = (
                TextRun(hint, "muted", OPENS),
                TextRun("f ", "accent", OPENS),
                TextRun("what to do ", "muted", OPENS),
            )
            if self._doubts and width >= TRUST_FROM:
                opens = (*opens, TextRun("· trust ", "faint", TRUST_OPENS))
            head: Line = mark_of(each), TextRun(f"{each.title} ", "strong", OPENS)
            whole = (*head, TextRun(each.sentence, "", OPENS))
            told = is_told(each.cost_text, each.sentence)
            cost = "" if told else f" · {each.cost_text}"
            costs = (*whole, TextRun(cost, "muted"))
            right = opens if number == 0 or hint else ()
            room = width - width_of(right) - 1
            said = cut_within(each.sentence, room - width_of(head))
            cut = fit((*head, TextRun(said, "", OPENS)), room)
            line = costs if width_of(costs) <= room else cut
            lines.append(spread(line, right, width))
        return lines


class TrustLine(LinePanel):
    """Why numbers may be doubtful, in one dim line; hidden while nothing is known."""

    _findings: Sequence[Finding] = ()

    def show(self, findings: Sequence[Finding]) -> None:
        self._findings = findings
        self.redraw()

    def line(self, width: int) -> Line:
        if not self._findings:
            return ()
        opens = (
            TextRun("F ", "accent", TRUST_OPENS),
            TextRun("why ", "muted", TRUST_OPENS),
        )
        titles = [
            (TextRun(each.title, "muted", TRUST_OPENS),) for each in self._findings
        ]
        head: Line = (TextRun(" trust  ", "muted", TRUST_OPENS), *titles[0])
        room = width - width_of(opens) - 1
        told = join_whole((head, *titles[1:]), room, " · ") or fit(head, room)
        return spread(told, opens, width)
