"""The requests screen: a filterable, groupable table of requests."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    counted,
    format_count,
    format_duration,
    format_durations,
)
from inferwatch.metrics.breakdown.tracker import EARLIER
from inferwatch.metrics.breakdown.view import (
    Breakdown,
    BreakdownBucket,
    BreakdownPart,
)
from inferwatch.metrics.number import numbers
from inferwatch.metrics.requests.group_names import OTHERS
from inferwatch.metrics.requests.refusals import of_requests, refused_count
from inferwatch.metrics.requests.request_groups import GroupBy, RequestGroup
from inferwatch.metrics.requests.request_row import RequestRow
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.tenants.view import Tenant, Tenants
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.frame.welcome import is_untouched
from inferwatch.ui.kit.column_chooser import ColumnChooser
from inferwatch.ui.kit.filter_bar import (
    REVERSE_BINDING,
    SORT_BINDING,
    FilterBar,
    FilteredList,
)
from inferwatch.ui.kit.lookup import widgets_of
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.bars import Phase, waterfall
from inferwatch.ui.kit.renderables.text import Line, TextRun, fit, join, labelled, ruled
from inferwatch.ui.messages import LookAgain, LookAt, OpenRequest, OpenStep
from inferwatch.ui.request.phases import PHASE_GLYPHS, PHASE_INKS, STATES, phases
from inferwatch.ui.requests.breakdown import BreakdownPanel, BucketTable
from inferwatch.ui.requests.table import GroupTable, RequestScope, RequestTable
from inferwatch.ui.requests.tenants_drawer import TenantsDrawer
from inferwatch.ui.widgets import charts
from inferwatch.ui.widgets.counter_facts import (
    counts_only,
    refusal_facts,
    request_facts,
)
from inferwatch.ui.widgets.help_drawer import COST_NUMBERS
from inferwatch.ui.widgets.slow_line import SlowLine
from inferwatch.ui.widgets.time_chart import ChartStack
from inferwatch.ui.widgets.totals import TotalsPanel


class RequestDetail(Panel):
    """Phases and facts of the request under the cursor."""

    DEFAULT_CSS = """
    RequestDetail { height: 7; display: none; background: $surface; }
    """

    _row: RequestRow | None = None
    _arrived = ""
    _phases: Sequence[Phase] = ()

    def show(self, row: RequestRow, arrived: str, now_ns: int) -> None:
        self._row, self._arrived = row, arrived
        self._phases = phases(row, now_ns)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
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


class MeanPhases(Panel):
    """The mean phases of a server's requests, drawn like those of one request."""

    DEFAULT_CSS = """
    MeanPhases { height: 3; display: none; }
    """

    _phases: Sequence[Phase] = ()
    _span = ""

    def show(self, snapshot: Snapshot) -> None:
        self._phases = [
            (name, seconds, PHASE_INKS[name])
            for name, seconds in snapshot.server_counts.phases_s
        ]
        self._span = snapshot.window.span
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        if not self._phases:
            return ()
        title = (TextRun(f"mean request of {self._span}", "strong"),)
        aside = (TextRun("means of scraped histograms", "muted"),)
        bar = (TextRun("  "), *waterfall(self._phases, max(width - 4, 1), PHASE_GLYPHS))
        legend = (TextRun("  "), *_legend(self._phases))
        return [ruled(title, aside, width), bar, fit(legend, width)]


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
            (
                state,
                labelled("arrived", arrived),
                labelled("internal id", row.request_id),
            ),
            "   ",
        ),
        join(
            (
                labelled("prompt", _known_count(row.prompt_tokens)),
                labelled("cached", _known_count(row.cached_tokens)),
                labelled("output", _output(row)),
                labelled("temperature", _plain(row.temperature)),
                labelled("preemptions", str(row.preemptions)),
            ),
            "   ",
        ),
        join(
            (
                labelled("TTFT", format_duration(row.ttft_s)),
                labelled("TPOT", format_duration(row.tpot_s)),
                labelled("ITL last", format_duration(row.itl_last_s)),
                labelled("ITL max", format_duration(row.itl_max_s)),
                labelled("E2EL", format_duration(row.e2el_s)),
            ),
            "  ",
        ),
    ]


def _output(row: RequestRow) -> str:
    return f"{_known_count(row.output_tokens)} of {_known_count(row.max_tokens)}"


def _known_count(count: int | None) -> str:
    return format_count(count).strip()


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


class RequestsAspect(StrEnum):
    """What the screen shows of its requests; a key goes from one to the next."""

    LIST = "list"
    TIME = "where the time went"


OF_THE_LIST = {"sort", "reverse", "filter", "scope", "columns", "group"}
NOT_OF_BUCKETS = {"filter", "scope", "columns", "steps", "worst"}
"""Keys of the list alone."""
ROUNDED_NS = 1_000
MOST_REFUSED = 4
"""Kinds of refused requests that are listed."""
"""More than an end loses as a sum of durations; no step is this short."""
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
"""Examples of filters, the most useful first."""
HOW_TO_BEGIN = ": 1 says how to send one, 7 sends a load"


class RequestsScreen(WatchScreen, FilteredList):
    """The live table of requests, with a preview if there is room."""

    NAME = "requests"
    KEY = "2"
    LABEL = "Requests"
    QUESTION = "Why was this one slow?"
    EXPLAINS = (
        *numbers(
            ServerCounts.times_s,
            ServerCounts.phases_s,
            RequestRow.state,
            RequestRow.prompt_tokens,
            RequestRow.cached_tokens,
            RequestRow.output_tokens,
            RequestRow.max_tokens,
            RequestRow.thinking_tokens,
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
            RequestGroup.output_tokens,
            RequestGroup.cut_share,
            RequestGroup.thinking_share,
            RequestGroup.failed,
            RequestGroup.cause,
            Flow.refused,
        ),
        *numbers(
            Breakdown.requests,
            Breakdown.total_ns,
            Breakdown.left_out,
            Breakdown.detokenised_s,
            BreakdownPart.phase,
            BreakdownPart.cause,
            BreakdownPart.total_ns,
            BreakdownPart.share,
            BreakdownPart.took_s,
            BreakdownBucket.dimension,
            BreakdownBucket.name,
            BreakdownBucket.requests,
            BreakdownBucket.total_ns,
            BreakdownBucket.e2el_s,
            BreakdownBucket.parts,
        ),
        *COST_NUMBERS,
        *numbers(
            Tenant.requests,
            Tenant.prompt_tokens,
            Tenant.output_tokens,
            Tenant.kv_token_ns,
            Tenant.queue_ns,
            Tenant.by_others_ns,
            Tenant.by_itself_ns,
            Tenant.caused_ns,
            Tenant.caused_share,
            Tenant.gpu_ns,
            Tenant.cost_share,
            Tenant.served,
            Tenants.fairness,
        ),
    )
    NEEDS_REQUESTS = True
    BINDINGS: ClassVar[list[BindingType]] = [
        SORT_BINDING,
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
            tooltip="Group by prompt length, model, priority, class, header, cause or "
            "sampling",
        ),
        Binding(
            "u",
            "tenants",
            "tenants",
            show=False,
            tooltip="Tenants: who asks for how much, and who makes whom wait",
        ),
        Binding("e", "scope", "all/live", tooltip="List all, live or ended requests"),
        Binding(
            "v",
            "view",
            "view",
            tooltip="Where the time of all requests went, and back to the list",
        ),
        REVERSE_BINDING,
        Binding(
            "3",
            "steps",
            "steps",
            show=False,
            tooltip="The step of the chosen request's first token, or its first step",
        ),
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
        #counted, #refused { display: none; height: 5; }
        &.-refused #refused { display: block; }
        &.-counted #counted { display: block; }
        &.-staged #counted { height: 6; }
        &.-counted.-phased MeanPhases { display: block; }
        &.-apart SlowLine, &.-apart FilterBar, &.-apart #refused { display: none; }
        &.-apart RequestDetail, &.-apart ChartStack { display: none; }
        &.-time BreakdownPanel { display: block; }
    }
    """

    AUTO_FOCUS = "RequestTable"
    """A hidden input could hold the focus and would take every key."""

    WORST_KEY = "W"
    _snapshot: Snapshot | None = None
    _by: GroupBy | None = None
    """Property that requests are grouped by."""
    _grouped = False
    """Groups are shown instead of requests; a CSS class would restyle all of it."""
    _aspect = RequestsAspect.LIST
    _scope_before: StrEnum | None = None
    """The scope of the list before a bucket was opened; None if none is open."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable sorting and filters if requests are not reported one by one."""
        if action in OF_THE_LIST | {"view", "tenants"} and self.has_class("-counted"):
            return False
        if self._aspect is not RequestsAspect.LIST and action in NOT_OF_BUCKETS:
            return False
        return super().check_action(action, parameters)

    def compose_panels(self) -> Iterable[Widget]:
        table = RequestTable()
        yield SlowLine(self.WORST_KEY)
        yield FilterBar(table.grammar, scope_key="e", examples=FIND)
        yield table
        yield GroupTable()
        yield RequestDetail()
        yield BreakdownPanel()
        yield TotalsPanel(id="counted")
        yield MeanPhases()
        yield TotalsPanel(id="refused")
        yield ChartStack((charts.TTFT, charts.BATCH))

    def show_panels(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        for drawer in widgets_of(self, TenantsDrawer):
            drawer.show(snapshot)
        self._show_refused(snapshot)
        if counts_only(snapshot) != self.has_class("-counted"):
            self.set_class(counts_only(snapshot), "-counted")
            TenantsDrawer.close_on(self)
            self._look_as(RequestsAspect.LIST)
            self._show_tables()
            self.refresh_bindings()
        if self.has_class("-counted"):
            title = f"requests of {snapshot.window.span}"
            aside = "counted by the server, none told singly"
            totals = self.query_one("#counted", TotalsPanel)
            self.set_class(bool(snapshot.server_counts.times_s), "-staged")
            totals.show(title, aside, request_facts(snapshot))
            self.set_class(bool(snapshot.server_counts.phases_s), "-phased")
            self.query_one(MeanPhases).show(snapshot)
            return
        if self._aspect is RequestsAspect.TIME:
            self.query_one(BreakdownPanel).show(snapshot, self.feed.wall_text)
            return
        table = self.filtered
        table.how_to_begin = HOW_TO_BEGIN if is_untouched(self.feed, snapshot) else ""
        table.seen = snapshot.requests_seen > 0
        if self.view.slowest_first:
            self.view.slowest_first = False
            self._group_by(None)
            table.put_slowest_first()
        models = {each.source: each.model for each in snapshot.engines}
        contexts = {
            each.source: each.max_model_len
            for each in snapshot.engines
            if each.max_model_len
        }
        table.know(models, contexts, self.feed.wall_text)
        if table.chosen != self.view.request_columns:
            table.choose(self.view.request_columns)
        table.show(snapshot.requests, snapshot.now_ns)
        self.show_list()
        self._show_chooser()

    def action_tenants(self) -> None:
        """Open the drawer of tenants, or close it."""
        if not TenantsDrawer.close_on(self):
            TenantsDrawer(self.view.window.span).open_on(self)
            self.call_after_refresh(self.post_message, LookAgain())

    @property
    def needs_tenants(self) -> bool:
        return bool(widgets_of(self, TenantsDrawer))

    def _show_refused(self, snapshot: Snapshot) -> None:
        """Show refused requests by reason; they have no rows, being no requests yet."""
        groups = of_requests(snapshot.refused)
        self.set_class(bool(groups), "-refused")
        if groups:
            count = counted(refused_count(groups), "request")
            title = f"{count} refused in {snapshot.window.span}"
            aside = f"seen by {groups[0].vantage.value}"
            totals = self.query_one("#refused", TotalsPanel)
            most = 1 if self.is_short else MOST_REFUSED
            *rows, last = refusal_facts(groups[:most])
            if (more := len(groups) - most) > 0:
                last = [*last, ("and", f"{more:,} more", "")]
            totals.show(title, aside, [*rows, last])
            totals.styles.height = most + 1

    def show_list(self) -> None:
        if self._snapshot is None:
            return
        if self._by is not None:
            groups = self.filtered.groups(self._by)
            self.query_one(GroupTable).show_rows(groups)
        self._show_filter(self._snapshot)
        self._preview(self._snapshot)

    def _show_filter(self, snapshot: Snapshot) -> None:
        table = self.filtered
        latest, evicted = len(snapshot.requests), snapshot.requests_evicted
        listed, every = _count(len(table.rows)), _count(latest + evicted)
        texts = (f"{listed} of {every} requests", f"{listed} of {every}")
        if self._grouped:
            count = len(self.query_one(GroupTable).rows)
            groups = counted(count, "group")
            texts = (f"{groups} of the {listed} listed", f"{groups} of {listed} listed")
        elif not latest and snapshot.requests_seen:
            texts = ("requests come with the next look", "")
        elif evicted:
            of_latest = f"{listed} of the latest {_count(latest)}"
            texts = (f"{of_latest} of {every} requests", of_latest)
        if self._scope_before is not None:  # a bucket is of the window, its list is not
            texts = (f"{listed} of all that are held, in any window", f"{listed} held")
        elif not self._grouped and (sent := _as_sent(table.rows)):
            texts = (f"{texts[0]}, {sent}", f"{texts[1]}, {sent}")
        chips = [(scope.value, f" {scope.value} ") for scope in RequestScope]
        whole, short = (TextRun(f"{each} ", "muted") for each in texts)
        without, group = self._hidden_columns(table), self._group_text(table)
        lines: list[Line] = [(*without, whole), (*without, short), (short,)]
        bar = self.query_one(FilterBar)
        bar.show(chips, table.scope, table.filter.text, *lines, group=group)

    def _group_text(self, table: RequestTable) -> Line:
        if self._by is None:
            return ()
        click = "screen.group"
        if table.group is None:
            text = TextRun(f"by {self._by.value}", "muted", click)
        elif self._by is GroupBy.TIME:
            text = TextRun(f"arrived at {table.group[1]}", "accent", click)
        else:
            text = TextRun(f"{self._by.value} {table.group[1]}", "accent", click)
        return (TextRun("   G ", "accent", click), text)

    def _hidden_columns(self, table: RequestTable) -> Line:
        """Return a remark on chosen columns that have no room; empty if all have."""
        names = [each.name for each in table.without_room]
        if not names or self._grouped:
            return ()
        more = f" +{len(names) - 1}" if len(names) > 1 else ""
        return (TextRun(f"no room for {names[0]}{more}  ", "warn", "screen.columns"),)

    def _preview(self, snapshot: Snapshot) -> None:
        detail = self.query_one(RequestDetail)
        listed = self._aspect is RequestsAspect.LIST and not self._grouped
        room = self.has_class("-tall") and listed
        row = self.filtered.pointed if room else None
        detail.display = row is not None
        if row is not None:
            detail.show(row, self.feed.wall_text(row.arrived_ns), snapshot.now_ns)

    @property
    def filtered(self) -> RequestTable:
        return self.query_one(RequestTable)

    @property
    def listing(self) -> RequestTable | GroupTable | BucketTable:
        if self._aspect is RequestsAspect.TIME:
            return self.query_one(BucketTable)
        return self.query_one(GroupTable) if self._grouped else self.filtered

    def action_steps(self) -> None:
        """Open the step that tells most of the chosen request; without one, the tab."""
        row = None if self._grouped else self.filtered.chosen_row
        t_ns = None if row is None else step_ns(row)
        if row is None or t_ns is None:
            self.post_message(LookAt("steps"))
        else:
            self.post_message(OpenStep(t_ns, row.key))

    def action_open_request(self) -> None:
        self.filtered.action_open()

    def action_close(self) -> None:
        """Close the group, else the filter, else the grouping, else the time cursor."""
        table = self.filtered
        if self._aspect is not RequestsAspect.LIST:
            self._look_as(RequestsAspect.LIST)
        elif self._scope_before is not None:
            self._close_bucket()
            self._look_as(RequestsAspect.TIME)
        elif table.group is not None:
            self._open_group(None)
        elif table.filter.text:
            self.query_one(FilterBar).clear()
        elif self._by is not None:
            self._group_by(None)
        else:
            self.action_release()

    @on(RequestTable.RowHighlighted)
    def _follow(self) -> None:
        if self._snapshot is not None:
            self._preview(self._snapshot)

    @on(RequestTable.RowSelected)
    def _open(self, message: RequestTable.RowSelected) -> None:
        if self._aspect is RequestsAspect.TIME:
            self._open_bucket(self.query_one(BucketTable).by, message.key)
        elif self._by is not None and self._grouped:
            self._open_group((self._by, message.key))
        else:
            self.post_message(OpenRequest(message.key))

    def action_group(self) -> None:
        """Group by the next property that requests have, or end grouping."""
        if self._aspect is RequestsAspect.TIME:
            self.query_one(BreakdownPanel).next_dimension()
            self.post_message(LookAgain())
            return
        ways = list(GroupBy)
        table = self.filtered
        next_ones = ways[ways.index(self._by) + 1 :] if self._by is not None else ways
        self._group_by(next((by for by in next_ones if table.tells(by)), None))

    def _group_by(self, by: GroupBy | None) -> None:
        if by is not self._by:
            self.query_one(GroupTable).to_first()
        self._by = by
        self._open_group(None)

    def _open_group(self, group: tuple[GroupBy, str] | None) -> None:
        """List one group; None shows all groups, or requests without grouping."""
        table = self.filtered
        if group != table.group:
            table.only(group)
        self._close_chooser()
        self._grouped = self._by is not None and group is None
        self._show_tables()
        self.show_list()

    def _show_tables(self) -> None:
        """Show the table of requests or of groups; it takes the focus of the other."""
        requests, groups = self.filtered, self.query_one(GroupTable)
        here, away = (groups, requests) if self._grouped else (requests, groups)
        listed = self._aspect is RequestsAspect.LIST
        here.display = listed and not self.has_class("-counted")
        if away.has_focus and listed:
            self.set_focus(here)
        away.display = False

    # Where the time of all of them went.

    def action_view(self) -> None:
        """Show the next aspect of the requests."""
        aspects = list(RequestsAspect)
        here = aspects.index(self._aspect)
        self._look_as(aspects[(here + 1) % len(aspects)])

    def _look_as(self, aspect: RequestsAspect) -> None:
        """Show an aspect; what it needs is computed from the next look on."""
        if aspect is self._aspect:
            return
        self._close_chooser()
        self._close_bucket()
        self._aspect = aspect
        self.needs_breakdown = aspect is RequestsAspect.TIME
        self.set_class(aspect is not RequestsAspect.LIST, "-apart")
        self.set_class(aspect is RequestsAspect.TIME, "-time")
        self._show_tables()
        if self._snapshot is not None:
            self._preview(self._snapshot)
        self.set_focus(self.listing)
        self.refresh_bindings()
        self.post_message(LookAgain())

    def _open_bucket(self, by: GroupBy, name: str) -> None:
        """List the ended requests of a bucket."""
        if name == OTHERS or (by is GroupBy.TIME and name == EARLIER):
            self.notify("these are many values: filter the list by one of them")
            return
        self._look_as(RequestsAspect.LIST)
        table = self.filtered
        self._scope_before = table.scope
        table.within(RequestScope.ENDED)
        self._by = by
        self._open_group((by, name))

    def _close_bucket(self) -> None:
        """End listing a bucket, as the list was before."""
        if self._scope_before is not None:
            self.filtered.within(self._scope_before)
            self._scope_before = None
            self._group_by(None)

    def action_columns(self) -> None:
        if self.query(ColumnChooser):
            self._close_chooser()
            return
        if self._grouped:
            self.notify("columns are chosen for the list: esc goes back to it")
            return
        chooser = ColumnChooser(self.filtered.columns)
        self.mount(chooser)
        chooser.focus()
        self._show_chooser()

    def _show_chooser(self) -> None:
        table = self.filtered
        for chooser in self.query(ColumnChooser):
            chooser.show(
                [column.key for column, _ in table.sized_at(table.size.width)],
                [column.key for column in table.without_room],
                default=table.chosen is None,
            )

    @on(ColumnChooser.ColumnsChosen)
    def _choose(self, message: ColumnChooser.ColumnsChosen) -> None:
        self.view.request_columns = message.columns
        self.filtered.choose(message.columns)
        self._show_chooser()
        self.show_list()

    @on(ColumnChooser.ChooserClosed)
    def _close_chooser(self) -> None:
        if self.query(ColumnChooser):
            self.query(ColumnChooser).remove()
            self.listing.focus()


def step_ns(row: RequestRow) -> int | None:
    """Return a moment in the step of a request's first token, else in its first step.

    None before it was scheduled, or where that is unknown.
    """
    if row.added_ns is None or row.queue_s is None:
        return None
    scheduled_ns = row.added_ns + round(row.queue_s * NS_PER_S)
    if row.prefill_s is None:
        return scheduled_ns
    return scheduled_ns + round(row.prefill_s * NS_PER_S) - ROUNDED_NS


def _as_sent(rows: Sequence[RequestRow]) -> str:
    """Return the number of requests sent, if some rows are sequences of one request."""
    if all(row.sequence is None for row in rows):
        return ""
    return f"{_count(len({row.sent_key for row in rows}))} as sent"


def _count(count: int) -> str:
    return format_count(count).strip()
