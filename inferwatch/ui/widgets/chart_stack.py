"""Charts on one time axis: all of them where there is room, else one at a time."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.plot import MARGIN
from inferwatch.ui.kit.renderables.time_axis import TimeAxis, shared_axis
from inferwatch.ui.messages import LookAgain
from inferwatch.ui.widgets.charts import ChartPlan, span_of
from inferwatch.ui.widgets.drawers import Key
from inferwatch.ui.widgets.time_chart import TimeAxisLine, TimeChart

CHART_KEYS: Sequence[Key] = (("click", "on a chart: put the time cursor there"),)
CHART_BINDINGS: list[BindingType] = [
    Binding("tab", "chart(1)", "chart", tooltip="One chart alone, then the next"),
    Binding("shift+tab", "chart(-1)", "previous chart", show=False),
]
"""For a screen that has a stack of charts."""
LEAST_ROWS = 3
"""Of a chart: its heading and two more."""


class ChartStack(Vertical):
    """The order of the charts stays; one can be looked at alone."""

    DEFAULT_CSS = """
    ChartStack { min-height: 4; }
    """

    def __init__(
        self,
        plans: Sequence[ChartPlan],
        most_telling: int = 0,
        *,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self._plans = plans
        self._most_telling = most_telling
        """The chart to begin with where there is room for one only."""
        self._alone: int | None = None
        """The chart that is shown alone, as people chose."""
        self._only_one = False
        self._drawn_width = 0
        self._source: str | None = None
        self._untold = self._optional
        """Optional charts that have had no value yet; what comes once stays."""

    def compose(self) -> ComposeResult:
        """The charts and their axis."""
        for index, plan in enumerate(self._plans):
            yield TimeChart(plan, id=f"chart-{index}")
        yield TimeAxisLine()

    @property
    def _optional(self) -> set[int]:
        return {index for index, plan in enumerate(self._plans) if plan.optional}

    @property
    def _stops(self) -> Sequence[int]:
        """The charts one comes by, and one past the last for all of them."""
        charts = [i for i in range(len(self._plans)) if i not in self._untold]
        return charts if self._only_one else [*charts, len(self._plans)]

    def next(self, by: int) -> None:
        """Another chart alone; after the last one all, where there is room."""
        stops = self._stops
        self._alone = stops[(stops.index(self._here) + by) % len(stops)]
        self.fit(only_one=self._only_one)
        self.post_message(LookAgain())

    def at_end(self, by: int) -> bool:
        """The next chart, or the one before, is round the corner."""
        stops = self._stops
        return not 0 <= stops.index(self._here) + by < len(stops)

    def fit(self, *, only_one: bool) -> None:
        """One chart where several would be unreadable; optional ones while they fit."""
        self._only_one = only_one
        here, every = self._here, len(self._plans)
        shown = [i for i in range(every) if i not in self._untold]
        room = (
            max((self.size.height - 1) // LEAST_ROWS, 1) if self.size.height else every
        )
        while len(shown) > room and shown[-1] in self._optional:
            shown.pop()
        for index, chart in enumerate(self.query(TimeChart)):
            chart.display = index in shown if here == every else index == here

    def on_resize(self) -> None:
        """Do not wait for the next snapshot to look right."""
        if self._drawn_width not in {0, self.size.width}:
            self.post_message(LookAgain())

    def axis(self, shown: Snapshot) -> TimeAxis:
        """The one time axis, for charts as wide as this is."""
        line = shown.timeline
        self._drawn_width = self.size.width or self.screen.size.width
        return shared_axis(
            line.start_ns,
            line.bin_ns,
            len(line.steps),
            span_of(line, shown.window.value),
            max(self._drawn_width - MARGIN - 1, 1),
        )

    def show(self, shown: Snapshot) -> None:
        """Draw the values of a snapshot."""
        if not self.display:
            return
        if shown.shown_source != self._source:
            self._source, self._untold = shown.shown_source, self._optional
        told = {i for i in self._untold if self._plans[i].is_told(shown)}
        if told:
            self._untold = self._untold - told
            self.fit(only_one=self._only_one)
        axis = self.axis(shown)
        for chart in self.query(TimeChart):
            if chart.display:
                chart.show(shown, axis)

    def point(
        self,
        shown: Snapshot,
        index: int | None,
        cursor_ns: int | None,
        clock: str,
        end: str,
    ) -> None:
        """Head the charts with the values of a bin, and draw the time cursor.

        ``clock`` is the time under the cursor, ``end`` what the axis' end is called.
        """
        for chart in self.query(TimeChart):
            chart.head(shown, index)
            chart.mark(cursor_ns)
        for line in self.query(TimeAxisLine):  # none any more, while the page is left
            line.show(self.axis(shown), cursor_ns, clock, end)

    @property
    def _here(self) -> int:
        """The chart shown, one past the last when it is all of them."""
        if self._alone is not None and self._alone in self._stops:
            return self._alone
        if not self._only_one:
            return len(self._plans)
        told = self._stops
        return self._most_telling if self._most_telling in told else told[0]
