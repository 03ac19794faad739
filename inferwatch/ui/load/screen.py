"""The load screen: a form to start load, and the run, live or recorded."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from inferwatch.feed import Feed, LoadDesk
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.request_latencies import CLIENT_LATENCIES
from inferwatch.metrics.load.view import ClientTimeline, LoadRun
from inferwatch.metrics.number import numbers
from inferwatch.metrics.series.timeline import Timeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.frame.header import Tab
from inferwatch.ui.frame.host_question import HostQuestion, HostWarning
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.kit.lookup import widgets_of
from inferwatch.ui.load import charts as load_charts
from inferwatch.ui.load.charts import LoadMarks
from inferwatch.ui.load.control import LoadControl
from inferwatch.ui.load.form import LoadForm
from inferwatch.ui.load.runs import LoadRuns, in_order
from inferwatch.ui.load.search import no_search
from inferwatch.ui.load.status import LoadFailures, LoadStatus
from inferwatch.ui.messages import LookAgain
from inferwatch.ui.view import View
from inferwatch.ui.widgets.help_drawer import COST_NUMBERS, Key
from inferwatch.ui.widgets.latency_table import LatencyTable
from inferwatch.ui.widgets.time_chart import CHART_BINDINGS, CHART_KEYS, ChartStack

LOAD_ASKED = HostWarning(
    question="This server has other users. Load it?",
    consequence="Their requests will wait behind yours.",
    anyway="To load it anyway",
    yes="Start it",
    no="No load",
)
BOTH_FROM = 116
"""Least width for form and run next to each other."""


class LoadScreen(WatchScreen):
    """A form to start load, and the run, live or recorded."""

    NAME = "load"
    KEY = "7"
    LABEL = "Load"
    QUESTION = "How does it perform under a load of my choice?"
    ADVISES = False
    NEEDS_CLIENT = True
    EXPLAINS = (
        *numbers(
            LoadRun.state,
            LoadRun.share,
            LoadRun.elapsed_s,
            LoadRun.sent,
            LoadRun.succeeded,
            LoadRun.failed,
            LoadRun.aborted,
            LoadRun.in_flight,
        ),
        *numbers(
            LoadRun.unaccounted,
            LoadRun.held_back,
            LoadRun.warmup,
            LoadRun.done_per_s,
            LoadRun.tokens_per_s,
        ),
        *numbers(
            LoadRun.rate_per_s,
            LoadRun.users,
            LoadRun.before,
            LoadRun.failures,
            LoadRun.transport,
        ),
        *numbers(
            ClientView.asked_mean_per_s,
            ClientView.achieved_per_s,
            ClientView.verdict,
            ClientView.send_lag_p99_s,
        ),
        *numbers(
            ClientView.recv_lag_p99_s,
            ClientView.cpu_share,
            ClientView.merged_share,
            ClientView.slo,
            ClientView.good,
            ClientView.judged,
        ),
        *CLIENT_LATENCIES.values(),
        *numbers(
            ClientTimeline.sent_per_s,
            ClientTimeline.asked_per_s,
            ClientTimeline.ttft_mean_s,
            ClientTimeline.ttft_max_s,
        ),
        *numbers(ClientTimeline.itl_mean_s, ClientTimeline.itl_max_s),
        *COST_NUMBERS,
    )
    KEYS = CHART_KEYS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "start_stop", "start/stop", tooltip="Start the load, or stop it"),
        Binding(
            "less_than_sign",
            "ask(-1)",
            "rate",
            key_display="< >",
            tooltip="Ask for 10% less or more: requests per second, or users",
        ),
        Binding(
            "greater_than_sign",
            "ask(1)",
            "higher rate",
            key_display="< >",
            show=False,
            tooltip="Ask for 10% more",
        ),
        Binding(
            "B",
            "burst",
            "burst",
            tooltip="Send at once what would come in five seconds, beside the rate",
        ),
        Binding(
            "S",
            "search",
            "SLO search",
            tooltip="Search for the highest rate that holds the SLO; s ends it",
        ),
        Binding(
            "e,enter",
            "edit",
            "edit plan",
            key_display="e",
            tooltip="Edit the plan; esc leaves the form, tab goes to the next field",
        ),
        Binding(
            "left_curly_bracket",
            "run(-1)",
            "run",
            key_display="{ }",
            tooltip="An earlier or later run of this session; clicking one works too",
        ),
        Binding(
            "right_curly_bracket",
            "run(1)",
            "later run",
            key_display="{ }",
            show=False,
            tooltip="A later run of this session",
        ),
        *CHART_BINDINGS,
    ]

    AUTO_FOCUS = ""
    """No initial focus: a field would take the keys."""
    DEFAULT_CSS = """
    LoadScreen {
        #sides { height: 1fr; }
        #live { width: 1fr; }
        LoadForm { width: 54; margin-right: 2; }
        LatencyTable { height: 5; margin-top: 1; }
        &.-short LoadStatus { height: 6; }
        &.-short LatencyTable { margin: 0; }
        &.-short LoadMarks { display: none; }
        &.-short .go { height: 1; }
        &.-tall LoadSketch { max-height: 100; }
        &.-alone LoadForm { width: 1fr; margin: 0; }
        &.-stacked #sides { layout: vertical; }
        &.-stacked LoadForm { height: auto; }
        &.-stacked #live { height: 1fr; width: 1fr; }
    }
    """

    editing = False
    """Show the form if there is no room for both."""
    listing = False
    """Show the list of runs instead of charts if there is no room for both."""
    _snapshot: Snapshot | None = None
    _picked: int | None = None
    """Number of the chosen run; None follows the current or last one."""
    _could: tuple[object, ...] = ()

    def __init__(self, feed: Feed, view: View, tabs: Sequence[Tab] = ()) -> None:
        super().__init__(feed, view, tabs)
        self.load = LoadControl(self)

    @property
    def run_shown(self) -> LoadRun | None:
        view = self._view_in(self._snapshot) if self._snapshot else None
        return view.run if view else None

    def _view_in(self, snapshot: Snapshot) -> ClientView | None:
        """Return the run that the user chose, else the latest."""
        runs = snapshot.client.runs if snapshot.client else ()
        picked = (view for view in runs if view.number == self._picked)
        return next(picked, self.load.latest_in(snapshot))

    def charted(self, shown: Snapshot) -> Snapshot:
        """Restrict charts to the run: the window while it lasts, else start to end."""
        view = self._view_in(shown)
        if view is None:
            return shown
        line, now_ns = view.timeline, shown.now_ns
        bins = len(line.sent_per_s)
        window = shown.timeline
        if (line.start_ns, line.bin_ns) != (window.start_ns, window.bin_ns):
            end_ns = line.start_ns + bins * line.bin_ns
            window = Timeline(
                start_ns=line.start_ns, bin_ns=line.bin_ns, steps=(0,) * bins
            )
            shown = replace(shown, window=Window.SESSION, now_ns=min(now_ns, end_ns))
        return replace(shown, client=view, timeline=window)

    def compose_panels(self) -> Iterable[Widget]:
        with Horizontal(id="sides"):
            if self.load.desk is not None:
                yield LoadForm(self.load.desk.plan, load_charts.RATE)
            with Vertical(id="live"):
                yield LoadStatus()
                yield LatencyTable()
                yield ChartStack((load_charts.RATE, load_charts.TTFT, load_charts.ITL))
                yield LoadMarks()
                yield LoadRuns()
                yield LoadFailures()

    def show_panels(self, snapshot: Snapshot) -> None:
        before, self._snapshot = (self._rooms, self.run_shown is None), snapshot
        self.load.follow(snapshot)
        view, run = self._view_in(snapshot), self.run_shown
        if (self._rooms, run is None) != before:
            self.fit_height()  # show a new run where only one part has room
        charted = self.charted(snapshot)
        runs = snapshot.client.runs if snapshot.client else ()
        of = runs[-1].number if runs else 0
        self.query_one(LoadStatus).show(view, of, snapshot.now_ns, self.load.wish)
        self.query_one(LoadFailures).show(run.failures if run else ())
        self.query_one(LatencyTable).show(
            view.latencies if view else (), charted.window, "whole run"
        )
        axis = self.query_one(ChartStack).axis(charted)
        self.query_one(LoadMarks).show(axis, view.events if view else ())
        self.query_one(LoadRuns).show(runs, view.number if view else None)
        self._show_form(snapshot)
        self._show_what_can_be_done()

    @property
    def _rooms(self) -> tuple[int, int]:
        """How many runs there are, and how many kinds of failures the run shown has."""
        client = self._snapshot.client if self._snapshot else None
        run = self.run_shown
        return len(client.runs) if client else 0, len(run.failures) if run else 0

    def fit_height(self) -> None:
        """Show form and run next to each other if both are readable."""
        super().fit_height()
        alone = self.size.width < BOTH_FROM
        self.set_class(alone, "-alone")
        forms = widgets_of(self, LoadForm)
        for form in forms:
            form.display = not alone or self.editing or self.run_shown is None
        formed = alone and any(form.display for form in forms)
        # what a sketch without a curve leaves is for the results
        stacked = formed and any(not form.sketched for form in forms)
        self.set_class(stacked, "-stacked")
        self.query_one("#live").display = not formed or stacked
        self._share_rows()

    def _share_rows(self) -> None:
        runs, kinds = self._rooms
        rows = 2 if self.is_short else max(self.size.height // 8, 3)
        failures, listed = self.query_one(LoadFailures), self.query_one(LoadRuns)
        failures.styles.height = "1fr" if self.is_short else min(kinds, 3) + 1
        listed.display = runs > 1 and (not self.is_short or self.listing)
        room = self.size.height if self.is_short else rows
        listed.styles.height = "1fr" if self.listing else min(runs, room) + 2
        failures.display = kinds > 0 and not self.listing
        loaded = self.run_shown is not None
        charts = loaded and not (self.listing or (self.is_short and kinds))
        self.query_one(LatencyTable).display = loaded
        self.query_one(ChartStack).display = charts
        self.query_one(LoadMarks).display = charts and not self.is_short

    def _show_form(self, snapshot: Snapshot) -> None:
        desk = self.load.desk
        if desk is not None:
            blocked = "" if desk.running else desk.unavailable or ""
            for form in widgets_of(self, LoadForm):
                form.follow(desk.plan, running=desk.running)
                form.measured(self.load.measured_in(snapshot))
                run = self.load.latest if desk.running else None
                form.runs_at(None if run is None else run.rate_per_s)
                form.show(running=desk.running, blocked=blocked)

    def action_edit(self) -> None:
        self.editing = True
        self.fit_height()
        self.query_one(LoadForm).enter()

    @on(LoadForm.FormLeft)
    def _leave(self) -> None:
        self.editing = False
        self._show_outcome()

    @on(LoadForm.SketchChanged)
    def _share_anew(self) -> None:
        self.fit_height()

    def more_keys(self) -> Iterable[Key]:
        description = "ask for 10% less or more, while our load runs"
        own = (("< >", description),) if self.load.desk else ()
        return (*own, *super().more_keys())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide actions if load is impossible here, disable them while it is refused."""
        desk = self.load.desk
        adjustment = self.load.adjustment if desk and desk.running else None
        possible = desk is not None and (desk.running or desk.unavailable is None)
        can: dict[str, bool | None] = {
            "start_stop": (possible or None) if desk is not None else False,
            "edit": desk is not None,
            "ask": adjustment is not None,
            "burst": adjustment is not None and not adjustment.users,
            "search": possible and not (self.load.searching or (desk and desk.running)),
            "run": self._rooms[0] > 1,
        }
        if action in can:
            return can[action]
        return super().check_action(action, parameters)

    def _show_what_can_be_done(self) -> None:
        desk = self.load.desk
        several = self._rooms[0] > 1
        could: tuple[object, ...] = (several,)
        if desk is not None:
            asks = self.load.adjustment is not None
            could = several, desk.running, desk.unavailable, asks, self.load.searching
        if could != self._could:
            self._could = could
            self.refresh_bindings()

    def action_run(self, by: int) -> None:
        client = self._snapshot.client if self._snapshot else None
        view = self._view_in(self._snapshot) if self._snapshot else None
        if client is None or view is None:
            return
        numbers = [each.number for each in in_order(client.runs)]
        at = numbers.index(view.number) + by
        self.action_pick(numbers[min(max(at, 0), len(numbers) - 1)])

    def action_pick(self, number: int) -> None:
        """Show a run by its number; if it is the latest, later runs replace it."""
        latest = self.load.latest_in(self._snapshot) if self._snapshot else None
        self._picked = None if latest and latest.number == number else number
        self.post_message(LookAgain())

    def action_chart(self, by: int) -> None:
        """Show the next chart alone, or on short screens the list of runs."""
        stack = self.query_one(ChartStack)
        several = self.is_short and self._rooms[0] > 1
        if self.listing or (several and stack.at_end(by)):
            self.listing = not self.listing
            self.fit_height()
        if not self.listing:
            stack.next(by)
        self.post_message(LookAgain())

    @on(LoadForm.StartPressed)
    def _start_asked(self) -> None:
        self.action_start_stop()

    def action_start_stop(self) -> None:
        """Start the plan of the form or stop the load, once at a time."""
        if not self._is_at_work("load"):
            self._start_or_stop()

    def _is_at_work(self, group: str) -> bool:
        return any(
            each.group == group and not each.is_finished for each in self.workers
        )

    @work(group="load")
    async def _start_or_stop(self) -> None:
        searches = self._is_at_work("search")
        self.load.end_search()
        desk = self.load.desk
        if desk is None:
            return
        if not desk.running and (searches or not await self._may_start(desk)):
            return
        self._show_latest()
        try:
            await self.load.start_or_stop(self.query_one(LoadForm).reading.plan)
        finally:
            self._show_outcome()

    def action_search(self) -> None:
        """Search for the highest rate that holds the form's SLO, once at a time."""
        if not (self._is_at_work("search") or self._is_at_work("load")):
            self._search_rate()

    @work(group="search")
    async def _search_rate(self) -> None:
        desk = self.load.desk
        if desk is None or desk.running or not await self._may_start(desk):
            return
        plan = self.query_one(LoadForm).reading.plan
        if plan is None:
            return
        if why := no_search(plan):
            self.notify(why, severity="warning", timeout=6)
            return
        self._show_latest()
        try:
            await self.load.search_rate(plan)
        finally:
            self._show_outcome()

    def _show_outcome(self) -> None:
        self.fit_height()
        self.post_message(LookAgain())

    async def _may_start(self, desk: LoadDesk) -> bool:
        """Return True if the plan is valid, and server and user permit the load."""
        form = self.query_one(LoadForm)
        if desk.unavailable is not None:
            self.notify(desk.unavailable, severity="warning")
            return False
        if form.reading.plan is None:
            self.editing = True
            self.fit_height()
            form.enter()
            return False
        host = desk.must_name_host
        if host is None:
            return True
        named: bool = await self.app.push_screen_wait(HostQuestion(host, LOAD_ASKED))
        return named

    def _show_latest(self) -> None:
        """Show the load about to begin, whatever was chosen or edited."""
        self._picked, self.editing = None, False
        self.set_focus(None)
        self.post_message(LookAgain())

    async def action_ask(self, by: int) -> None:
        await self.load.ask(by)

    async def action_burst(self) -> None:
        await self.load.burst()
