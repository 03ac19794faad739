"""Is it all right, and if not, what binds?"""

from collections.abc import Iterable

from textual.widget import Widget

from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.overview.flow_panel import FlowPanel
from inferwatch.ui.shared import charts, explains
from inferwatch.ui.shared.chart_screen import ChartScreen
from inferwatch.ui.shared.latency_table import LatencyTable


class OverviewScreen(ChartScreen):
    """Verdict, flow, one table, charts on one time axis: the join in time."""

    NAME = "overview"
    QUESTION = "Is it all right, and if not, what binds?"
    EXPLAINS = explains.OVERVIEW
    PLANS = (charts.TTFT, charts.BATCH, charts.KV, charts.OUTPUT)
    MOST_TELLING = 1
    DEFAULT_CSS = """
    OverviewScreen {
        FlowPanel { margin-top: 1; }
        LatencyTable { margin-top: 1; }
        &.-short FlowPanel { height: 4; }
        &.-short FlowPanel, &.-short LatencyTable { margin: 0; }
    }
    """

    def compose_panels(self) -> Iterable[Widget]:
        """From the flow down to the charts and their axis."""
        yield FlowPanel()
        yield LatencyTable()
        yield from self.compose_charts()

    def show_panels(self, shown: Snapshot) -> None:
        """Flow and table."""
        limit = shown.engines[0].max_num_seqs if shown.engines else None
        self.query_one(FlowPanel).show(shown.flow, limit)
        self.query_one(LatencyTable).show(shown.latencies, shown.window)
