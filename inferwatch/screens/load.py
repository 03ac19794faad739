"""Drive it: a plan, a run, and keys that change the run while it goes on."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from inferwatch.errors import InferwatchError
from inferwatch.feed import LoadDesk
from inferwatch.loadgen.plan import Arrivals
from inferwatch.messages import LookAgain
from inferwatch.metrics.snapshot import LoadRun, Snapshot
from inferwatch.renderables.axis import TimeAxis, shared_axis
from inferwatch.screens import explains, load_charts
from inferwatch.screens.chart_screen import ChartScreen
from inferwatch.screens.charts import span_of
from inferwatch.screens.load_host import HostScreen
from inferwatch.screens.load_steps import Asked, after, wish_of
from inferwatch.widgets.latency_table import LatencyTable
from inferwatch.widgets.load_failures import LoadFailures
from inferwatch.widgets.load_form import LoadForm
from inferwatch.widgets.load_marks import LoadMarks
from inferwatch.widgets.load_sketch import LoadSketch
from inferwatch.widgets.load_status import LoadStatus
from inferwatch.widgets.time_chart import MARGIN

BOTH_FROM = 116
"""Columns; with fewer, the form and the run come one at a time."""
STALE_NS = 5_000_000_000
"""A wish that the generator did not follow by then is no longer told."""


class LoadScreen(ChartScreen):
    """The form where load can be started; the run live, or as it was recorded."""

    NAME = "load"
    QUESTION = "How does it do under a load that I choose?"
    EXPLAINS = explains.LOAD
    NEEDS_CLIENT = True
    PLANS = (load_charts.RATE, load_charts.TTFT, load_charts.ITL)
    MOST_TELLING = 0
    KEYS = (
        ("e", "edit the plan; esc leaves the form, tab goes on in it"),
        ("s", "start the load, or stop it"),
        ("> <", "ask a tenth more or less, while it runs; or a user more or less"),
        ("tab", "one chart after the other"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "start_stop", "start/stop", tooltip="Start the load, or stop it"),
        Binding(
            "greater_than_sign",
            "ask(1)",
            "more",
            key_display=">",
            tooltip="Ask a tenth more: requests per second, or users",
        ),
        Binding(
            "less_than_sign",
            "ask(-1)",
            "less",
            key_display="<",
            tooltip="Ask a tenth less",
        ),
        Binding("e,enter", "edit", "edit plan", key_display="e", tooltip="Edit it"),
    ]
    AUTO_FOCUS = ""
    """A field would swallow the keys of who only came to look."""
    DEFAULT_CSS = """
    LoadScreen {
        #sides { height: 1fr; }
        #live { width: 1fr; }
        LoadForm { width: 54; margin-right: 1; }
        LatencyTable { height: 5; margin-top: 1; }
        LoadFailures { height: 4; }
        &.-short LatencyTable { display: none; }
        &.-short LoadFailures { height: 2; }
        &.-short .go { height: 1; }
        &.-alone LoadForm { width: 1fr; margin: 0; }
    }
    """

    _editing = False
    """Where there is room for one of both: the form."""
    _asked: Asked | None = None
    _doing = ""
    _shown: Snapshot | None = None
    _could: tuple[object, ...] = ()

    @property
    def desk(self) -> LoadDesk | None:
        """None in a replay: what was is all there is."""
        return self.feed.load_desk

    def compose_panels(self) -> Iterable[Widget]:
        """The form on the left, the run on the right."""
        with Horizontal(id="sides"):
            if self.desk is not None:
                yield LoadForm(self.desk.plan, load_charts.RATE)
            with Vertical(id="live"):
                yield LoadStatus()
                yield LatencyTable()
                yield from self.compose_charts()
                yield LoadMarks()
                yield LoadFailures()

    def show_panels(self, shown: Snapshot) -> None:
        """The run as of now."""
        self._shown = shown
        client, run = shown.client, self._run
        self._forget_wish(run, shown.now_ns)
        self.query_one(LoadStatus).show(shown, self._wish)
        self.query_one(LoadFailures).show(run.failures if run else ())
        self.query_one(LatencyTable).show(
            client.latencies if client else (), shown.window
        )
        axis = self.axis(shown)
        self.query_one(LoadMarks).show(axis, client.events if client else ())
        self._show_form()
        self._show_what_can_be_done()

    def axis(self, shown: Snapshot) -> TimeAxis:
        """The one time axis, as wide as the part that is live."""
        line, width = shown.timeline, self.query_one("#live").size.width
        return shared_axis(
            line.start_ns,
            line.bin_ns,
            len(line.steps),
            span_of(line, shown.window.value),
            max((width or self.size.width) - MARGIN - 1, 1),
        )

    # Which part is in sight.

    def fit_height(self) -> None:
        """Form and run side by side where both can be read."""
        super().fit_height()
        for index, chart in enumerate(self.query("#live TimeChart")):
            chart.display = self._here in {index, len(self.PLANS)}
        for sketch in self.query(LoadSketch):
            sketch.display = True  # no chart of the session: always there
        alone = self.size.width < BOTH_FROM
        self.set_class(alone, "-alone")
        forms = self.query(LoadForm)
        for form in forms:
            form.display = not alone or self._editing or self._run is None
        live = not (alone and any(form.display for form in forms))
        self.query_one("#live").display = live

    def action_edit(self) -> None:
        """Into the form."""
        self._editing = True
        self.fit_height()
        self.query_one(LoadForm).enter()

    @on(LoadForm.Left)
    def _leave(self) -> None:
        self._editing = False
        self.fit_height()
        self.post_message(LookAgain())

    def _show_form(self) -> None:
        desk = self.desk
        if desk is not None:
            blocked = "" if desk.running else desk.unavailable or ""
            for form in self.query(LoadForm):
                form.show(running=desk.running, blocked=blocked)

    # What can be done.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Nothing where there is no desk; greyed where there is a reason."""
        desk = self.desk
        if action in {"start_stop", "edit", "ask"} and desk is None:
            return False
        if desk is not None and action == "start_stop":
            possible = desk.running or desk.unavailable is None
            return possible or None
        if desk is not None and action == "ask":
            return desk.running and self._asked_now is not None
        return super().check_action(action, parameters)

    def _show_what_can_be_done(self) -> None:
        desk = self.desk
        could = desk and (desk.running, desk.unavailable, self._asked_now is None)
        if could != self._could:
            self._could = could or ()
            self.refresh_bindings()

    # The run.

    @on(LoadForm.StartAsked)
    def _start_asked(self) -> None:
        self.action_start_stop()

    @work(exclusive=True, group="load")
    async def action_start_stop(self) -> None:
        """Follow the plan of the form; or stop what goes on."""
        desk = self.desk
        if desk is None:
            return
        if desk.running:
            await self._do(desk, "stopping…")
        elif await self._may_start(desk):
            await self._do(desk, "starting…")

    async def _may_start(self, desk: LoadDesk) -> bool:
        """A whole plan, a server that can be loaded, and nobody hurt unasked."""
        form = self.query_one(LoadForm)
        if desk.unavailable is not None:
            self.notify(desk.unavailable, severity="warning")
            return False
        if form.reading.plan is None:
            self._editing = True
            self.fit_height()
            form.enter()
            return False
        host = desk.must_name_host
        if host is None:
            return True
        named: bool = await self.app.push_screen_wait(HostScreen(host))
        return named

    async def _do(self, desk: LoadDesk, doing: str) -> None:
        """Start or stop; what takes a moment is told meanwhile."""
        plan = self.query_one(LoadForm).reading.plan
        self._asked, self._doing = None, doing
        self._editing = False
        self.set_focus(None)
        self.post_message(LookAgain())
        try:
            if desk.running:
                await desk.stop()
            elif plan is not None:
                await desk.start(plan)
        except InferwatchError as error:
            self.notify(str(error), title="No load", severity="error", markup=False)
        finally:
            self._doing = ""
            self.fit_height()
            self.post_message(LookAgain())

    async def action_ask(self, by: int) -> None:
        """A tenth more or less; a change is seen before the generator follows it."""
        desk, asked = self.desk, self._asked_now
        if desk is None or asked is None or not desk.running or self._shown is None:
            return
        wanted = after(asked, by, self._shown.now_ns)
        try:
            if wanted.users:
                await desk.change(concurrency=round(wanted.value))
            else:
                await desk.change(rate_per_s=wanted.value)
        except InferwatchError as error:
            self.notify(str(error), severity="warning", markup=False)
            return
        self._asked = wanted
        self.post_message(LookAgain())

    @property
    def _run(self) -> LoadRun | None:
        client = self._shown.client if self._shown else None
        return client.run if client else None

    @property
    def _asked_now(self) -> Asked | None:
        """What is wished for, else what the plan says, else what was measured."""
        desk, run = self.desk, self._run
        if self._asked is not None or desk is None or not desk.running:
            return self._asked
        plan = desk.plan
        if plan.arrivals is Arrivals.CLOSED:
            return Asked(value=plan.concurrency, users=True)
        if plan.arrivals is Arrivals.TRACE:
            return None
        measured = run.rate_per_s if run is not None else None
        rate = plan.rate_per_s if plan.rates is None else None
        rate = rate if rate is not None else measured
        return None if rate is None else Asked(value=rate)

    @property
    def _wish(self) -> str:
        return self._doing or (wish_of(self._asked) if self._asked else "")

    def _forget_wish(self, run: LoadRun | None, now_ns: int) -> None:
        """The generator follows it now, or will never."""
        asked = self._asked
        if asked is None:
            return
        told = None if run is None else run.users if asked.users else run.rate_per_s
        followed = told is not None and abs(told - asked.value) < 1e-6 * asked.value
        if followed or run is None or now_ns - asked.since_ns > STALE_NS:
            self._asked = None
