"""A load as it goes on, or went; the plan's form beside it where one can be started."""

from collections.abc import Iterable

from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from inferwatch.feed import LoadDesk
from inferwatch.metrics.snapshot import LoadRun, Snapshot
from inferwatch.ui.load import charts as load_charts
from inferwatch.ui.load.failures import LoadFailures
from inferwatch.ui.load.form import LoadForm
from inferwatch.ui.load.marks import LoadMarks
from inferwatch.ui.load.sketch import LoadSketch
from inferwatch.ui.load.status import LoadStatus
from inferwatch.ui.shared.chart_screen import ChartScreen
from inferwatch.ui.shared.charts import span_of
from inferwatch.ui.shared.latency_table import LatencyTable
from inferwatch.ui.shared.renderables.axis import TimeAxis, shared_axis
from inferwatch.ui.shared.time_chart import MARGIN

BOTH_FROM = 116
"""Columns; with fewer, the form and the run come one at a time."""


class LoadView(ChartScreen):
    """What is seen; what can be done is the screen's."""

    NEEDS_CLIENT = True
    PLANS = (load_charts.RATE, load_charts.TTFT, load_charts.ITL)
    MOST_TELLING = 0
    AUTO_FOCUS = ""
    """A field would swallow the keys of who only came to look."""
    DEFAULT_CSS = """
    LoadView {
        #sides { height: 1fr; }
        #live { width: 1fr; }
        LoadForm { width: 54; margin-right: 2; }
        LatencyTable { height: 5; margin-top: 1; }
        LoadFailures { height: 4; }
        &.-short LatencyTable { display: none; }
        &.-short LoadFailures { height: 2; }
        &.-short .go { height: 1; }
        &.-alone LoadForm { width: 1fr; margin: 0; }
    }
    """

    editing = False
    """Where there is room for one of both: the form."""
    _shown: Snapshot | None = None

    @property
    def desk(self) -> LoadDesk | None:
        """None in a replay: what was is all there is."""
        return self.feed.load_desk

    @property
    def run_shown(self) -> LoadRun | None:
        """The run of the moment shown."""
        client = self._shown.client if self._shown else None
        return client.run if client else None

    @property
    def wish(self) -> str:
        """What was asked a moment ago and is not there yet."""
        return ""

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
        before, self._shown = self.run_shown, shown
        client, run = shown.client, self.run_shown
        if (run is None) != (before is None):
            self.fit_height()  # where one has room: the run as soon as there is one
        self.query_one(LoadStatus).show(shown, self.wish)
        self.query_one(LoadFailures).show(run.failures if run else ())
        self.query_one(LatencyTable).show(
            client.latencies if client else (), shown.window
        )
        axis = self.axis(shown)
        self.query_one(LoadMarks).show(axis, client.events if client else ())
        self._show_form()

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
            form.display = not alone or self.editing or self.run_shown is None
        live = not (alone and any(form.display for form in forms))
        self.query_one("#live").display = live

    def _show_form(self) -> None:
        desk = self.desk
        if desk is not None:
            blocked = "" if desk.running else desk.unavailable or ""
            for form in self.query(LoadForm):
                form.follow(desk.plan)
                form.show(running=desk.running, blocked=blocked)
