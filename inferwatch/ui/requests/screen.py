"""Why was this one slow?"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from inferwatch.formatting import (
    counted,
    format_count,
    format_duration,
    format_durations,
)
from inferwatch.metrics.number import numbers
from inferwatch.metrics.requests.request_groups import GroupBy, RequestGroup
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.frame.welcome import is_untouched
from inferwatch.ui.kit.column_chooser import ColumnChooser
from inferwatch.ui.kit.filter_bar import FilterBar
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import Phase, waterfall
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join, ruled
from inferwatch.ui.messages import OpenRequest
from inferwatch.ui.requests.groups import GroupTable
from inferwatch.ui.requests.phases import PHASE_GLYPHS, STATES, phases
from inferwatch.ui.requests.table import RequestScope, RequestTable
from inferwatch.ui.widgets import charts
from inferwatch.ui.widgets.chart_stack import ChartStack
from inferwatch.ui.widgets.counted import counts_only, request_facts
from inferwatch.ui.widgets.drawers import COST_NUMBERS
from inferwatch.ui.widgets.slow_line import SlowLine
from inferwatch.ui.widgets.totals import TotalsPanel


class RequestDetail(Panel):
    """The phases and facts of the request pointed at, as last known."""

    DEFAULT_CSS = """
    RequestDetail { height: 7; display: none; background: $surface; }
    """

    _row: RequestRow | None = None
    _arrived = ""
    _phases: Sequence[Phase] = ()

    def show(self, row: RequestRow, arrived: str, now_ns: int) -> None:
        """Take a request, and when it arrived."""
        self._row, self._arrived = row, arrived
        self._phases = phases(row, now_ns)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Heading, waterfall with its legend, facts."""
        del height
        if self._row is None:
            return ()
        row = self._row
        title = (
            TextRun("request ", "muted"),
            TextRun(row.name, "strong"),
        )
        more = (
            TextRun("enter", "accent", "screen.open_request"),
            TextRun(" why it was slow", "muted", "screen.open_request"),
        )
        bar = (TextRun("  "), *waterfall(self._phases, max(width - 4, 1), PHASE_GLYPHS))
        rows = (_legend(self._phases), (), *_facts(row, self._arrived))
        return [
            ruled(title, more, width),
            bar,
            *(fit((TextRun("  "), *line), width) for line in rows),
        ]


def _legend(spent: Sequence[Phase]) -> Line:
    texts = format_durations(seconds for _, seconds, _ in spent)
    return join(
        [
            (
                TextRun(f"{glyph} ", ink),
                TextRun(f"{name} ", "muted"),
                TextRun(text),
            )
            for glyph, (name, _, ink), text in zip(
                PHASE_GLYPHS, spent, texts, strict=True
            )
        ],
        "   ",
    )


def _facts(row: RequestRow, arrived: str) -> list[Line]:
    glyph, ink = STATES[row.state]
    state = (
        TextRun(f"{glyph} {row.state.value}", ink),
        TextRun(f" {row.reason or ''}", "muted"),
    )
    return [
        join(
            (state, _fact("arrived", arrived), _fact("internal id", row.request_id)),
            "   ",
        ),
        join(
            (
                _fact("prompt", _known_count(row.prompt_tokens)),
                _fact("cached", _known_count(row.cached_tokens)),
                _fact("output", _output(row)),
                _fact("temperature", _plain(row.temperature)),
                _fact("preemptions", str(row.preemptions)),
            ),
            "   ",
        ),
        join(
            (
                _fact("TTFT", format_duration(row.ttft_s)),
                _fact("TPOT", format_duration(row.tpot_s)),
                _fact("ITL last", format_duration(row.itl_last_s)),
                _fact("ITL max", format_duration(row.itl_max_s)),
                _fact("E2EL", format_duration(row.e2el_s)),
            ),
            "  ",
        ),
    ]


def _output(row: RequestRow) -> str:
    return f"{_known_count(row.output_tokens)} of {_known_count(row.max_tokens)}"


def _known_count(count: int | None) -> str:
    return format_count(count).strip()


def _fact(label: str, value: str) -> Line:
    return (TextRun(f"{label} ", "muted"), TextRun(value))


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


OF_THE_LIST = {"sort", "reverse", "filter", "scope", "columns", "group"}
FIND = (
    "slower than 2s",
    "prompt>1k",
    "state:queued",
    "cause:kv",
    "or part of an X-Request-Id",
    "tab completes",
    "tpot>20ms",
    "late:prefill",
    "model: class: header: priority=1",
    "longer than 1k",
    "reason:abort",
)
"""What can be looked for, the most useful first."""
HOW_TO_BEGIN = ": 1 says how to send one, 7 sends a load"


class RequestsScreen(WatchScreen):
    """The live table; where there is room, a preview of the request pointed at."""

    NAME = "requests"
    KEY = "2"
    LABEL = "Requests"
    QUESTION = "Why was this one slow?"
    EXPLAINS = (
        *numbers(
            RequestRow.state,
            RequestRow.prompt_tokens,
            RequestRow.cached_tokens,
            RequestRow.output_tokens,
            RequestRow.max_tokens,
            RequestRow.queue_s,
            RequestRow.prefill_s,
            RequestRow.ttft_s,
            RequestRow.tpot_s,
            RequestRow.itl_last_s,
            RequestRow.itl_max_s,
            RequestRow.decode_s,
            RequestRow.e2el_s,
            RequestRow.preemptions,
            RequestRow.reason,
            RequestRow.arrived_ns,
            RequestRow.temperature,
            RequestRow.cause,
            RequestRow.itl_cause,
            RequestRow.lora,
            RequestRow.priority,
            RequestRow.class_name,
            RequestRow.header,
            RequestRow.missed,
        ),
        *numbers(
            RequestGroup.requests,
            RequestGroup.live,
            RequestGroup.ttft_s,
            RequestGroup.tpot_p50_s,
            RequestGroup.itl_max_s,
            RequestGroup.cached_share,
            RequestGroup.failed,
            RequestGroup.cause,
        ),
        *COST_NUMBERS,
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
            tooltip="Filter: slower than 2s, prompt>1k, cause:kv, or part of an id",
        ),
        Binding("c", "columns", "columns", tooltip="Choose what columns are shown"),
        Binding(
            "G",
            "group",
            "group",
            tooltip="Group by prompt length, model, priority, class, header or cause",
        ),
        Binding("e", "scope", "all/live", tooltip="List all, live or ended requests"),
        Binding("S", "reverse", "reverse", show=False, tooltip="Reverse the order"),
        Binding(
            "W",
            "worst",
            "worst",
            show=False,
            tooltip="Why the slowest request of the window was slow",
        ),
        Binding(
            "escape",
            "close",
            "clear",
            show=False,
            tooltip="Back to all groups, clear the filter, end grouping, cursor off",
        ),
    ]
    DEFAULT_CSS = """
    RequestsScreen {
        &.-short SlowLine { display: none; }
        RequestTable { height: 2fr; }
        ChartStack { display: none; height: 1fr; }
        &.-tall ChartStack, &.-counted ChartStack { display: block; }
        &.-counted FilterBar, &.-counted RequestDetail { display: none; }
        #counted { display: none; height: 5; }
        &.-counted #counted { display: block; }
    }
    """

    AUTO_FOCUS = "RequestTable"
    """A hidden field can hold the focus, and would swallow every key."""

    WORST_KEY = "W"
    _shown: Snapshot | None = None
    _by: GroupBy | None = None
    """What requests are grouped by; one group may be listed."""
    _grouped = False
    """The groups are in sight, not requests. A class of the screen would style all of
    it anew."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing to sort or to filter where none is told singly."""
        if action in OF_THE_LIST and self.has_class("-counted"):
            return False
        return super().check_action(action, parameters)

    def compose_panels(self) -> Iterable[Widget]:
        """What is listed, the table, the detail."""
        table = RequestTable()
        yield SlowLine(self.WORST_KEY)
        yield FilterBar(table.grammar, scope_key="e", examples=FIND)
        yield table
        yield GroupTable()
        yield RequestDetail()
        yield TotalsPanel(id="counted")
        yield ChartStack((charts.TTFT, charts.BATCH))

    def show_panels(self, shown: Snapshot) -> None:
        """List, and bring the opened request up to date."""
        self._shown = shown
        if counts_only(shown) != self.has_class("-counted"):
            self.set_class(counts_only(shown), "-counted")
            self._show_tables()
            self.refresh_bindings()
        if self.has_class("-counted"):
            title = f"requests of {shown.window.span}"
            aside = "counted by the server, none told singly"
            totals = self.query_one("#counted", TotalsPanel)
            totals.show(title, aside, request_facts(shown))
            return
        table = self.query_one(RequestTable)
        table.how_to_begin = HOW_TO_BEGIN if is_untouched(self.feed, shown) else ""
        table.seen = shown.requests_seen > 0
        if self.view.slowest_first:
            self.view.slowest_first = False
            self._group_by(None)
            table.put_slowest_first()
        models = {each.source: each.model for each in shown.engines}
        table.know(models, self.feed.wall_text)
        if table.chosen != self.view.request_columns:
            table.choose(self.view.request_columns)
        table.show(shown.requests, shown.now_ns)
        self._show_list()
        self._show_chooser()

    def _show_list(self) -> None:
        """Whatever hangs on which requests are listed."""
        if self._shown is None:
            return
        if self._by is not None:
            groups = self.query_one(RequestTable).groups(self._by)
            self.query_one(GroupTable).show_rows(groups)
        self._show_filter(self._shown)
        self._preview(self._shown)

    def _show_filter(self, shown: Snapshot) -> None:
        table = self.query_one(RequestTable)
        known, evicted = len(shown.requests), shown.requests_evicted
        listed, every = _count(len(table.rows)), _count(known + evicted)
        told = (f"{listed} of {every} requests", f"{listed} of {every}")
        if self._grouped:
            count = len(self.query_one(GroupTable).rows)
            groups = counted(count, "group")
            told = (f"{groups} of the {listed} listed", f"{groups} of {listed} listed")
        elif not known and shown.requests_seen:
            told = ("requests come with the next look", "")
        elif evicted:
            of_latest = f"{listed} of the latest {_count(known)}"
            told = (f"{of_latest} of {every} requests", of_latest)
        if not self._grouped and (sent := _as_sent(table.rows)):
            told = (f"{told[0]}, {sent}", f"{told[1]}, {sent}")
        chips = [(scope.value, f" {scope.value} ") for scope in RequestScope]
        whole, short = (TextRun(f"{each} ", "muted") for each in told)
        without, group = self._told_without_room(table), self._told_group(table)
        lines: list[Line] = [(*without, whole), (*without, short), (short,)]
        bar = self.query_one(FilterBar)
        bar.show(chips, table.scope, table.filter.text, *lines, group=group)

    def _told_group(self, table: RequestTable) -> Line:
        if self._by is None:
            return ()
        click = "screen.group"
        if table.group is None:
            said = TextRun(f"by {self._by.value}", "muted", click)
        else:
            said = TextRun(f"{self._by.value} {table.group[1]}", "accent", click)
        return (TextRun("   G ", "accent", click), said)

    def _told_without_room(self, table: RequestTable) -> Line:
        """Chosen columns that are not there: the table is too narrow."""
        names = [each.name for each in table.without_room]
        if not names or self._grouped:
            return ()
        more = f" +{len(names) - 1}" if len(names) > 1 else ""
        return (TextRun(f"no room for {names[0]}{more}  ", "warn", "screen.columns"),)

    def _preview(self, shown: Snapshot) -> None:
        """The request pointed at, where there is room."""
        detail = self.query_one(RequestDetail)
        room = self.has_class("-tall") and not self._grouped
        row = self.query_one(RequestTable).pointed if room else None
        detail.display = row is not None
        if row is not None:
            detail.show(row, self.feed.wall_text(row.arrived_ns), shown.now_ns)

    @property
    def _table(self) -> RequestTable | GroupTable:
        """The one in sight."""
        if self._grouped:
            return self.query_one(GroupTable)
        return self.query_one(RequestTable)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._table.sort_by_next()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._table.reverse()

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
        """Back to the groups, clear the filter, end grouping, or let the cursor go."""
        table = self.query_one(RequestTable)
        if table.group is not None:
            self._open_group(None)
        elif table.filter.text:
            self.query_one(FilterBar).clear()
        elif self._by is not None:
            self._group_by(None)
        else:
            self.action_release()

    @on(FilterBar.FilterClosed)
    def _leave_filter(self) -> None:
        self._table.focus()

    @on(FilterBar.FilterChanged)
    def _match(self, message: FilterBar.FilterChanged) -> None:
        self.query_one(RequestTable).narrow(message.filter)
        self._show_list()

    @on(FilterBar.ScopeChosen)
    def _choose_scope(self, message: FilterBar.ScopeChosen) -> None:
        self._list_within(RequestScope(message.scope))

    def _list_within(self, scope: RequestScope) -> None:
        self.query_one(RequestTable).within(scope)
        self._show_list()

    @on(RequestTable.RowHighlighted)
    def _follow(self) -> None:
        if self._shown is not None:
            self._preview(self._shown)

    @on(RequestTable.RowSelected)
    def _open(self, message: RequestTable.RowSelected) -> None:
        if self._by is not None and self._grouped:
            self._open_group((self._by, message.key))
        else:
            self.post_message(OpenRequest(message.key))

    # Groups.

    def action_group(self) -> None:
        """By the next thing that requests tell, or one by one again."""
        ways = list(GroupBy)
        table = self.query_one(RequestTable)
        next_ones = ways[ways.index(self._by) + 1 :] if self._by is not None else ways
        self._group_by(next((by for by in next_ones if table.tells(by)), None))

    def _group_by(self, by: GroupBy | None) -> None:
        if by is not self._by:
            self.query_one(GroupTable).to_first()
        self._by = by
        self._open_group(None)

    def _open_group(self, group: tuple[GroupBy, str] | None) -> None:
        """List one group, or show all of them, or requests where there are none."""
        table = self.query_one(RequestTable)
        if group != table.group:
            table.only(group)
        self._close_chooser()
        self._grouped = self._by is not None and group is None
        self._show_tables()
        self._show_list()

    def _show_tables(self) -> None:
        """One of them, or none; who comes takes the keys before the other goes."""
        requests, groups = self.query_one(RequestTable), self.query_one(GroupTable)
        here, away = (groups, requests) if self._grouped else (requests, groups)
        here.display = not self.has_class("-counted")
        if away.has_focus:
            self.set_focus(here)
        away.display = False

    # Columns.

    def action_columns(self) -> None:
        """Choose columns under the table, or be done with that."""
        if self.query(ColumnChooser):
            self._close_chooser()
            return
        if self._grouped:
            self.notify("columns are chosen for the list: esc goes back to it")
            return
        chooser = ColumnChooser(self.query_one(RequestTable).columns)
        self.mount(chooser)
        chooser.focus()
        self._show_chooser()

    def _show_chooser(self) -> None:
        table = self.query_one(RequestTable)
        for chooser in self.query(ColumnChooser):
            chooser.show(
                [column.key for column, _ in table.sized_at(table.size.width)],
                [column.key for column in table.without_room],
                default=table.chosen is None,
            )

    @on(ColumnChooser.ColumnsChosen)
    def _choose(self, message: ColumnChooser.ColumnsChosen) -> None:
        self.view.request_columns = message.columns
        self.query_one(RequestTable).choose(message.columns)
        self._show_chooser()
        self._show_list()

    @on(ColumnChooser.ChooserClosed)
    def _close_chooser(self) -> None:
        if self.query(ColumnChooser):
            self.query(ColumnChooser).remove()
            self._table.focus()


def _as_sent(rows: Sequence[RequestRow]) -> str:
    """How many requests the listed are, where some are sequences of one."""
    if all(row.sequence is None for row in rows):
        return ""
    return f"{_count(len({row.sent_key for row in rows}))} as sent"


def _count(count: int) -> str:
    return format_count(count).strip()
