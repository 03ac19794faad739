"""Why was this one slow?"""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from inferwatch.formatting import format_count
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.requests.detail import RequestDetail
from inferwatch.ui.requests.table import RequestScope, RequestTable
from inferwatch.ui.shared import charts
from inferwatch.ui.shared.chart_stack import ChartStack
from inferwatch.ui.shared.counted import counts_only, request_facts
from inferwatch.ui.shared.drawers import COST_KEYS, catalog_keys
from inferwatch.ui.shared.filter_bar import FilterBar
from inferwatch.ui.shared.messages import OpenRequest
from inferwatch.ui.shared.renderables.text import TextRun
from inferwatch.ui.shared.totals import TotalsPanel
from inferwatch.ui.shared.watch_screen import WatchScreen
from inferwatch.ui.shared.welcome import is_untouched

OF_THE_LIST = {"sort", "reverse", "filter", "scope"}
HOW_TO_BEGIN = ": 1 says how to send one, 7 sends a load"


class RequestsScreen(WatchScreen):
    """The live table; where there is room, a preview of the request pointed at."""

    NAME = "requests"
    KEY = "2"
    LABEL = "Requests"
    QUESTION = "Why was this one slow?"
    EXPLAINS = (
        *catalog_keys(
            "request",
            "state prompt_tokens cached_tokens output_tokens max_tokens queue_s "
            "prefill_s ttft_s tpot_s itl_last_s itl_max_s decode_s e2el_s preemptions "
            "reason",
        ),
        *COST_KEYS,
    )
    NEEDS_REQUESTS = True
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
            tooltip="Filter: ttft>1s state:queued prompt>1k, or part of an id",
        ),
        Binding("e", "scope", "all/live", tooltip="List all, live or ended requests"),
        Binding("S", "reverse", "reverse", show=False, tooltip="Reverse the order"),
        Binding(
            "escape",
            "close",
            "clear",
            show=False,
            tooltip="Clear the filter, else the time cursor",
        ),
    ]
    DEFAULT_CSS = """
    RequestsScreen {
        FilterBar { margin-top: 1; }
        &.-short FilterBar { margin-top: 0; }
        RequestTable { height: 2fr; }
        ChartStack { display: none; height: 1fr; }
        &.-tall ChartStack, &.-counted ChartStack { display: block; }
        &.-counted FilterBar, &.-counted RequestTable, &.-counted RequestDetail {
            display: none;
        }
        #counted { display: none; height: 5; margin-top: 1; }
        &.-counted #counted { display: block; }
        &.-short #counted { margin-top: 0; }
    }
    """

    AUTO_FOCUS = "RequestTable"
    """A hidden field can hold the focus, and would swallow every key."""

    _shown: Snapshot | None = None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing to sort or to filter where none is told singly."""
        if action in OF_THE_LIST and self.has_class("-counted"):
            return False
        return super().check_action(action, parameters)

    def compose_panels(self) -> Iterable[Widget]:
        """What is listed, the table, the detail."""
        table = RequestTable()
        yield FilterBar(table.grammar, scope_key="e")
        yield table
        yield RequestDetail()
        yield TotalsPanel(id="counted")
        yield ChartStack((charts.TTFT, charts.BATCH))

    def show_panels(self, shown: Snapshot) -> None:
        """List, and bring the opened request up to date."""
        self._shown = shown
        if counts_only(shown) != self.has_class("-counted"):
            self.set_class(counts_only(shown), "-counted")
            self.refresh_bindings()
        if self.has_class("-counted"):
            title = f"requests of {shown.window.span}"
            aside = "counted by the server, none told singly"
            counted = self.query_one("#counted", TotalsPanel)
            counted.show(title, aside, request_facts(shown))
            return
        table = self.query_one(RequestTable)
        table.how_to_begin = HOW_TO_BEGIN if is_untouched(self.feed, shown) else ""
        table.seen = shown.requests_seen > 0
        if self.view.slowest_first:
            self.view.slowest_first = False
            table.put_slowest_first()
        table.show(shown.requests, shown.now_ns)
        self._show_filter()
        self._preview(shown)

    def _show_filter(self) -> None:
        if self._shown is None:
            return
        table = self.query_one(RequestTable)
        known, evicted = len(self._shown.requests), self._shown.requests_evicted
        listed, every = _count(len(table.rows)), _count(known + evicted)
        told = f"{listed} of {every} requests"
        if not known and self._shown.requests_seen:
            told = "requests come with the next look"
        elif evicted:
            told = f"{listed} of the latest {_count(known)} of {every} requests"
        chips = [(scope.value, f" {scope.value} ") for scope in RequestScope]
        bar = self.query_one(FilterBar)
        told_run = TextRun(f"{told} ", "muted")
        bar.show(chips, table.scope, table.filter.text, (told_run,))

    def _preview(self, shown: Snapshot) -> None:
        """The request pointed at, where there is room."""
        detail = self.query_one(RequestDetail)
        row = self.query_one(RequestTable).pointed if self.has_class("-tall") else None
        detail.display = row is not None
        if row is not None:
            detail.show(row, self.feed.wall_text(row.arrived_ns), shown.now_ns)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.query_one(RequestTable).sort_by_next()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.query_one(RequestTable).reverse()

    def action_scope(self) -> None:
        """List all requests, live ones or ended ones."""
        scopes = list(RequestScope)
        here = scopes.index(self.query_one(RequestTable).scope)
        self._list_within(scopes[(here + 1) % len(scopes)])

    def action_filter(self) -> None:
        """Ask for a filter."""
        self.query_one(FilterBar).ask()

    def action_open_request(self) -> None:
        """The request pointed at, on a screen of its own."""
        self.query_one(RequestTable).action_open()

    def action_close(self) -> None:
        """Clear the filter, else let go of the time cursor."""
        if self.query_one(RequestTable).filter.text:
            self.query_one(FilterBar).clear()
        else:
            self.action_release()

    @on(FilterBar.Closed)
    def _leave_filter(self) -> None:
        self.query_one(RequestTable).focus()

    @on(FilterBar.FilterChanged)
    def _match(self, message: FilterBar.FilterChanged) -> None:
        self.query_one(RequestTable).narrow(message.filter)
        self._show_filter()

    @on(FilterBar.ScopeChosen)
    def _choose_scope(self, message: FilterBar.ScopeChosen) -> None:
        self._list_within(RequestScope(message.scope))

    def _list_within(self, scope: RequestScope) -> None:
        self.query_one(RequestTable).within(scope)
        self._show_filter()

    @on(RequestTable.RowHighlighted)
    def _follow(self) -> None:
        if self._shown is not None:
            self._preview(self._shown)

    @on(RequestTable.RowSelected)
    def _open(self, message: RequestTable.RowSelected) -> None:
        self.post_message(OpenRequest(message.key))


def _count(count: int) -> str:
    return format_count(count).strip()
