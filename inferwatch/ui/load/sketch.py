"""What a plan will ask: the rate over time and the requests that its seed draws."""

from collections.abc import Sequence

from textual import events

from inferwatch.loadgen.plan.plan import LoadPlan
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.load.preview import NOTHING, preview, span_s, unseen
from inferwatch.ui.shared.chart_plan import ChartPlan
from inferwatch.ui.shared.panel import Panel
from inferwatch.ui.shared.renderables.axis import TimeAxis
from inferwatch.ui.shared.renderables.text import Line, TextRun, ruled
from inferwatch.ui.shared.time_chart import MARGIN, TimeChart


class LoadSketch(TimeChart):
    """A chart of a time to come: neither the session nor its cursor moves it."""

    DEFAULT_CSS = """
    LoadSketch { min-height: 3; }
    """

    def __init__(self, plan: ChartPlan, *, id: str | None = None) -> None:
        super().__init__(plan, id=id)
        self._load: LoadPlan | None = None
        self._why = ""

    def sketch(self, plan: LoadPlan | None) -> None:
        """Draw a plan; None is one that is not complete."""
        self._load = plan
        self._why = "mend what is marked ✖" if plan is None else unseen(plan)
        self._redraw()

    def show(self, snapshot: Snapshot, axis: TimeAxis) -> None:
        """Not of the session."""

    def head(self, snapshot: Snapshot, index: int | None) -> None:
        """Not of the session."""

    def mark(self, t_ns: int | None) -> None:
        """Not of the session."""

    def on_click(self, event: events.Click) -> None:
        """There is nothing to point at."""
        event.prevent_default()

    def on_resize(self) -> None:
        """As many columns as there is room for."""
        self._redraw()

    def _redraw(self) -> None:
        columns = self.size.width - MARGIN - 1
        if columns < 1:
            return
        drawn = preview(self._load, columns) if self._load else NOTHING
        axis = TimeAxis(0, 1, columns, columns, columns)
        super().show(drawn, axis)
        told = self._why or "▇ drawn by this seed, ⣿ asked"
        head = (TextRun("sketch", "strong"), TextRun(" requests/s", "muted"))
        self._heading = ruled(head, (TextRun(told, "muted"),), self.size.width)
        self.refresh()


class LoadSketchAxis(Panel):
    """Seconds from the end of the warm-up."""

    _span_s: float | None = None

    def show(self, plan: LoadPlan | None) -> None:
        """Take the plan that is sketched."""
        shown = plan is not None and not unseen(plan)
        self._span_s = span_s(plan) if plan is not None and shown else None
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """The row."""
        del height
        if self._span_s is None:
            return ()
        text = list(" " * width)
        for part in (0.0, 0.5, 1.0):
            label = f"{self._span_s * part:.3g} s"
            at = MARGIN + round(part * (width - MARGIN - 2)) - len(label) // 2
            start = max(min(at, width - len(label)), 0)
            text[start : start + len(label)] = label
        return ((TextRun("".join(text), "muted"),),)
