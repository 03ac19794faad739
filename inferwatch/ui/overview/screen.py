"""Is it healthy, and if not, what limits it?"""

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from inferwatch.metrics.findings.tracker import MOST_SHOWN
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import Health
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.messages import LookAgain, LookAt
from inferwatch.ui.overview.canary_line import CanaryLine
from inferwatch.ui.overview.flow_panel import FlowPanel
from inferwatch.ui.widgets import charts
from inferwatch.ui.widgets.chart_stack import CHART_BINDINGS, CHART_KEYS, ChartStack
from inferwatch.ui.widgets.drawers import (
    COST_KEYS,
    FLOW_KEYS,
    LATENCY_KEYS,
    SLO_KEYS,
    SPENDING_KEYS,
    catalog_keys,
)
from inferwatch.ui.widgets.finding_strip import FindingStrip
from inferwatch.ui.widgets.hardware_charts import HARDWARE_KEYS, MEMORY
from inferwatch.ui.widgets.latency_table import LatencyTable, ReferenceRows
from inferwatch.ui.widgets.slow_line import SlowLine

TINY = 22
"""Rows; with fewer it is the table of latencies, or one chart."""


class OverviewScreen(WatchScreen):
    """Verdict, flow, one table, charts on one time axis: the join in time."""

    NAME = "overview"
    KEY = "1"
    LABEL = "Overview"
    QUESTION = "Is it healthy, and if not, what limits it?"
    EXPLAINS = (
        *LATENCY_KEYS,
        *FLOW_KEYS,
        *catalog_keys(
            "timeline", "batch_decode batch_prefill waiting_max kv_cached_blocks"
        ),
        *HARDWARE_KEYS,
        *SLO_KEYS,
        *SPENDING_KEYS,
        *COST_KEYS,
    )
    KEYS = CHART_KEYS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "slowest",
            "slowest",
            tooltip="The slowest request and why; without a known cause, all of them",
        ),
        *CHART_BINDINGS,
    ]
    DEFAULT_CSS = """
    OverviewScreen {
        &.-short SlowLine { display: none; }
        LatencyTable { margin-top: 1; }
        #chart-0 { height: 5fr; }
        #chart-1 { height: 4fr; }
        #chart-2, #chart-3, #chart-4 { height: 3fr; }
        &.-short FlowPanel { height: 4; }
        &.-untouched LatencyTable { display: none; }
        &.-short FlowPanel, &.-short LatencyTable { margin: 0; }
        &.-tiny FlowPanel { height: 2; }
        &.-tiny.-elsewhere FlowPanel, &.-tiny.-lost FlowPanel { display: none; }
        &.-tiny.-untouched FlowPanel { display: none; }
        &.-tiny ChartStack, &.-tiny.-charted LatencyTable { display: none; }
        &.-tiny.-charted ChartStack { display: block; }
        &.-untouched ChartStack { display: none; }
    }
    """

    WORST_KEY = "enter"
    WILL_SHOW = "latencies, batch, KV blocks and tokens over time"
    TELLS_HOW = True

    def compose_panels(self) -> Iterable[Widget]:
        """From the flow down to the charts and their axis."""
        yield FindingStrip()
        yield SlowLine(self.WORST_KEY)
        yield FlowPanel()
        yield LatencyTable()
        yield CanaryLine()
        yield ChartStack(
            (charts.TTFT, charts.BATCH, charts.KV, charts.OUTPUT, MEMORY),
            most_telling=1,
        )

    def fit_height(self) -> None:
        """The table, or a chart, where both would be cut."""
        super().fit_height()
        self.set_class(self.size.height < TINY, "-tiny")

    def action_chart(self, by: int) -> None:
        """Another chart alone; where it takes the table's place, the table, too."""
        charted = self.has_class("-charted")
        turns = self.query_one(ChartStack).at_end(by) if charted else True
        if self.has_class("-tiny") and turns:
            self.toggle_class("-charted")
            self.post_message(LookAgain())
        if charted or not self.has_class("-tiny"):
            super().action_chart(by)

    def show_panels(self, shown: Snapshot) -> None:
        """Flow and table."""
        self.set_class(shown.verdict.health is Health.LOST, "-lost")
        strip = self.query_one(FindingStrip)
        strip.show(shown.findings, 1 if self.is_short else MOST_SHOWN)
        self.query_one(FlowPanel).show(shown)
        self.query_one(CanaryLine).show(shown)
        table = self.query_one(LatencyTable)
        target = shown.slo.target if shown.slo is not None else None
        table.hold_against(target, self._against())
        table.show(shown.latencies, shown.window)

    def _against(self) -> ReferenceRows | None:
        """The latencies of what people chose to hold these against."""
        reference = self.view.reference
        if reference is None:
            return None
        rows = {each.metric: each for each in reference.snapshot.latencies}
        return ReferenceRows(reference.title.partition(" ")[0], rows)

    def action_slowest(self) -> None:
        """To the slowest request, or to all, those first that waited longest."""
        if self._slow is not None and self._slow.groups:
            self.action_worst()
            return
        self.view.slowest_first = True
        self.post_message(LookAt("requests"))
