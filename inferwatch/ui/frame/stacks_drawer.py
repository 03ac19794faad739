"""The stacks drawer: what each thread was executing when the engine stalled."""

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap
from typing import ClassVar

from textual.binding import Binding, BindingType

from collectors.contract.readings import Stacks, ThreadStack
from inferwatch.formatting import counted, format_duration
from inferwatch.metrics.steps.stacks import STOPPED, StalledStacks, innermost, waits
from inferwatch.ui.kit.drawer import Drawer, titled
from inferwatch.ui.kit.renderables.text import Line, TextRun

INDENT = "   "
NANO = 1e-9


class StacksDrawer(Drawer):
    """First what holds the engine, then each process with its threads."""

    DEFAULT_CSS = """
    StacksDrawer { height: 60%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "waiting", "waiting threads", tooltip="Show or hide them"),
        Binding("escape", "screen.no_stacks", "close", tooltip="Close this drawer"),
    ]

    def __init__(self, stacks: StalledStacks, clock: Callable[[int], str]) -> None:
        super().__init__()
        self._stacks = stacks
        self._clock = clock
        self._with_waiting = False

    def show(self, stacks: StalledStacks) -> None:
        """Show the stacks of another stall, or more of this one."""
        if stacks != self._stacks:
            self._stacks, self._scrolled = stacks, 0
            self.redraw()

    def action_waiting(self) -> None:
        self._with_waiting, self._scrolled = not self._with_waiting, 0
        self.redraw()

    def heading(self, below: int) -> tuple[Line, Line]:
        fold = "hides waiting threads" if self._with_waiting else "waiting threads too"
        keys = (("↑↓", "scrolls"), ("w", fold), ("esc", "closes"))
        return titled("stacks", f" · {self._clock(self._stacks.t_ns)}", below, *keys)

    def entries(self, width: int) -> Sequence[Line]:
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
