"""A preview of a load plan: its rate over time and the requests its seed draws."""

from itertools import chain, islice, takewhile

import numpy as np
from textual import events

from collectors.contract.clock import NS_PER_S
from inferwatch.formatting import counted
from inferwatch.loadgen.plan.plan import Arrivals, LoadPlan
from inferwatch.loadgen.plan.rates import RateSeries, flat
from inferwatch.loadgen.schedule.arrivals import arrival_times, counted_times
from inferwatch.metrics.load.client_run import ClientView
from inferwatch.metrics.load.view import ClientTimeline
from inferwatch.metrics.series.window import Window
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.health import Health, Verdict
from inferwatch.ui.kit.panel import LinePanel
from inferwatch.ui.kit.renderables.plot import MARGIN, TimeAxis, axis_labels
from inferwatch.ui.kit.renderables.text import Line, TextRun, ruled
from inferwatch.ui.widgets.charts import ChartPlan
from inferwatch.ui.widgets.time_chart import Present, TimeChart

ENDLESS_S = 60.0
"""Length shown of a plan without an end."""
MOST_DRAWN = 20_000
"""Most requests drawn, so that typing stays fast."""
NOTHING = Snapshot(
    now_ns=0,
    window=Window.SESSION,
    covered_ns=0,
    verdict=Verdict(health=Health.IDLE, sentence=""),
)


def span_s(plan: LoadPlan) -> float:
    """Return how many seconds to sketch: the whole plan if it ends."""
    if plan.duration_s is not None:
        return plan.duration_s
    ends = [ENDLESS_S]
    if plan.rates is not None:
        ends.append(plan.rates.points[-1][0] * 1.2)
    if plan.rates is None and plan.requests and plan.rate_per_s:
        ends = [plan.requests / plan.rate_per_s]
    return max(ends)


def preview(plan: LoadPlan, columns: int) -> Snapshot:
    """Return a snapshot of the load that a plan would send after its warm-up."""
    rates = _rates(plan)
    if rates is None or columns < 1:
        return NOTHING
    edges_s = np.linspace(0, span_s(plan), columns + 1)
    middles_s = (edges_s[:-1] + edges_s[1:]) / 2
    drawn_s = _drawn_s(plan, rates, edges_s[-1])
    until_s = np.inf if len(drawn_s) < MOST_DRAWN else drawn_s[-1]
    per_s = np.histogram(drawn_s, edges_s)[0] / (edges_s[1] - edges_s[0])
    timeline = ClientTimeline(
        asked_per_s=tuple(rates.rate_at(at_s) for at_s in middles_s.tolist()),
        sent_per_s=tuple(
            rate if end_s <= until_s else None
            for rate, end_s in zip(per_s.tolist(), edges_s[1:], strict=True)
        ),
    )
    return Snapshot(
        now_ns=0,
        window=Window.SESSION,
        covered_ns=0,
        verdict=NOTHING.verdict,
        client=ClientView(timeline=timeline),
    )


def unseen(plan: LoadPlan) -> str:
    """Return why a plan has no sketch; empty if it has one."""
    if plan.arrivals is Arrivals.CLOSED:
        users = counted(plan.concurrency, "user")
        return f"{users}, each sending its next request when answered"
    if plan.arrivals is Arrivals.TRACE:
        return f"the times of a trace{f', {plan.trace_of}' if plan.trace_of else ''}"
    if plan.measures_rate:
        return f"{plan.rate_fraction:.0%} of the rate the warm-up measures"
    return ""


def _rates(plan: LoadPlan) -> RateSeries | None:
    if unseen(plan):
        return None
    if plan.rates is not None:
        return plan.rates
    return None if plan.rate_per_s is None else flat(plan.rate_per_s)


def _drawn_s(plan: LoadPlan, rates: RateSeries, end_s: float) -> list[float]:
    how, shape = plan.arrivals, plan.burstiness
    if plan.requests:
        count = min(plan.requests, MOST_DRAWN)
        times = counted_times(how, rates, count, seed=plan.seed, burstiness=shape)
        return [t_ns / NS_PER_S for t_ns in times.tolist()]
    blocks = arrival_times(how, rates, seed=plan.seed, burstiness=shape)
    drawn = chain.from_iterable(block.tolist() for block in blocks)
    within = takewhile(lambda t_ns: t_ns < end_s * NS_PER_S, drawn)
    return [t_ns / NS_PER_S for t_ns in islice(within, MOST_DRAWN)]


class LoadSketch(TimeChart):
    """A chart of the planned load; session and cursor do not affect it."""

    DEFAULT_CSS = """
    LoadSketch { min-height: 3; }
    """

    def __init__(self, plan: ChartPlan, *, id: str | None = None) -> None:
        super().__init__(plan, id=id)
        self._load: LoadPlan | None = None
        self._why = ""
        self._also = ""

    @property
    def drawn(self) -> bool:
        """Whether there is a curve to draw, and not only a sentence."""
        return self._load is not None and not self._why

    def sketch(self, plan: LoadPlan | None, also: str = "") -> None:
        """Sketch a plan, with a note; None stands for a plan with mistakes."""
        self._load, self._also = plan, also
        self._why = (
            "first correct the fields marked ✖" if plan is None else unseen(plan)
        )
        self._redraw()

    def show(self, snapshot: Snapshot, axis: TimeAxis) -> None:
        """Do nothing: a sketch does not depend on the session."""

    def head(
        self, snapshot: Snapshot, index: int | None, now: Present | None = None
    ) -> None:
        """Do nothing: a sketch does not depend on the session."""

    def mark(self, t_ns: int | None) -> None:
        """Do nothing: a sketch does not depend on the session."""

    def on_click(self, event: events.Click) -> None:
        event.prevent_default()

    def on_resize(self) -> None:
        self._redraw()

    def _redraw(self) -> None:
        columns = self.size.width - MARGIN - 1
        if columns < 1:
            return
        drawn = preview(self._load, columns) if self._load else NOTHING
        axis = TimeAxis(0, 1, columns, columns, columns)
        super().show(drawn, axis)
        note = self._why or self._also or "▇ drawn by this seed, ⣿ asked"
        head = (TextRun("sketch", "strong"), TextRun(" requests/s", "muted"))
        self._heading = ruled(head, (TextRun(note, "muted"),), self.size.width)
        self.refresh()


class LoadSketchAxis(LinePanel):
    """The sketch's time axis in seconds after the warm-up."""

    _span_s: float | None = None

    def show(self, plan: LoadPlan | None) -> None:
        is_visible = plan is not None and not unseen(plan)
        self._span_s = span_s(plan) if plan is not None and is_visible else None
        self.redraw()

    def line(self, width: int) -> Line:
        if self._span_s is None:
            return ()
        labels = [
            (
                MARGIN + round(part * (width - MARGIN - 2)),
                f"{self._span_s * part:.3g} s",
            )
            for part in (0.0, 0.5, 1.0)
        ]
        return (TextRun(axis_labels(labels, width), "muted"),)
