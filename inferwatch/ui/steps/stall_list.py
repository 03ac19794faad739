"""Where the scheduler stood still or failed somebody: a list, newest first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import set_cell_size
from textual import events
from textual.message import Message

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted, format_duration
from inferwatch.metrics.steps.efficiency import Stall
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, cells_of, fit, ruled
from inferwatch.visible import visible

WIDE = 160
"""Columns; with fewer the evidence of the chosen one stands below the list."""
EVIDENCE_ROWS = 2
NAME_WIDTH = 24
"""Cells of a request's name: the evidence is what matters here."""
MOST = 50


class StallList(Panel):
    """One is chosen; Enter or a click puts the time cursor there."""

    DEFAULT_CSS = """
    StallList { height: 2fr; min-height: 4; }
    """

    @dataclass
    class Chosen(Message):
        """People want to see what was then."""

        stall: Stall

    _stalls: Sequence[Stall] = ()
    _span = ""
    _clock: Callable[[int], str] = str
    _at = 0
    _top = 0

    def show(
        self, stalls: Sequence[Stall], span: str, clock: Callable[[int], str]
    ) -> None:
        """Take those of a window; the chosen one stays chosen."""
        chosen = self.chosen
        self._stalls, self._span, self._clock = stalls, span, clock
        same = (i for i, each in enumerate(stalls) if _same(each, chosen))
        self._at = next(same, 0)
        self.redraw()

    @property
    def chosen(self) -> Stall | None:
        """The one that Enter goes to."""
        return self._stalls[self._at] if self._at < len(self._stalls) else None

    def choose(self, by: int) -> None:
        """The next one, or the one before."""
        self._at = min(max(self._at + by, 0), max(len(self._stalls) - 1, 0))
        self.redraw()

    def open(self) -> None:
        """Go to the chosen one."""
        if self.chosen is not None:
            self.post_message(self.Chosen(self.chosen))

    def on_click(self, event: events.Click) -> None:
        """Go to the one under the mouse."""
        place = event.y - 1 + self._top
        if event.y and place < len(self._stalls) and event.y - 1 < self._room:
            self._at = place
            self.redraw()
            self.open()

    @property
    def _room(self) -> int:
        """Rows of the list itself."""
        below = 0 if self.size.width >= WIDE else EVIDENCE_ROWS
        return max(self.size.height - 1 - below, 1)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Heading, the list, the evidence of the chosen one where it has no room."""
        del height
        count = len(self._stalls)
        told = counted(count, "stall").strip() if count else ""
        if count == MOST:
            told = f"the latest {told}"
        title = (TextRun("stalls", "strong"), TextRun(f" {self._span}", "muted"))
        lines = [ruled(title, (TextRun(told, "muted"),) if told else (), width)]
        if not count:
            none = "  none: no gap with work, no slowed decode, nobody starved"
            return [*lines, fit((TextRun(none, "faint"),), width)]
        room = self._room
        top = min(max(self._top, self._at - room + 1), self._at)
        self._top = max(min(top, count - room), 0)
        seen = list(enumerate(self._stalls))[self._top : self._top + room]
        lines += [self._line(each, place == self._at, width) for place, each in seen]
        if width < WIDE and self.chosen is not None:
            lines += [(TextRun(f"  {text}", "muted"),) for text in self._told(width)]
        return lines

    def _line(self, stall: Stall, chosen: bool, width: int) -> Line:  # noqa: FBT001
        lasted_s = (stall.end_ns - stall.start_ns) / NS_PER_S
        line = (
            TextRun("▶ " if chosen else "  ", "marker"),
            TextRun(f"{self._clock(stall.start_ns)}  ", "strong" if chosen else ""),
            TextRun(f"{stall.kind.value:<15}", "warn"),
            TextRun(f"{format_duration(lasted_s):>9}  "),
        )
        if width < WIDE:
            who = "" if stall.step is None else f"step #{stall.step:,}"
            who = visible(_name(stall)) if stall.key else who
            return fit((*line, TextRun(who, "muted")), width)
        return fit((*line, TextRun(_evidence(stall), "muted")), width)

    def _told(self, width: int) -> list[str]:
        """The evidence of the chosen one, in as many rows as there are for it."""
        rows, words = [""], _evidence(self._stalls[self._at]).split()
        for word in words:
            if cells_of(f"{rows[-1]} {word}") > width - 3:
                rows.append("")
            rows[-1] = f"{rows[-1]} {word}".strip()
        return [*rows, ""][:EVIDENCE_ROWS]


def _evidence(stall: Stall) -> str:
    return visible(f"{_name(stall)}: {stall.evidence}" if stall.key else stall.evidence)


def _name(stall: Stall) -> str:
    """Who starved, as short as can be."""
    name = visible((stall.key or "").split("/", 1)[-1])
    if cells_of(name) <= NAME_WIDTH:
        return name
    return set_cell_size(name, NAME_WIDTH - 1).rstrip() + "…"


def _same(stall: Stall, other: Stall | None) -> bool:
    return other is not None and (stall.kind, stall.start_ns, stall.key) == (
        other.kind,
        other.start_ns,
        other.key,
    )
