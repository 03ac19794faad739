"""The screen of all metrics of a server, whether we know them or not."""

import asyncio
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from collectors.servers.metrics_page import EVERY_NS
from inferwatch.errors import InferwatchError
from inferwatch.feed import Feed
from inferwatch.formatting import counted, format_round_duration
from inferwatch.metrics.servers.every_metric import EveryMetrics, every_metric
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.all_metrics.table import MOST_UNFOLDED, MetricTable
from inferwatch.ui.frame.header import Tab
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.kit.filter_bar import (
    REVERSE_BINDING,
    SORT_BINDING,
    FilterBar,
    FilteredList,
)
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, ruled
from inferwatch.ui.messages import LookAgain, LookAt
from inferwatch.ui.view import ALL_METRICS, View

LEAST_SPAN_NS = 5 * EVERY_NS // 2
"""A shorter window is extended to this: a rate needs two pages."""
READ_EVERY_S = 2.0
READING = "reading the server's metrics …"
SEVERAL = "several servers are watched: open one first (0, or ( and ))"
NO_PAGE = (
    "no page of metrics at this moment: a server's /metrics is kept every ten seconds "
    "while inferwatch scrapes it"
)


class MetricDetail(Panel):
    """The metric under the cursor: what the server says it is."""

    DEFAULT_CSS = """
    MetricDetail { height: 4; margin-top: 1; }
    """

    _table: MetricTable | None = None

    def show(self, table: MetricTable) -> None:
        self._table = table
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        row = self._table.pointed if self._table is not None else None
        if row is None:
            return ()
        metric = row.metric
        count = len(metric.series)
        kind = metric.kind or "of no type"
        aside = (TextRun(f"{kind}, {counted(count, 'series', 'series')}", "muted"),)
        only = metric.series[0].labels if count == 1 else ""
        labels = row.labels or only
        if count > MOST_UNFOLDED and not labels:
            labels = f"the first {MOST_UNFOLDED} of its series are listed"
        lines = [metric.help or "the server says nothing of it", labels]
        return [
            ruled((TextRun(metric.name, "strong"),), aside, width),
            *(fit((TextRun(f"  {each}", "muted"),), width) for each in lines if each),
        ][:height]


class AllMetricsScreen(WatchScreen, FilteredList):
    """Every metric that a server exposes: help, value, rate and trend."""

    NAME = ALL_METRICS
    LABEL = "All metrics"
    QUESTION = "What else does this server tell?"
    ADVISES = False
    KEYS = (("/", "search: part of a name, of its help or a label; type:histogram"),)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "back", tooltip="Clear the search, else back"),
        SORT_BINDING,
        Binding(
            "slash",
            "filter",
            "search",
            key_display="/",
            tooltip="Search names, helps and labels; or type:gauge rate>0 mean>1",
        ),
        REVERSE_BINDING,
    ]
    DEFAULT_CSS = """
    AllMetricsScreen {
        ReadoutLine { display: none; }
        FilterBar { margin-top: 1; }
        &.-short FilterBar { margin-top: 0; }
        MetricTable { height: 1fr; }
        &.-short MetricDetail { height: 3; margin-top: 0; }
        &.-untouched MetricTable { display: block; }
    }
    """
    AUTO_FOCUS = "MetricTable"

    def __init__(self, feed: Feed, view: View, tabs: Sequence[Tab] = ()) -> None:
        super().__init__(feed, view, tabs)
        self._told: EveryMetrics | None = None
        self._asked: tuple[str, int | None] | None = None
        """Source and window of what is shown."""
        self._asked_ns = 0
        self._asked_s = float("-inf")
        self._reading = False

    def compose_panels(self) -> Iterable[Widget]:
        table = MetricTable()
        yield FilterBar(table.grammar)
        yield table
        yield MetricDetail()

    @property
    def filtered(self) -> MetricTable:
        return self.query_one(MetricTable)

    def show_panels(self, snapshot: Snapshot) -> None:
        """Show the metrics; read them anew if there may be another page."""
        source = _source_of(snapshot, self.view)
        if source is None:
            self._show(None, SEVERAL if self.view.servers else NO_PAGE)
        elif self._is_due(source, snapshot):
            self._reading = True
            self.run_worker(
                self._read(source, snapshot), group="metrics", exit_on_error=False
            )

    def _is_due(self, source: str, snapshot: Snapshot) -> bool:
        if self._reading:
            return False
        if self._asked != (source, snapshot.window.value):
            return True
        told, now_ns = self._told, snapshot.now_ns
        if now_ns == self._asked_ns or monotonic() - self._asked_s < READ_EVERY_S:
            return False
        passed = told is None or now_ns >= told.t_ns + EVERY_NS
        return passed or now_ns < self._asked_ns

    async def _read(self, source: str, snapshot: Snapshot) -> None:
        """Read the pages of the window; the old ones stay on screen meanwhile."""
        now_ns, window_ns = snapshot.now_ns, snapshot.window.value
        if self._asked is None or self._asked[0] != source:
            self._show(None, READING)
        self._asked, self._asked_ns = (source, window_ns), now_ns
        self._asked_s = monotonic()
        start_ns = -1 if window_ns is None else now_ns - max(window_ns, LEAST_SPAN_NS)
        remark = NO_PAGE
        told: EveryMetrics | None = None
        try:
            pages = await self.feed.recall.metrics_pages(start_ns, now_ns, source)
            told = await asyncio.to_thread(every_metric, pages)
        except InferwatchError as error:
            remark = str(error)
        except Exception as error:  # noqa: BLE001  whatever a server may expose
            remark = f"these metrics cannot be shown: {error!r}"
        finally:
            self._reading = False
        if self.is_mounted:
            self._show(told, remark)

    def _show(self, told: EveryMetrics | None, remark: str) -> None:
        self._told = told
        table = self.filtered
        table.remark = "" if told is not None else remark
        table.show(told.metrics if told is not None else ())
        self.show_list()

    def show_list(self) -> None:
        table = self.filtered
        self.query_one(FilterBar).show((), "", table.filter.text, *self._summaries())
        self.query_one(MetricDetail).show(table)

    def _summaries(self) -> tuple[Line, Line]:
        told = self._told
        if told is None:
            return (), ()
        table = self.filtered
        listed = sum(1 for row in table.rows if row.folded)
        count = counted(listed, "metric")
        span = format_round_duration(round((told.t_ns - told.since_ns) / NS_PER_S))
        at = f"{count} at {self.feed.wall_text(told.t_ns)}"
        over = f", {counted(told.pages, 'page')} over {span}" if told.pages > 1 else ""
        lost = f", {told.left_out:,} left out" if told.left_out else ""
        wrong = f", {told.unreadable:,} unreadable" if told.unreadable else ""
        whole = (TextRun(f"{at}{over}, scrape{lost}{wrong} ", "muted"),)
        return whole, (TextRun(f"{at}{lost} ", "muted"),)

    @on(MetricTable.RowHighlighted)
    def _follow(self) -> None:
        self.query_one(MetricDetail).show(self.filtered)

    @on(MetricTable.RowSelected)
    def _fold(self, message: MetricTable.RowSelected) -> None:
        self.filtered.fold(message.key)
        self.show_list()

    def action_close(self) -> None:
        """Clear the search, else go back to where this was opened from."""
        if self.filtered.filter.text:
            self.query_one(FilterBar).clear()
            return
        self.post_message(LookAt(self.view.all_metrics_from))
        self.post_message(LookAgain())


def _source_of(snapshot: Snapshot, view: View) -> str | None:
    """Return the server shown; None where several are, or none is known."""
    if view.source is not None:
        return view.source
    sources = {each.source for each in snapshot.servers}
    sources = sources or {each.source for each in snapshot.endpoints}
    return sources.pop() if len(sources) == 1 else None
