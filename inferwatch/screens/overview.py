"""Is it all right, and if not, what binds?"""

from collections.abc import Iterable
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.widget import Widget

from inferwatch.messages import LookAgain
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.screens import charts
from inferwatch.screens.watch_screen import WatchScreen
from inferwatch.widgets.flow_panel import FlowPanel
from inferwatch.widgets.latency_table import LatencyTable
from inferwatch.widgets.time_axis_line import TimeAxisLine
from inferwatch.widgets.time_chart import TimeChart

PLANS = (charts.TTFT, charts.BATCH, charts.KV, charts.OUTPUT)
ALL_CHARTS_HEIGHT = 32
"""Below this many rows one chart is shown instead of all."""


class OverviewScreen(WatchScreen):
    """Verdict, flow, one table, charts on one time axis: the join in time."""

    NAME = "overview"
    QUESTION = "Is it all right, and if not, what binds?"
    KEYS = (("tab", "one chart after the other, then all again"),)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "chart(1)", "chart", tooltip="One chart after the other"),
        Binding("shift+tab", "chart(-1)", "chart back", show=False),
    ]
    DEFAULT_CSS = """
    OverviewScreen {
        FlowPanel { margin-top: 1; }
        LatencyTable { margin-top: 1; }
        &.-short FlowPanel { height: 4; }
        &.-short FlowPanel, &.-short LatencyTable { margin: 0; }
    }
    """

    _alone: int | None = None
    """The chart that is shown alone."""

    def compose_panels(self) -> Iterable[Widget]:
        """From the flow down to the charts and their axis."""
        yield FlowPanel()
        yield LatencyTable()
        for plan in PLANS:
            yield TimeChart(plan)
        yield TimeAxisLine()

    def show_panels(self, shown: Snapshot) -> None:
        """Flow and table."""
        engine = shown.engines[0] if shown.engines else None
        self.query_one(FlowPanel).show(shown.flow, engine and engine.max_num_seqs)
        self.query_one(LatencyTable).show(shown.latencies, shown.window)

    def action_chart(self, by: int) -> None:
        """Show another chart alone; after the last one all, where there is room."""
        stops = len(PLANS) + (0 if self._is_short else 1)
        here = len(PLANS) if self._alone is None else self._alone
        there = (here + by) % stops
        self._alone = None if there == len(PLANS) else there
        self._lay_out()

    def on_resize(self, event: events.Resize) -> None:
        """One chart where four would be unreadable."""
        self.set_class(event.size.height < ALL_CHARTS_HEIGHT, "-short")
        self._lay_out()

    @property
    def _is_short(self) -> bool:
        return self.has_class("-short")

    def _lay_out(self) -> None:
        alone = self._alone
        if alone is None and self._is_short:
            alone = 1
        for index, chart in enumerate(self.query(TimeChart)):
            chart.display = alone is None or index == alone
        self.post_message(LookAgain())
