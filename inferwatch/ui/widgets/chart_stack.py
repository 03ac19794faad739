"""Charts on one time axis: all of them if there is room, otherwise one at a time."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.kit.renderables.plot import MARGIN
from inferwatch.ui.kit.renderables.time_axis import TimeAxis, shared_axis
from inferwatch.ui.messages import LookAgain
from inferwatch.ui.widgets.charts import ChartPlan, span_of
from inferwatch.ui.widgets.help_drawer import Key
from inferwatch.ui.widgets.time_chart import TimeAxisLine, TimeChart

CHART_KEYS: Sequence[Key] = (("click", "on a chart: put the time cursor there"),)
CHART_BINDINGS: list[BindingType] = [
    Binding("tab", "chart(1)", "chart", tooltip="One chart alone, then the next"),
    Binding("shift+tab", "chart(-1)", "previous chart", show=False),
]
LEAST_ROWS = 3
"""Least height of a chart: its heading and two more rows."""


class ChartStack(Vertical):
    """Charts in a fixed order; each can be shown alone."""

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
        """Index of the chart shown first if there is room for only one."""
        self._alone: int | None = None
        """Index of the chart the user chose to see alone."""
        self._only_one = False
        self._drawn_width = 0
        self._source: str | None = None
        self._empty_charts = self._optional
        """Indices of optional charts without a value so far; once drawn, a chart
        stays."""

    def compose(self) -> ComposeResult:
        for index, plan in enumerate(self._plans):
            yield TimeChart(plan, id=f"chart-{index}")
        yield TimeAxisLine()

    @property
    def _optional(self) -> set[int]:
        return {index for index, plan in enumerate(self._plans) if plan.optional}

    @property
    def _stops(self) -> Sequence[int]:
        """Positions of the cycle: every visible chart, then all of them at once."""
        charts = [i for i in range(len(self._plans)) if i not in self._empty_charts]
        return charts if self._only_one else [*charts, len(self._plans)]

    def next(self, by: int) -> None:
        """Show the next chart alone; after the last one all, if there is room."""
        stops = self._stops
        self._alone = stops[(stops.index(self._here) + by) % len(stops)]
        self.fit(only_one=self._only_one)
        self.post_message(LookAgain())

    def at_end(self, by: int) -> bool:
        """Return True if the next step wraps around."""
        stops = self._stops
        return not 0 <= stops.index(self._here) + by < len(stops)

    def fit(self, *, only_one: bool) -> None:
        """Show one chart if several would be unreadable, else all that fit."""
        self._only_one = only_one
        here, every = self._here, len(self._plans)
        indices = [i for i in range(every) if i not in self._empty_charts]
        room = (
            max((self.size.height - 1) // LEAST_ROWS, 1) if self.size.height else every
        )
        while len(indices) > room and indices[-1] in self._optional:
            indices.pop()
        for index, chart in enumerate(self.query(TimeChart)):
            chart.display = index in indices if here == every else index == here

    def on_resize(self) -> None:
        if self._drawn_width not in {0, self.size.width}:
            self.post_message(LookAgain())

    def axis(self, snapshot: Snapshot) -> TimeAxis:
        line = snapshot.timeline
        self._drawn_width = self.size.width or self.screen.size.width
        return shared_axis(
            line.start_ns,
            line.bin_ns,
            len(line.steps),
            span_of(line, snapshot.window.value),
            max(self._drawn_width - MARGIN - 1, 1),
        )

    def show(self, snapshot: Snapshot) -> None:
        if not self.display:
            return
        if snapshot.shown_source != self._source:
            self._source, self._empty_charts = snapshot.shown_source, self._optional
        with_value = {
            i for i in self._empty_charts if self._plans[i].has_value(snapshot)
        }
        if with_value:
            self._empty_charts = self._empty_charts - with_value
            self.fit(only_one=self._only_one)
        axis = self.axis(snapshot)
        for chart in self.query(TimeChart):
            if chart.display:
                chart.show(snapshot, axis)

    def point(
        self,
        snapshot: Snapshot,
        index: int | None,
        cursor_ns: int | None,
        clock: str,
        end: str,
    ) -> None:
        """Head the charts with the values of a bin and draw the time cursor.

        ``clock`` is the wall time under the cursor, ``end`` the label at the end of the
        axis.
        """
        for chart in self.query(TimeChart):
            chart.head(snapshot, index)
            chart.mark(cursor_ns)
        for line in self.query(TimeAxisLine):  # none while the page is being left
            line.show(self.axis(snapshot), cursor_ns, clock, end)

    @property
    def _here(self) -> int:
        """The position in the cycle: a chart, or one past the last for all of them."""
        if self._alone is not None and self._alone in self._stops:
            return self._alone
        if not self._only_one:
            return len(self._plans)
        stops = self._stops
        return self._most_telling if self._most_telling in stops else stops[0]
