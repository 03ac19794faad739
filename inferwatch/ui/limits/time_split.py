"""Where time went: what hardware needed at least, and what was spent beyond it."""

from collections.abc import Sequence
from typing import NamedTuple

from inferwatch.formatting import format_share
from inferwatch.metrics.catalog import label_of
from inferwatch.metrics.floor.view import TimeSplit
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import split_bar
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join, ruled, width_of

AROUND_TITLE = 8
"""Cells of a heading that are rule and gaps."""


class SplitPart(NamedTuple):
    """One part of the time with work, as the bar and its legend draw it."""

    name: str
    glyph: str
    ink: str
    share: float | None


class SplitPanel(Panel):
    """One bar of the window's time with work; idle time stands beside it."""

    DEFAULT_CSS = """
    SplitPanel { height: 3; }
    """

    _shown: Snapshot | None = None

    def show(self, shown: Snapshot) -> None:
        """Take the split of the window."""
        self._shown = shown
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The heading, the bar, what is what."""
        del height
        if self._shown is None:
            return ()
        limits, span = self._shown.limits, self._shown.window.span
        split = (limits.split if limits else None) or TimeSplit()
        title, idle = (TextRun("where time went", "strong"),), _idle(split)
        noted = (*title, TextRun(f" {span}, of the time with work", "muted"))
        roomy = width_of(noted) + width_of(idle) + AROUND_TITLE <= width
        head = ruled(noted if roomy else title, idle, width)
        parts = parts_of(split)
        known = [each for each in parts if each.share is not None]
        if not known:
            said = "  it is not known: it takes steps, and their floors"
            return [head, (TextRun(said, "faint"),)]
        shares = [(each.share or 0.0, each.glyph, each.ink) for each in known]
        bar = (TextRun("  "), *split_bar(shares, width - 4))
        return [head, bar, _legend(parts, width)]


def parts_of(split: TimeSplit) -> Sequence[SplitPart]:
    """From what cannot be helped to what can."""
    looks = (
        ("memory_floor", "█", "kv", split.memory_floor),
        ("compute_floor", "▓", "shared", split.compute_floor),
        ("inefficiency", "▒", "warn", split.inefficiency),
        ("host_gap", "⣿", "waiting", split.host_gap),
    )
    return [
        SplitPart(label_of(f"time_split.{name}"), glyph, ink, share)
        for name, glyph, ink, share in looks
    ]


def _idle(split: TimeSplit) -> Line:
    if split.idle_share is None:
        return ()
    label = f"{label_of('time_split.idle_share')} besides "
    return (TextRun(label, "muted"), TextRun(format_share(split.idle_share)))


def _legend(parts: Sequence[SplitPart], width: int) -> Line:
    """Every part keeps its place; shares have one width."""
    told: list[Line] = [
        (
            TextRun(f"{each.glyph} ", each.ink),
            TextRun(f"{each.name} ", "muted"),
            TextRun(format_share(each.share)),
        )
        for each in parts
    ]
    roomy = join(told, "     ")
    line = roomy if width_of(roomy) <= width - 2 else join(told, "  ")
    return fit((TextRun("  "), *line), width)
