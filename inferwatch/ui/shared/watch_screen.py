"""A screen over a running session: verdict, a body, the moment under the cursor."""

from collections.abc import Iterable

from textual.containers import Vertical
from textual.widget import Widget

from collectors.clock import NS_PER_S
from collectors.readings import NoteKind
from inferwatch.feed import FeedState
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.overview.host_line import HostLine
from inferwatch.ui.shared.charts import span_of
from inferwatch.ui.shared.keys import TABS
from inferwatch.ui.shared.lost_banner import LostBanner
from inferwatch.ui.shared.messages import LookAgain
from inferwatch.ui.shared.moment_screen import MomentScreen
from inferwatch.ui.shared.position import position_of
from inferwatch.ui.shared.readout_line import ReadoutLine
from inferwatch.ui.shared.renderables.axis import TimeAxis, shared_axis
from inferwatch.ui.shared.renderables.text import Line, TextRun
from inferwatch.ui.shared.tab_line import TabLine
from inferwatch.ui.shared.time_axis_line import TimeAxisLine
from inferwatch.ui.shared.time_chart import MARGIN, TimeChart
from inferwatch.ui.shared.time_line import TimeLine
from inferwatch.ui.shared.verdict_line import VerdictLine

SHORT = 32
"""Rows; with fewer, charts come one at a time and margins go."""
TALL = 50
"""Rows; from here on there is room for more of the time line."""


class WatchScreen(MomentScreen):
    """Everything it shows is of one moment: the present, or another."""

    NAME = ""
    DEFAULT_CSS = """
    WatchScreen {
        &.-short TimeLine { height: 3; }
        &.-tall TimeLine { height: 6; }
        &.-short.-elsewhere HostLine { display: none; }
    }
    """

    def compose_body(self) -> Iterable[Widget]:
        """Verdict on top, the moment below, the screen's own part between."""
        yield TabLine(TABS, self.NAME)
        yield VerdictLine()
        yield LostBanner()
        with Vertical(id="body"):
            yield from self.compose_panels()
        yield ReadoutLine()
        yield HostLine()
        yield TimeLine()

    def compose_panels(self) -> Iterable[Widget]:
        """The screen's own part."""
        return ()

    @property
    def is_short(self) -> bool:
        """There are too few rows for everything."""
        return self.size.height < SHORT

    def fit_height(self) -> None:
        """Leave out what has no room."""
        self.set_class(self.is_short, "-short")
        self.set_class(self.size.height >= TALL, "-tall")

    def on_resize(self) -> None:
        """Do not wait for the next snapshot to look right."""
        self.fit_height()
        self.post_message(LookAgain())

    def show(self, now: Snapshot, *, charts: bool) -> None:
        """The picture of one moment; what was lost is told of the present."""
        self.fit_height()
        self.query_one(TabLine).show(now.window)
        self.query_one(VerdictLine).show(now.verdict, now.now_ns)
        self.query_one(HostLine).show(now)
        position = position_of(self.feed)
        self.set_class(position is not None, "-elsewhere")
        self.query_one(TimeLine).show(position)
        self._show_loss(self.present or now)
        self.show_panels(now)
        if charts:
            self._show_charts(now)
        self._show_moment(now)

    def show_panels(self, shown: Snapshot) -> None:
        """Everything of the screen's own that is not a chart."""

    def axis(self, shown: Snapshot) -> TimeAxis:
        """The one time axis, for charts as wide as this screen."""
        line = shown.timeline
        return shared_axis(
            line.start_ns,
            line.bin_ns,
            len(line.steps),
            span_of(line, shown.window.value),
            max(self.size.width - MARGIN - 1, 1),
        )

    def _show_charts(self, shown: Snapshot) -> None:
        axis = self.axis(shown)
        for chart in self.query(TimeChart):
            if chart.display:
                chart.show(shown, axis)

    def _show_moment(self, shown: Snapshot) -> None:
        cursor_ns, index = self.view.cursor_ns, self.view.bin_of(shown)
        clock = self.feed.wall_text(shown.now_ns if cursor_ns is None else cursor_ns)
        here = "here" if self.has_class("-elsewhere") else "now"
        when = _when(cursor_ns, shown.now_ns, clock, seen=index is not None, here=here)
        self.query_one(ReadoutLine).show(when, shown.timeline, index)
        for chart in self.query(TimeChart):
            chart.head(shown, index)
            chart.mark(cursor_ns)
        for line in self.query(TimeAxisLine):
            line.show(self.axis(shown), cursor_ns, clock, here)

    def _show_loss(self, now: Snapshot) -> None:
        lost = [note for note in now.notes if note.kind is NoteKind.LOST]
        banner = self.query_one(LostBanner)
        if self.feed.state is not FeedState.LOST or not lost:
            banner.show("", "", can_restart=False)
            return
        at = self.feed.wall_text(lost[-1].t_ns)
        banner.show(lost[-1].text, at, can_restart=self.feed.can_restart)


def _when(
    cursor_ns: int | None, now_ns: int, clock: str, *, seen: bool, here: str
) -> Line:
    if cursor_ns is None:
        return (TextRun(f" {here} ", "strong"), TextRun(clock, "muted"))
    ago = (now_ns - cursor_ns) / NS_PER_S
    back = f" −{ago:.1f} s" if ago < 120 else f" −{ago / 60:.1f} min"
    line = (TextRun(f" ▲ {clock}", "accent"), TextRun(back, "muted"))
    if seen:
        return line
    return (
        *line,
        TextRun("  out of this window: w widens it, esc lets go of it", "muted"),
    )
