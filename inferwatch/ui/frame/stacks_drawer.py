"""The stacks drawer: what each thread was executing when the engine stalled."""

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType

from collectors.contract.readings import Stacks, ThreadStack
from inferwatch.formatting import counted, format_duration
from inferwatch.metrics.steps.stacks import STOPPED, StalledStacks, innermost, waits
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join, ruled

INDENT = "   "
NANO = 1e-9


class StacksDrawer(Panel, can_focus=True):
    """First what holds the engine, then each process with its threads."""

    DEFAULT_CSS = """
    StacksDrawer {
        layer: drawer; dock: bottom; height: 60%; min-height: 8;
        margin-bottom: 1; background: $surface;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "waiting", "waiting threads", tooltip="Show or hide them"),
        Binding("up", "scroll(-1)", "scroll", key_display="↑↓"),
        Binding("down", "scroll(1)", "down", show=False),
        Binding("pageup", "scroll_page(-1)", "page up", show=False),
        Binding("pagedown", "scroll_page(1)", "page down", show=False),
        Binding("escape", "screen.no_stacks", "close", tooltip="Close this drawer"),
    ]

    def __init__(self, stacks: StalledStacks, clock: Callable[[int], str]) -> None:
        super().__init__()
        self._stacks = stacks
        self._clock = clock
        self._with_waiting = False
        self._top = 0

    def show(self, stacks: StalledStacks) -> None:
        """Show the stacks of another stall, or more of this one."""
        if stacks != self._stacks:
            self._stacks, self._top = stacks, 0
            self.redraw()

    def action_waiting(self) -> None:
        self._with_waiting, self._top = not self._with_waiting, 0
        self.redraw()

    def action_scroll(self, lines: int) -> None:
        most = max(len(self._rows(self.size.width)) - max(self.size.height - 1, 1), 0)
        self._top = min(max(self._top + lines, 0), most)
        self.redraw()

    def action_scroll_page(self, pages: int) -> None:
        self.action_scroll(pages * max(self.size.height - 2, 1))

    def draw(self, width: int, height: int) -> Sequence[Line]:
        rows = self._rows(width)
        room = max(height - 1, 1)
        below = len(rows) - self._top - room
        more = f" · {below:,} more lines below" if below > 0 else ""
        at = f" · {self._clock(self._stacks.t_ns)}{more}"
        title = (TextRun("stacks", "strong"), TextRun(at, "muted"))
        fold = "hides waiting threads" if self._with_waiting else "waiting threads too"
        keys = (("↑↓", "scrolls"), ("w", fold), ("esc", "closes"))
        runs = [(TextRun(k, "accent"), TextRun(f" {d}", "muted")) for k, d in keys]
        shown = rows[self._top : self._top + room]
        head = ruled(title, join(runs, "  "), width)
        return [head, *(fit(row, width) for row in shown)]

    def _rows(self, width: int) -> list[Line]:
        said = wrap(self._stacks.sentence, max(width - 2, 20), break_on_hyphens=False)
        rows: list[Line] = [(TextRun(f" {line}", "strong"),) for line in said]
        for each in self._stacks.processes:
            rows += [(), *self._process(each)]
            if each.why:
                rows += [(TextRun(f"{INDENT}{t}", "muted"),) for t in _why(each, width)]
        return rows

    def _process(self, stacks: Stacks) -> Iterator[Line]:
        mark = "▸ " if stacks.pid == self._stacks.holder else "  "
        facts = [f"pid {stacks.pid}", *([stacks.taken_by] if stacks.taken_by else ())]
        if stacks.stopped:
            facts.append(STOPPED)
        if stacks.paused_ns:
            paused = format_duration(stacks.paused_ns * NANO).strip()
            facts.append(f"paused for up to {paused} to be read")
        name = TextRun(f"{mark}{stacks.process}", "strong")
        yield (name, TextRun(f"  {', '.join(facts)}", "muted"))
        others = stacks.threads[1:]
        shown = [each for each in others if self._with_waiting or not waits(each)]
        for each in (*stacks.threads[:1], *shown):
            yield from _thread(each)
        if len(shown) < len(others):
            rest = counted(len(others) - len(shown), "other thread")
            verb = "waits" if rest.startswith("1 ") else "wait"
            yield (TextRun(f"{INDENT}{rest} {verb}", "faint"),)


def _why(stacks: Stacks, width: int) -> list[str]:
    head = "not by py-spy: " if stacks.threads else "not read: "
    return wrap(f"{head}{stacks.why}", max(width - len(INDENT) - 1, 20))


def _thread(thread: ThreadStack) -> Iterator[Line]:
    """Draw a thread: its innermost frame, then those that led there."""
    ink = "muted" if waits(thread) else "warn"
    yield (TextRun(f"{INDENT}{thread.name}  "), TextRun(innermost(thread), ink))
    for frame in thread.frames[1:]:
        yield (TextRun(f"{INDENT}  {frame}", "muted"),)
