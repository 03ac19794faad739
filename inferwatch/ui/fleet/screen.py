"""The fleet screen: all servers, those in trouble first."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import (
    counted,
    format_bracket,
    format_count,
    format_duration,
    format_share,
)
from inferwatch.metrics.fleet import (
    FleetServer,
    Trouble,
    percentile_of,
    servers_of,
    totals_of,
)
from inferwatch.metrics.number import label_of, numbers
from inferwatch.metrics.requests.latencies import ITL, LATENCIES, TTFT
from inferwatch.metrics.series.window import Bracket, Latency
from inferwatch.metrics.servers.server_state import ServerState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.flow import Flow
from inferwatch.metrics.steps.speculation import Speculation
from inferwatch.ui.fleet.table import (
    MARKS,
    FleetScope,
    FleetTable,
    FleetTotalsLine,
    FleetVerdictLine,
    trouble_line,
)
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.kit.filter_bar import (
    REVERSE_BINDING,
    SORT_BINDING,
    FilterBar,
    FilteredList,
)
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    fit,
    join,
    join_whole,
    labelled,
    ruled,
)
from inferwatch.ui.messages import LookAt
from inferwatch.ui.widgets import charts
from inferwatch.ui.widgets.charts import ChartPlan
from inferwatch.ui.widgets.help_drawer import COST_NUMBERS
from inferwatch.ui.widgets.speculation_facts import speculation_facts
from inferwatch.ui.widgets.time_chart import CHART_BINDINGS, CHART_KEYS, ChartStack

SHOWN = ("ttft_s", "queue_s", "prefill_s", "tpot_s", "itl_s", "e2el_s")


class ServerDetail(Panel):
    """The server under the cursor."""

    DEFAULT_CSS = """
    ServerDetail { height: 5; margin-top: 1; }
    """

    _server: FleetServer | None = None

    def show(self, server: FleetServer | None) -> None:
        self._server = server
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        server = self._server
        if server is None:
            return ()
        enter = (
            TextRun("enter", "accent", "screen.look_into"),
            TextRun(" all its screens", "muted", "screen.look_into"),
        )
        matter = trouble_line(server) or _advice(server.state)
        rows = (
            join_whole(_identity(server), width - 2, "   "),
            join_whole(_latencies(server.state), width - 2, "   "),
            join_whole(_facts(server.state), width - 2, "   "),
            matter,
        )
        head = ruled((TextRun(server.name, "strong"),), enter, width)
        return [head, *(fit((TextRun("  "), *line), width) for line in rows)]


def _identity(server: FleetServer) -> Iterator[Line]:
    info = server.state.info
    if info is None:
        yield (TextRun(server.state.source),)
        return
    yield (TextRun(info.url or info.uds or server.state.source),)
    yield (TextRun(server.engine or ""),)
    yield (TextRun(", ".join(info.models[:3]), "muted"),)
    yield labelled("via", server.state.via.value)
    if server.ranks:
        ranks = counted(len(server.ranks), "rank").strip()
        yield (TextRun(f"{ranks} pooled", "muted"),)
    if info.max_model_len is not None:
        yield labelled("max_model_len", f"{info.max_model_len:,}")


def _latencies(state: ServerState) -> Iterator[Line]:
    rows = {row.metric: row for row in state.latencies}
    for metric in SHOWN:
        row = rows.get(metric)
        if row is not None and row.quantiles.n:
            mean = format_duration(row.quantiles.mean).strip()
            high = _percentile(row)
            text = f"{mean} mean, {high} p99" if high else f"{mean} mean"
            yield labelled(LATENCIES[metric].label, text)


def _percentile(row: Latency) -> str:
    value = percentile_of(row, "p99")
    if value is None:
        return ""
    if isinstance(value, Bracket):
        return format_bracket(value.low, value.high)
    mark = "~" if "p99" in row.quantiles.weak else ""
    return f"{mark}{format_duration(value).strip()}"


def _facts(state: ServerState) -> Iterator[Line]:
    ttft = next((row for row in state.latencies if row.metric == "ttft_s"), None)
    if ttft is not None and ttft.quantiles.n:
        count = format_count(ttft.quantiles.n).strip()
        yield labelled("TTFT of", f"{count} requests")
    if state.prefix_hit_rate is not None:
        yield labelled("prefix hits", format_share(state.prefix_hit_rate).strip())
    speculation = state.speculation
    if speculation is not None:
        for label, text, _ in speculation_facts(speculation)[:2]:
            yield labelled(label, text.strip())
    if state.preemptions is not None:
        yield labelled(label_of(Flow.preemptions), f"{state.preemptions:,}")
    if state.failed is not None:
        yield labelled(label_of(Flow.failed), f"{state.failed:,}")
    if state.round_trip_ns is not None:
        trip = format_duration(state.round_trip_ns / NS_PER_S).strip()
        yield labelled("round trip", trip)


def _advice(state: ServerState) -> Line:
    info = state.info
    return (TextRun(info.advice[0], "muted"),) if info and info.advice else ()


def _of_all(plan: ChartPlan) -> ChartPlan:
    """Return a chart that says it is of all servers."""
    fallback = None if plan.fallback is None else _of_all(plan.fallback)
    return replace(plan, note=f"all servers, {plan.note}", fallback=fallback)


TOLD = (
    (Trouble.LOST, "lost"),
    (Trouble.STANDS_OUT, "standing out"),
    (Trouble.SLOW, "slow"),
    (Trouble.RESTARTED, "restarted"),
    (Trouble.ASKED, "not heard of yet"),
)
LEAST_CHARTS = 9
"""Fewest rows for the charts."""
AROUND_TABLE = 12
DETAIL = 6
"""Rows of the server under the cursor."""


class FleetScreen(WatchScreen, FilteredList):
    """A row per server and their totals; each server can be opened."""

    NAME = "fleet"
    KEY = "0"
    LABEL = "Fleet"
    QUESTION = "Which engine is in trouble?"
    OF_ALL = True
    ADVISES = False
    """What would tell more differs by server: the one under the cursor says it."""
    VERDICT = FleetVerdictLine
    EXPLAINS = (
        *numbers(
            Flow.running,
            Flow.waiting,
            Flow.kv_usage,
            Flow.output_tokens_per_s,
            Flow.arrivals_per_s,
            Flow.failed,
            Flow.preemptions,
        ),
        *numbers(Speculation.acceptance, Speculation.acceptance_length),
        TTFT,
        ITL,
        *COST_NUMBERS,
    )
    KEYS = (
        *CHART_KEYS,
        ("0", "back here from the screens of one server; esc, too"),
        ("( )", "the server before, the next one, on those screens"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        SORT_BINDING,
        Binding(
            "slash",
            "filter",
            "filter",
            key_display="/",
            tooltip="Filter: waiting>5 state:lost kv>90 p99>1s, or part of a name",
        ),
        Binding("e", "scope", "all/trouble", tooltip="List all, or those in trouble"),
        REVERSE_BINDING,
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
        if action == "chart":
            return self.has_class("-charted")
        return super().check_action(action, parameters)

    def compose_panels(self) -> Iterable[Widget]:
        table = FleetTable()
        yield FilterBar(table.grammar, scope_key="e")
        yield table
        yield FleetTotalsLine()
        yield ServerDetail()
        plans = (charts.TTFT, charts.WAITING, charts.OUTPUT)
        yield ChartStack(tuple(map(_of_all, plans)))

    def fit_height(self) -> None:
        """Give the table the rows it needs, and the rest to the charts."""
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

    def show_panels(self, snapshot: Snapshot) -> None:
        servers = servers_of(snapshot)
        self.query_one(FleetVerdictLine).show_servers(servers)
        table = self.query_one(FleetTable)
        table.show(servers)
        if len(table.rows) != self._listed:
            self._listed = len(table.rows)
            self.fit_height()
        together = totals_of(snapshot, servers)
        self.query_one(FleetTotalsLine).show(together, table.columns)
        counts = Counter(each.trouble for each in servers)
        parts: list[Line] = [(TextRun(counted(len(servers), "server"), "muted"),)]
        for trouble, word in TOLD:
            if counts[trouble]:
                parts.append((TextRun(f"{counts[trouble]} {word}", MARKS[trouble][1]),))
        self._summary = (*join(parts), TextRun(" "))
        self.show_list()

    _summary: Line = ()

    @property
    def filtered(self) -> FleetTable:
        return self.query_one(FleetTable)

    def show_list(self) -> None:
        table = self.query_one(FleetTable)
        chips = [(scope.value, f" {scope.value} ") for scope in FleetScope]
        bar = self.query_one(FilterBar)
        bar.show(chips, table.scope, table.filter.text, self._summary)
        self._show_pointed()

    def _show_pointed(self) -> None:
        row = self.query_one(FleetTable).pointed
        self.query_one(ServerDetail).show(row.server if row is not None else None)

    def action_sort(self) -> None:
        super().action_sort()
        self._show_pointed()

    def action_close(self) -> None:
        """Clear the filter, else remove the time cursor."""
        if self.query_one(FleetTable).filter.text:
            self.query_one(FilterBar).clear()
        else:
            self.action_release()

    def action_look_into(self) -> None:
        self.query_one(FleetTable).action_open()

    @on(FleetTable.RowHighlighted)
    def _follow(self) -> None:
        self._show_pointed()

    @on(FleetTable.RowSelected)
    def _look_into(self, message: FleetTable.RowSelected) -> None:
        row = self.query_one(FleetTable).find(message.key)
        if row is not None:
            self.view.source = row.server.state.source
            self.post_message(LookAt("overview"))
