"""Which engine is in trouble?"""

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from inferwatch.formatting import counted
from inferwatch.metrics.fleet import Trouble, servers_of, totals_of
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.fleet.detail import ServerDetail
from inferwatch.ui.fleet.table import MARKS, FleetScope, FleetTable, FleetTotalsLine
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.kit.filter_bar import FilterBar
from inferwatch.ui.kit.renderables.text import Line, TextRun, join
from inferwatch.ui.messages import LookAt
from inferwatch.ui.widgets import charts
from inferwatch.ui.widgets.chart_stack import CHART_BINDINGS, CHART_KEYS, ChartStack
from inferwatch.ui.widgets.drawers import COST_KEYS, catalog_keys

TOLD = (
    (Trouble.LOST, "lost"),
    (Trouble.STANDS_OUT, "standing out"),
    (Trouble.SLOW, "slow"),
    (Trouble.RESTARTED, "restarted"),
    (Trouble.ASKED, "not heard of yet"),
)
LEAST_CHARTS = 9
"""Rows; with fewer to spare there are no charts."""
AROUND_TABLE = 12
"""Rows that stand above and below it on every screen."""
DETAIL = 6
"""Rows of the server under the cursor."""


class FleetScreen(WatchScreen):
    """A row a server, all together below; one of them can be looked into."""

    NAME = "fleet"
    KEY = "0"
    LABEL = "Fleet"
    QUESTION = "Which engine is in trouble?"
    OF_ALL = True
    EXPLAINS = (
        *catalog_keys(
            "flow",
            "running waiting kv_usage output_tokens_per_s arrivals_per_s failed "
            "preemptions",
        ),
        "ttft_s",
        "itl_s",
        *COST_KEYS,
    )
    KEYS = (
        *CHART_KEYS,
        ("0", "back here from the screens of one server; esc, too"),
        ("( )", "the server before, the next one, on those screens"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "s",
            "sort",
            "sort",
            tooltip="Sort by the next column; clicking a title works too",
        ),
        Binding(
            "slash",
            "filter",
            "filter",
            key_display="/",
            tooltip="Filter: waiting>5 state:lost kv>90 p99>1s, or part of a name",
        ),
        Binding("e", "scope", "all/trouble", tooltip="List all, or those in trouble"),
        Binding("S", "reverse", "reverse", show=False, tooltip="Reverse the order"),
        Binding(
            "escape",
            "close",
            "close",
            show=False,
            tooltip="Clear the filter, else remove the time cursor",
        ),
        *CHART_BINDINGS,
    ]
    DEFAULT_CSS = """
    FleetScreen {
        FilterBar { margin-top: 1; }
        &.-short FilterBar { margin-top: 0; }
        FleetTable { height: 1fr; }
        FleetTotalsLine { background: $surface; }
        ChartStack { height: 1fr; margin-top: 1; display: none; }
        &.-charted ChartStack { display: block; }
        ServerDetail { display: none; }
        &.-detailed ServerDetail { display: block; }
    }
    """
    AUTO_FOCUS = "FleetTable"

    _listed = 0

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No chart, no key for it."""
        if action == "chart":
            return self.has_class("-charted")
        return super().check_action(action, parameters)

    def compose_panels(self) -> Iterable[Widget]:
        """What is listed, the servers, all together, the one pointed at."""
        table = FleetTable()
        yield FilterBar(table.grammar, scope_key="e")
        yield table
        yield FleetTotalsLine()
        yield ServerDetail()
        yield ChartStack((charts.TTFT, charts.WAITING, charts.OUTPUT))

    def fit_height(self) -> None:
        """The table takes the rows it needs; charts what is left, if that is enough."""
        super().fit_height()
        rows = max(self._listed, 2) + 2
        self.query_one(FleetTable).styles.max_height = rows
        spare = self.size.height - AROUND_TABLE - rows
        self.set_class(spare >= DETAIL, "-detailed")
        charted = spare - DETAIL >= LEAST_CHARTS
        if charted != self.has_class("-charted"):
            self.set_class(charted, "-charted")
            self.refresh_bindings()
        for stack in self.query(ChartStack):
            stack.fit(only_one=spare - DETAIL < 2 * LEAST_CHARTS)

    def show_panels(self, shown: Snapshot) -> None:
        """List the servers, and what they come to."""
        servers = servers_of(shown)
        table = self.query_one(FleetTable)
        table.show(servers)
        if len(table.rows) != self._listed:
            self._listed = len(table.rows)
            self.fit_height()
        together = totals_of(shown, servers)
        self.query_one(FleetTotalsLine).show(together, table.columns)
        counts = Counter(each.trouble for each in servers)
        told: list[Line] = [(TextRun(counted(len(servers), "server"), "muted"),)]
        for trouble, word in TOLD:
            if counts[trouble]:
                told.append((TextRun(f"{counts[trouble]} {word}", MARKS[trouble][1]),))
        self._told = (*join(told), TextRun(" "))
        self._show_filter()
        self._show_pointed()

    _told: Line = ()

    def _show_filter(self) -> None:
        table = self.query_one(FleetTable)
        chips = [(scope.value, f" {scope.value} ") for scope in FleetScope]
        bar = self.query_one(FilterBar)
        bar.show(chips, table.scope, table.filter.text, self._told)

    def _show_pointed(self) -> None:
        row = self.query_one(FleetTable).pointed
        self.query_one(ServerDetail).show(row.server if row is not None else None)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.query_one(FleetTable).sort_by_next()
        self._show_pointed()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.query_one(FleetTable).reverse()

    def action_scope(self) -> None:
        """All servers, or those in trouble."""
        scopes = list(FleetScope)
        here = scopes.index(self.query_one(FleetTable).scope)
        self._list_within(scopes[(here + 1) % len(scopes)])

    def action_filter(self) -> None:
        """Ask for a filter."""
        self.query_one(FilterBar).ask()

    def action_close(self) -> None:
        """Clear the filter, else let go of the time cursor."""
        if self.query_one(FleetTable).filter.text:
            self.query_one(FilterBar).clear()
        else:
            self.action_release()

    def action_look_into(self) -> None:
        """All screens of the server under the cursor."""
        self.query_one(FleetTable).action_open()

    @on(FilterBar.Closed)
    def _leave_filter(self) -> None:
        self.query_one(FleetTable).focus()

    @on(FilterBar.FilterChanged)
    def _match(self, message: FilterBar.FilterChanged) -> None:
        self.query_one(FleetTable).narrow(message.filter)
        self._show_filter()
        self._show_pointed()

    @on(FilterBar.ScopeChosen)
    def _choose_scope(self, message: FilterBar.ScopeChosen) -> None:
        self._list_within(FleetScope(message.scope))

    def _list_within(self, scope: FleetScope) -> None:
        self.query_one(FleetTable).within(scope)
        self._show_filter()
        self._show_pointed()

    @on(FleetTable.RowHighlighted)
    def _follow(self) -> None:
        self._show_pointed()

    @on(FleetTable.RowSelected)
    def _look_into(self, message: FleetTable.RowSelected) -> None:
        row = self.query_one(FleetTable).find(message.key)
        if row is not None:
            self.view.source = row.server.state.source
            self.post_message(LookAt("overview"))
