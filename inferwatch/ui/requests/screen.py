"""Why was this one slow?"""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.requests.detail import RequestDetail
from inferwatch.ui.requests.filter_line import FilterLine
from inferwatch.ui.requests.order import Order, Scope
from inferwatch.ui.requests.table import RequestTable
from inferwatch.ui.shared.help_drawer import COST_KEYS, catalog_keys
from inferwatch.ui.shared.watch_screen import WatchScreen


class RequestsScreen(WatchScreen):
    """The live table; one request can be opened and stays open while it lives."""

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
    KEYS = (
        ("↑ ↓", "another request"),
        ("enter", "its phases; esc closes"),
        ("s", "sort by the next column; or click a title"),
        ("S", "the other way round"),
        ("e", "all, live or ended ones"),
        ("/", "only those whose state, id or reason has these words"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "sort", tooltip="Sort by the next column"),
        Binding("S", "reverse", "reverse", show=False),
        Binding("e", "scope", "scope", show=False, tooltip="All, live or ended ones"),
        Binding("slash", "filter", "filter", show=False),
        Binding("escape", "close", "close", show=False),
        Binding("left", "move(-1)", "earlier", show=False),
    ]
    DEFAULT_CSS = """
    RequestsScreen {
        Input { display: none; height: 1; background: $surface; }
        Input.-textual-compact { padding: 0 1 !important; }
        FilterLine { margin-top: 1; }
        &.-short FilterLine { margin-top: 0; }
    }
    """

    AUTO_FOCUS = "RequestTable"
    """A hidden field can hold the focus, and would swallow every key."""

    _order = Order()
    _opened: str | None = None
    _shown: Snapshot | None = None

    def compose_panels(self) -> Iterable[Widget]:
        """What is listed, the table, the detail."""
        yield FilterLine()
        yield Input(
            placeholder="words in state, id or reason; enter keeps, esc clears",
            compact=True,
        )
        yield RequestTable()
        yield RequestDetail()

    def show_panels(self, shown: Snapshot) -> None:
        """List, and bring the opened request up to date."""
        self._shown = shown
        rows = self._order.arrange(shown.requests)
        self.query_one(FilterLine).show(
            self._order, len(rows), len(shown.requests), shown.requests_evicted
        )
        self.query_one(RequestTable).show(rows, self._order, shown.now_ns)
        self._show_opened(shown)

    def _show_opened(self, shown: Snapshot) -> None:
        row = next((row for row in shown.requests if row.key == self._opened), None)
        detail = self.query_one(RequestDetail)
        detail.display = self._opened is not None
        if row is not None:
            detail.show(row, self.feed.wall_text(row.arrived_ns), shown.now_ns)

    def _list(self, order: Order) -> None:
        self._order = order
        if self._shown is not None:
            self.show_panels(self._shown)

    def action_sort(self) -> None:
        """By the next column."""
        self._list(self._order.next_column())

    def action_reverse(self) -> None:
        """The other way round."""
        self._list(self._order.by(self._order.column))

    def action_scope(self) -> None:
        """All, live or ended."""
        self._list(self._order.next_scope())

    def action_choose_scope(self, scope: str) -> None:
        """One of them."""
        self._list(self._order.within(Scope(scope)))

    def action_filter(self) -> None:
        """Ask for words."""
        self.query_one(Input).display = True
        self.query_one(Input).focus()

    def action_close(self) -> None:
        """Close the filter, else the detail, else let go of the time cursor."""
        field = self.query_one(Input)
        if field.display:
            field.clear()
            self._leave_filter()
        elif self._opened is not None:
            self._open(None)
        else:
            self.action_release()

    def _leave_filter(self) -> None:
        self.query_one(Input).display = False
        self.query_one(RequestTable).focus()

    @on(Input.Changed)
    def _match(self, message: Input.Changed) -> None:
        self._list(self._order.matching(message.value))

    @on(Input.Submitted)
    def _keep(self) -> None:
        self._leave_filter()

    @on(FilterLine.FilterAsked)
    def _ask(self) -> None:
        self.action_filter()

    @on(RequestTable.SortAsked)
    def _sort(self, message: RequestTable.SortAsked) -> None:
        self._list(self._order.by(message.column))

    @on(RequestTable.Pointed)
    def _follow(self, message: RequestTable.Pointed) -> None:
        if self._opened is not None:
            self._open(message.key)

    @on(RequestTable.Opened)
    def _opened_by(self, message: RequestTable.Opened) -> None:
        self._open(message.key)

    def _open(self, key: str | None) -> None:
        self._opened = key
        if self._shown is not None:
            self._show_opened(self._shown)
