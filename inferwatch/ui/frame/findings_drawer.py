"""The findings drawer: what is wrong, why we think so, which knob to turn.

On measuring it is a drawer of its own: how far the numbers can be trusted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import UNKNOWN, counted
from inferwatch.metrics.findings.finding import Evidence, Finding, Knob
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.stacks import StalledStacks
from inferwatch.ui.frame.session_screen import SessionScreen
from inferwatch.ui.frame.stacks_drawer import StacksDrawer
from inferwatch.ui.kit.drawer import Drawer, titled
from inferwatch.ui.kit.lookup import widgets_of
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    age_text,
    fit,
    spread,
    width_of,
)
from inferwatch.ui.messages import LookAgain, LookAt, OpenRequest
from inferwatch.ui.widgets.finding_strip import mark_of

INDENT = "   "
NOTHING = "nothing is wrong that we know of: every diagnosis is judged once a second"
TRUSTED = "nothing is known that would make the numbers doubtful"


LEAST_ROOM = 20
"""Cells below which a text begins on a row of its own."""


@dataclass(frozen=True, slots=True)
class DrawerRow:
    """A line of the drawer and the evidence that Enter opens."""

    line: Line
    evidence: Evidence | None = None


class FindingsDrawer(Drawer):
    """Findings with their evidence, which leads to the screen that shows it."""

    DEFAULT_CSS = """
    FindingsDrawer { height: auto; min-height: 0; max-height: 60%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "look there", tooltip="To the screen that shows it"),
        Binding("up", "choose(-1)", "evidence", key_display="↑↓"),
        Binding("down", "choose(1)", "next evidence", show=False),
        Binding("escape", "shut", "close", tooltip="Close this drawer"),
    ]

    @dataclass
    class EvidenceChosen(Message):
        """The user wants to see the evidence."""

        evidence: Evidence

    _findings: Sequence[Finding] = ()
    _lost = 0
    """Readings that never came."""
    _now_ns = 0
    _clock: Callable[[int], str] = str
    _at = 0
    """Index of the selected evidence."""
    _tallest = 0
    """Most lines since it was opened: the drawer grows but never shrinks."""

    def __init__(self, *, trust: bool = False) -> None:
        super().__init__()
        self.trust = trust
        """Whether it shows findings on measuring, instead of all others."""

    def show(self, snapshot: Snapshot, clock: Callable[[int], str]) -> None:
        self._findings = snapshot.trust if self.trust else snapshot.findings
        self._lost = snapshot.cost.dropped_readings if self.trust else 0
        self._now_ns, self._clock = snapshot.now_ns, clock
        self._at = min(self._at, max(len(self._evidence) - 1, 0))
        if len(self.entries(self.size.width)) + 1 > self._tallest:
            self.refresh(layout=True)
        self.redraw()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the rows of all findings, never fewer than before; CSS limits them."""
        del container, viewport
        self._tallest = max(self._tallest, len(self.entries(width)) + 1)
        return self._tallest

    @property
    def _evidence(self) -> list[Evidence]:
        return [each for finding in self._findings for each in finding.evidence]

    def action_choose(self, by: int) -> None:
        self._at = min(max(self._at + by, 0), max(len(self._evidence) - 1, 0))
        self._follow()

    async def action_shut(self) -> None:
        """Close, also when what was told in here is over meanwhile."""
        await self.run_action(f"screen.no_{'trust' if self.trust else 'findings'}")

    def action_open(self) -> None:
        if self._at < len(self._evidence):
            self.post_message(self.EvidenceChosen(self._evidence[self._at]))

    def on_click(self, event: events.Click) -> None:
        rows = self.entries(self.size.width)
        at = event.y - 1 + self._scrolled
        if event.y < 1 or at >= len(rows) or rows[at].evidence is None:
            return
        before = rows[:at]
        earlier = [row.evidence for row in before if row.evidence is not None]
        self._at = (
            len(dict.fromkeys(map(id, earlier)) | {id(rows[at].evidence): None}) - 1
        )
        self.redraw()
        self.action_open()

    def entry_line(self, entry: DrawerRow, width: int) -> Line:
        return fit(entry.line, width)

    def heading(self, below: int) -> tuple[Line, Line]:
        name, key = ("trust", "F") if self.trust else ("findings", "f")
        keys = (("↑↓", "evidence"), ("enter", "look there"), (key, "closes"))
        return titled(name, "", below, *keys)

    def _follow(self) -> None:
        """Scroll to the selected evidence."""
        rows, room = self.entries(self.size.width), max(self.size.height - 1, 1)
        chosen = self._evidence[self._at] if self._evidence else None
        places = [i for i, row in enumerate(rows) if row.evidence is chosen]
        if chosen is not None and places:
            self._scrolled = min(self._scrolled, max(places[0] - 2, 0))
            self._scrolled = max(self._scrolled, places[-1] - room + 1)
        if self._at == 0:
            self._scrolled = 0
        if self._at == len(self._evidence) - 1:
            self._scrolled = max(len(rows) - room, 0) if rows else 0
        self.redraw()

    def entries(self, width: int) -> list[DrawerRow]:
        rows: list[DrawerRow] = []
        if self._lost:
            lost = f" {counted(self._lost, 'reading')} of this session never came"
            rows.append(DrawerRow((TextRun(lost, "muted"),)))
        if not self._findings:
            nothing = TRUSTED if self.trust else NOTHING
            return rows or [DrawerRow((TextRun(f" {nothing}", "faint"),))]
        at = 0
        for finding in self._findings:
            rows += [DrawerRow(())] if rows else []
            rows += self._finding_rows(finding, width)
            for knob in finding.knobs:  # first, as a short drawer ends somewhere
                rows += _knob_rows(knob, width)
            for evidence in finding.evidence:
                rows += _evidence_rows(evidence, width, chosen=at == self._at)
                at += 1
        return rows

    def _finding_rows(self, finding: Finding, width: int) -> list[DrawerRow]:
        age_s = max(self._now_ns - finding.since_ns, 0) / NS_PER_S
        since = f"since {self._clock(finding.since_ns)}, {age_text(age_s)} "
        head = (mark_of(finding), TextRun(finding.title, "strong"))
        cost = TextRun(f"  costs {finding.cost_text}", "warn")
        said = wrap(finding.sentence, max(width - len(INDENT) - 1, 20))
        return [
            DrawerRow(spread((*head, cost), (TextRun(since, "muted"),), width)),
            *(DrawerRow((TextRun(f"{INDENT}{line}"),)) for line in said),
        ]


def _evidence_rows(evidence: Evidence, width: int, *, chosen: bool) -> list[DrawerRow]:
    place = f"  → {evidence.page}" if evidence.page else ""
    room = max(width - len(INDENT) - 3 - len(place), 20)
    first, *rest = wrap(evidence.text, room) or [""]
    mark = TextRun(
        f"{INDENT}{'▸' if chosen else '·'} ", "accent" if chosen else "muted"
    )
    ink = "strong" if chosen else "muted"
    return [
        DrawerRow((mark, TextRun(first, ink), TextRun(place, "accent")), evidence),
        *(DrawerRow((TextRun(f"{INDENT}  {line}", ink),), evidence) for line in rest),
    ]


def _knob_rows(knob: Knob, width: int) -> list[DrawerRow]:
    """Draw a knob: its flag, what to do and the effort, then the expected effect."""
    price = ", ".join(knob.effort)
    free = len(knob.effort) == 1 and knob.effort[0].name == "NOW"
    ink = "good" if free else "warn"
    head = [TextRun(f"{INDENT}↻ ", ink if free else "muted")]
    if knob.flag is not None:
        present = knob.present or f"{UNKNOWN} not told"
        head += [TextRun(knob.flag, "strong"), TextRun(f" (now {present}) ", "muted")]
    room = width - width_of(head) - len(price) - 3
    first, *rest = wrap(knob.text, room) if room >= LEAST_ROOM else ("", knob.text)
    below = max(width - len(INDENT) - 3, LEAST_ROOM)
    texts = [
        *((line, "") for line in wrap(" ".join(rest), below) if rest),
        *((line, "muted") for line in wrap(knob.expected, below)),
    ]
    return [
        DrawerRow(spread((*head, TextRun(first)), (TextRun(f"{price} ", ink),), width)),
        *(DrawerRow((TextRun(f"{INDENT}  {line}", ink),)) for line, ink in texts),
    ]


class FindingsControl:
    """Opens and closes the findings drawer and follows its evidence."""

    def __init__(self, screen: SessionScreen) -> None:
        self._screen = screen

    def show(self, snapshot: Snapshot) -> None:
        for drawer in widgets_of(self._screen, FindingsDrawer):
            drawer.show(snapshot, self._screen.feed.wall_text)
        for stacks in widgets_of(self._screen, StacksDrawer):
            if snapshot.stacks is not None:
                stacks.show(snapshot.stacks)

    def toggle_stacks(self, stacks: StalledStacks | None) -> None:
        """Open the drawer of the latest stall's stacks, or close it."""
        screen = self._screen
        if not StacksDrawer.close_on(screen) and stacks is not None:
            StacksDrawer(stacks, screen.feed.wall_text).open_on(screen)

    def toggle(self, *, trust: bool = False) -> None:
        """Open the drawer, or close it; one on the other subject is replaced."""
        screen = self._screen
        drawers = [*widgets_of(screen, FindingsDrawer)]
        FindingsDrawer.close_on(screen)
        if any(each.trust is trust for each in drawers):
            return
        FindingsDrawer(trust=trust).open_on(screen)
        screen.post_message(LookAgain())

    def look_at(self, evidence: Evidence) -> None:
        """Go to the evidence: a request, or a screen and a moment."""
        screen = self._screen
        FindingsDrawer.close_on(screen)
        if evidence.t_ns is not None:
            screen.view.cursor_ns = max(evidence.t_ns, 0)
        if evidence.key is not None:
            screen.post_message(OpenRequest(evidence.key))
        elif evidence.page is not None:
            screen.post_message(LookAt(evidence.page))
        screen.post_message(LookAgain())
