"""The steps screen: charts, single steps and batching efficiency."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import set_cell_size
from textual import events, on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step
from inferwatch.formatting import counted, format_duration
from inferwatch.metrics.number import numbers
from inferwatch.metrics.series.timeline import Heat, Timeline, begins_s, merged
from inferwatch.metrics.servers.server_counts import ServerCounts
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.metrics.steps.counter import StepTotals
from inferwatch.metrics.steps.efficiency import BatchCurve, Stall
from inferwatch.ui.frame.watch_keys import KNOB_BINDINGS, PROFILE_SHOWN
from inferwatch.ui.frame.watch_screen import WatchScreen
from inferwatch.ui.kit.panel import Panel
from inferwatch.ui.kit.renderables.plot import (
    MARGIN,
    TimeAxis,
    axis_labels,
    shared_axis,
    tick_text,
)
from inferwatch.ui.kit.renderables.text import (
    Line,
    TextRun,
    cells_of,
    fit,
    ruled,
    width_of,
)
from inferwatch.ui.messages import LookAgain, OpenRequest, OpenStep
from inferwatch.ui.steps.curve import CurvePanel
from inferwatch.ui.steps.facts import step_facts, total_facts, traffic_facts
from inferwatch.ui.steps.members import StepPanel
from inferwatch.ui.steps.single_steps import SingleSteps
from inferwatch.ui.widgets import charts
from inferwatch.ui.widgets.charts import span_of
from inferwatch.ui.widgets.counter_facts import step_facts as counted_facts
from inferwatch.ui.widgets.hardware_charts import HARDWARE_CHARTS, HARDWARE_NUMBERS
from inferwatch.ui.widgets.help_drawer import COST_NUMBERS
from inferwatch.ui.widgets.speculation_facts import SPECULATION_NUMBERS
from inferwatch.ui.widgets.time_chart import (
    CHART_BINDINGS,
    CHART_KEYS,
    ChartStack,
    TimeChart,
)
from inferwatch.ui.widgets.totals import ROOMY, TotalsPanel
from inferwatch.visible import visible

WIDE = 160
"""Width below which the evidence of a stall is under the list."""
EVIDENCE_ROWS = 2
NAME_WIDTH = 24
MOST = 50


class StallList(Panel):
    """A list of stalls; Enter or a click moves the time cursor there."""

    DEFAULT_CSS = """
    StallList { height: 2fr; min-height: 4; }
    """

    @dataclass
    class StallChosen(Message):
        """A stall was selected to be looked at."""

        stall: Stall

    _stalls: Sequence[Stall] = ()
    _span = ""
    _clock: Callable[[int], str] = str
    _at = 0
    _top = 0

    def show(
        self, stalls: Sequence[Stall], span: str, clock: Callable[[int], str]
    ) -> None:
        """Show the stalls of a window; the selected one stays selected."""
        chosen = self.chosen
        self._stalls, self._span, self._clock = stalls, span, clock
        same = (i for i, each in enumerate(stalls) if _same(each, chosen))
        self._at = next(same, 0)
        self.redraw()

    @property
    def chosen(self) -> Stall | None:
        return self._stalls[self._at] if self._at < len(self._stalls) else None

    def choose(self, by: int) -> None:
        self._at = min(max(self._at + by, 0), max(len(self._stalls) - 1, 0))
        self.redraw()

    def open(self) -> None:
        if self.chosen is not None:
            self.post_message(self.StallChosen(self.chosen))

    def on_click(self, event: events.Click) -> None:
        """Go to the stall under the mouse."""
        place = event.y - 1 + self._top
        if event.y and place < len(self._stalls) and event.y - 1 < self._room:
            self._at = place
            self.redraw()
            self.open()

    @property
    def _room(self) -> int:
        below = 0 if self.size.width >= WIDE else EVIDENCE_ROWS
        return max(self.size.height - 1 - below, 1)

    def draw(self, width: int, height: int) -> Sequence[Line]:
        del height
        count = len(self._stalls)
        count_text = counted(count, "stall").strip() if count else ""
        if count == MOST:
            count_text = f"the latest {count_text}"
        title = (TextRun("stalls", "strong"), TextRun(f" {self._span}", "muted"))
        lines = [
            ruled(title, (TextRun(count_text, "muted"),) if count_text else (), width)
        ]
        if not count:
            none = "  none: no gap with work, no slowed decode, nobody starved"
            return [*lines, fit((TextRun(none, "faint"),), width)]
        room = self._room
        top = min(max(self._top, self._at - room + 1), self._at)
        self._top = max(min(top, count - room), 0)
        visible = list(enumerate(self._stalls))[self._top : self._top + room]
        lines += [self._line(each, place == self._at, width) for place, each in visible]
        if width < WIDE and self.chosen is not None:
            lines += [
                (TextRun(f"  {text}", "muted"),) for text in self._evidence_rows(width)
            ]
        return lines

    def _line(self, stall: Stall, chosen: bool, width: int) -> Line:  # noqa: FBT001
        lasted_s = (stall.end_ns - stall.start_ns) / NS_PER_S
        line = (
            TextRun("▶ " if chosen else "  ", "marker"),
            TextRun(f"{self._clock(stall.start_ns)}  ", "strong" if chosen else ""),
            TextRun(f"{stall.kind.value:<15}", "warn"),
            TextRun(f"{format_duration(lasted_s):>9}  "),
        )
        if width < WIDE:
            who = "" if stall.step is None else f"step #{stall.step:,}"
            who = visible(_name(stall)) if stall.key else who
            return fit((*line, TextRun(who, "muted")), width)
        return fit((*line, TextRun(_evidence(stall), "muted")), width)

    def _evidence_rows(self, width: int) -> list[str]:
        rows, words = [""], _evidence(self._stalls[self._at]).split()
        for word in words:
            if cells_of(f"{rows[-1]} {word}") > width - 3:
                rows.append("")
            rows[-1] = f"{rows[-1]} {word}".strip()
        return [*rows, ""][:EVIDENCE_ROWS]


def _evidence(stall: Stall) -> str:
    return visible(f"{_name(stall)}: {stall.evidence}" if stall.key else stall.evidence)


def _name(stall: Stall) -> str:
    """Return the name of the starved request, shortened."""
    name = visible((stall.key or "").split("/", 1)[-1])
    if cells_of(name) <= NAME_WIDTH:
        return name
    return set_cell_size(name, NAME_WIDTH - 1).rstrip() + "…"


def _same(stall: Stall, other: Stall | None) -> bool:
    return other is not None and (stall.kind, stall.start_ns, stall.key) == (
        other.kind,
        other.start_ns,
        other.key,
    )


SHADES = ((0.5, "█"), (0.2, "▓"), (0.05, "▒"), (0.01, "░"), (0.0, "·"))
"""Least share of a column's steps for each glyph."""
DOUBLING = 2
"""Cells per doubling of the time; rows are whole doublings."""


class HeatStrip(Panel):
    """Histograms of step times: time across, step time on a log scale upward."""

    DEFAULT_CSS = """
    HeatStrip { height: 8; }
    """
    _axis: TimeAxis | None = None
    _columns: Sequence[Mapping[int, int]] = ()
    _marked: int | None = None
    _end = "now"

    def show(self, snapshot: Snapshot, cursor_ns: int | None, end: str = "now") -> None:
        """Show the step times of a snapshot; ``end`` labels the right end."""
        self._end = end
        line = snapshot.timeline
        width = self.size.width or self.screen.size.width
        axis = shared_axis(
            line.start_ns,
            line.bin_ns,
            len(line.steps),
            span_of(line, snapshot.window.value),
            max(width - MARGIN - 1, 1),
        )
        self._axis = axis
        heat: Sequence[Heat | None] = line.step_heat or (None,) * len(line.steps)
        self._columns = [
            merged(each for each in heat[low:high] if each) for low, high in axis.slices
        ]
        self._marked = None if cursor_ns is None else axis.column_at(cursor_ns)
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        column = event.x - MARGIN
        if self._axis is not None and column >= 0 and event.y:
            self.post_message(TimeChart.BinClicked(self._axis.moment(column)))

    def draw(self, width: int, height: int) -> Sequence[Line]:
        """Draw the heading, rows from the longest step time down, and the time."""
        lines = [_heading(width)]
        rows = max(height - 2, 1)
        cells = [cell for column in self._columns for cell in column]
        if not cells or self._axis is None:
            return [*lines, (TextRun("  no step in this time", "faint"),)]
        first, a_row = scale_of(min(cells), max(cells), rows)
        for row in reversed(range(rows)):
            label = ""
            if row in {0, rows - 1}:
                label = tick_text(float(f"{begins_s(first + row * a_row):.2g}"), "s")
            text = "".join(
                "│" if place == self._marked else _shade(column, first, a_row, row)
                for place, column in enumerate(self._columns)
            )
            lines.append(
                (
                    TextRun(f"{label:>{MARGIN - 2}} │"[-MARGIN:], "faint"),
                    TextRun(text, "mean"),
                )
            )
        return [*lines, (TextRun(_time(self._axis, width, self._end), "muted"),)]


def scale_of(first: int, last: int, rows: int) -> tuple[int, int]:
    """Return the lowest bucket of step times and the buckets a row, so that all fit.

    >>> scale_of(44, 52, 6), scale_of(41, 67, 6), scale_of(50, 50, 6)
    ((44, 2), (40, 6), (50, 2))
    """
    a_row = DOUBLING
    while first - first % DOUBLING + rows * a_row <= last:
        a_row += DOUBLING
    return first - first % DOUBLING, a_row


def _shade(column: Mapping[int, int], first: int, a_row: int, row: int) -> str:
    begin = first + row * a_row
    count = sum(column.get(cell, 0) for cell in range(begin, begin + a_row))
    if not count:
        return " "
    share = count / sum(column.values())
    return next(glyph for least, glyph in SHADES if share >= least)


def _heading(width: int) -> Line:
    title = (
        TextRun("spread of step times", "strong"),
        TextRun(" log scale", "muted"),
    )
    shades = " ".join(
        f"{glyph} {least:.0%}" if least else f"{glyph} any"
        for least, glyph in reversed(SHADES)
    )
    legend: Line = (TextRun(shades, "muted"), TextRun(" of a column's steps", "muted"))
    if width_of(title) + width_of(legend) + 6 > width:
        legend = legend[:1]
    return ruled(title, legend, width)


def _time(axis: TimeAxis, width: int, end: str) -> str:
    span_s = axis.columns * axis.column_ns / NS_PER_S
    labels = (_ago(span_s), _ago(span_s / 2), end)
    columns = (MARGIN + round(share * (axis.columns - 1)) for share in (0, 0.5, 1))
    return axis_labels(zip(columns, labels, strict=True), width)


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"−{seconds:.3g} s"
    return f"−{seconds / 60:.3g} min" if seconds < 7_200 else f"−{seconds / 3600:.3g} h"


VIEWS = ("over time", "single steps", "efficiency")
OVER_TIME, SINGLE, EFFICIENCY = range(len(VIEWS))


class StepsScreen(WatchScreen):
    """Three views: charts over time, single steps, and efficiency with stalls."""

    NAME = "steps"
    KEY = "3"
    LABEL = "Steps"
    QUESTION = "What does the scheduler do?"
    EXPLAINS = (
        *numbers(
            ServerCounts.scheduler,
            StepTotals.count,
            StepTotals.batch_mean,
            StepTotals.batch_max,
            StepTotals.duration_s,
            StepTotals.share_by_bound,
            StepTotals.share_by_deferral,
            StepTotals.output_tokens,
            StepTotals.prefill_tokens,
            StepTotals.recomputed_tokens,
            StepTotals.gap_share,
            StepTotals.share_by_graph,
            StepTotals.padded_share,
        ),
        *numbers(
            Timeline.batch_decode,
            Timeline.batch_prefill,
            Timeline.step_mean_s,
            Timeline.step_max_s,
        ),
        *numbers(
            Timeline.bound_kv,
            Timeline.bound_seqs,
            Timeline.bound_tokens,
            Timeline.bound_deferred,
            Timeline.bound_other,
            Timeline.slowest_step,
            Timeline.step_heat,
        ),
        *numbers(BatchCurve.points, BatchCurve.now_batch, BatchCurve.prefill_steps),
        *numbers(Stall.kind),
        *SPECULATION_NUMBERS,
        *HARDWARE_NUMBERS,
        *COST_NUMBERS,
    )
    NEEDS_REQUESTS = True
    KEYS = (
        *CHART_KEYS,
        ("click", "on a step, a request or a stall: choose it, or go there"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "view(1)", "view", tooltip="Charts, single steps, efficiency"),
        Binding("V", "view(-1)", "view before", show=False),
        *CHART_BINDINGS,
        Binding(
            "z",
            "zoom(1)",
            "zoom",
            key_display="z Z",
            tooltip="More steps a column; Z fewer, down to one",
        ),
        Binding(
            "z",
            "singly",
            "single steps",
            show=False,
            tooltip="The line of single steps",
        ),
        Binding("Z", "zoom(-1)", "closer", show=False, tooltip="Fewer steps a column"),
        Binding(
            "comma",
            "pick(-1)",
            "step",
            key_display=", .",
            tooltip="Look at the step before, or the next one; esc lets go",
        ),
        Binding(
            "comma",
            "engine_step(-1)",
            "step back",
            key_display=", .",
            show=False,
            tooltip="One engine step back or forward",
        ),
        Binding("full_stop", "pick(1)", "next step", show=False),
        Binding("full_stop", "engine_step(1)", "step forward", show=False),
        Binding(
            "up",
            "choose(-1)",
            "choose",
            key_display="↑ ↓",
            tooltip="Choose a request of the step, or a stall",
        ),
        Binding("down", "choose(1)", "choose the next", show=False),
        Binding(
            "enter",
            "open",
            "open",
            tooltip="Open the chosen request, or go to the chosen stall",
        ),
        Binding(
            "enter",
            "open_step",
            "open step",
            tooltip="Open the step of this moment: who was in it, what was around it",
        ),
        *KNOB_BINDINGS,
        *PROFILE_SHOWN,
    ]
    DEFAULT_CSS = """
    StepsScreen {
        #totals { height: 4; margin-top: 1; }
        #slowest { height: 4; }
        &.-traffic #slowest { height: 5; }
        &.-short #totals { margin: 0; }
        &.-untouched #slowest, &.-counted #slowest { display: none; }
        &.-counted #totals { height: 3; }
        &.-counted.-speculating #totals { height: 4; }
        SingleSteps, #efficiency { display: none; height: 1fr; }
        StepPanel { height: 12; }
        &.-short StepPanel { height: 8; }
        &.-tall StepPanel { height: 24; }
        &.-single ChartStack, &.-single #slowest { display: none; }
        &.-efficiency ChartStack, &.-efficiency #slowest { display: none; }
        &.-single SingleSteps, &.-efficiency #efficiency { display: block; }
        &.-short.-single #totals, &.-short.-efficiency #totals { display: none; }
        &.-short HeatStrip { height: 6; }
        &.-tall HeatStrip { height: 12; }
        &.-untouched SingleSteps, &.-untouched #efficiency { display: none; }
    }
    """

    WILL_SHOW = "batch, step time and what limits them, step by step"

    _in_view = OVER_TIME
    _shown_step: Step | None = None
    """The step told below the charts."""
    _most_rows = 0
    """The most rows of totals so far: once shown, a row stays."""

    def compose_panels(self) -> Iterable[Widget]:
        yield TotalsPanel(id="totals")
        yield ChartStack(
            (
                charts.BATCH,
                charts.STEP_TIME,
                charts.BOUND_BY,
                charts.TOKENS,
                charts.SPECULATION,
                *HARDWARE_CHARTS,
            )
        )
        yield TotalsPanel(id="slowest")
        yield SingleSteps(self.feed, self.view, self._one_step, lambda: self.is_held)
        with Vertical(id="efficiency"):
            yield CurvePanel()
            yield HeatStrip()
            yield StallList()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable keys of other views; servers without steps have one view."""
        tells = not self.has_class("-counted")
        of_probe = tells and not self.has_class("-published")
        singly = tells and self._in_view == SINGLE
        can = {
            "zoom": singly,
            "pick": singly,
            "engine_step": False if singly else None,
            "choose": of_probe and self._in_view != OVER_TIME,
            "open": of_probe and self._in_view != OVER_TIME,
            "chart": self._in_view == OVER_TIME or not tells,
            "open_step": of_probe and self._in_view == OVER_TIME,
            "view": tells,
            "singly": tells and not singly,
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    def show_panels(self, snapshot: Snapshot) -> None:
        window = f"steps of {snapshot.window.span}"
        counts = not snapshot.tells_steps
        self.set_class(snapshot.without_steps and not counts, "-published")
        if counts:
            self.view.sought_step = None
        if counts != self.has_class("-counted"):
            self.set_class(counts, "-counted")
            self._change_view(OVER_TIME if counts else self._in_view)
        if self._in_view not in self._views:
            self._change_view(OVER_TIME)
        self.set_class(snapshot.speculation is not None, "-speculating")
        totals = self.query_one("#totals", TotalsPanel)
        if counts:
            totals.styles.height = None
            note = "counted by the server, none told singly"
            totals.show(window, note, counted_facts(snapshot))
            return
        facts = total_facts(snapshot.steps, snapshot.speculation)
        sought, self.view.sought_step = self.view.sought_step, None
        if sought is not None:
            self.query_one(SingleSteps).seek(sought, snapshot)
            self._change_view(SINGLE)
        self._most_rows = max(self._most_rows, len(facts))
        totals.styles.height = 1 + self._most_rows
        totals.show(window, self._others(len(snapshot.stalls)), facts)
        if self._in_view == OVER_TIME:
            self._show_one_step(snapshot)
        elif self._in_view == SINGLE:
            self.query_one(SingleSteps).show(snapshot)
        else:
            self._show_efficiency(snapshot)

    def _others(self, stalls: int) -> str:
        """Return how many stalls there were, and the names of all views.

        The names end at the right, so that they stay when stalls come and go.
        """
        names = [
            f"[{VIEWS[i]}]" if i == self._in_view else VIEWS[i] for i in self._views
        ]
        if self.has_class("-published"):
            names.append("published by the server")
        news = f"{counted(stalls, 'stall')}   " if stalls else ""
        roomy = self.size.width >= ROOMY
        return (news if roomy else "") + "v  " + " · ".join(names)

    def _show_one_step(self, snapshot: Snapshot) -> None:
        title, step = self._one_step(snapshot)
        self._shown_step = step
        traffic = traffic_facts(snapshot, self.view.bin_of(snapshot))
        if traffic:  # once shown, the row stays
            self.add_class("-traffic")
        self.query_one("#slowest", TotalsPanel).show(
            title, self._ended(step), [*step_facts(step), *([traffic] * bool(traffic))]
        )

    def _ended(self, step: Step | None) -> str:
        return (
            "" if step is None else f"ended {self.feed.wall_text(step.end_ns, ms=True)}"
        )

    def _one_step(self, snapshot: Snapshot) -> tuple[str, Step | None]:
        """Return a title with the step of a paused view, else the bin's slowest."""
        if self.view.cursor_ns is None and self.is_held:
            return "the step here", snapshot.latest_step
        index, line = self.view.bin_of(snapshot), snapshot.timeline
        span = f"{line.bin_ns / NS_PER_S:g} s"
        if self.view.cursor_ns is None:
            where = f"of the last {span}" + (" before the loss" if line.lost_ns else "")
        else:
            where = f"of the {span} under the time cursor"
        if index is None:
            return f"slowest step {where}", None
        count = line.steps[index]
        among = f", of {counted(count, 'step')}" if count else ""
        return f"slowest step {where}{among}", line.slowest_step[index]

    def _show_efficiency(self, snapshot: Snapshot) -> None:
        span = snapshot.window.span
        self.query_one(CurvePanel).show(snapshot.batch_curve, span)
        self.query_one(HeatStrip).show(
            snapshot, self.view.cursor_ns, self._here(snapshot)
        )
        self.query_one(StallList).show(snapshot.stalls, span, self.feed.wall_text)

    @on(StallList.StallChosen)
    def _stall_chosen(self, message: StallList.StallChosen) -> None:
        """Show the steps up to the end of the stall."""
        self.query_one(SingleSteps).let_go()
        self.view.cursor_ns = max(message.stall.end_ns, 0)
        self._change_view(SINGLE)

    def action_pick(self, by: int) -> None:
        """Select another step; where none is known, move the held moment to it."""
        if not self.query_one(SingleSteps).pick(by) and self.is_held:
            self.playback.engine_step(by)

    def action_singly(self) -> None:
        self._change_view(SINGLE)

    def action_open_step(self) -> None:
        """Open the step that is shown for this moment; without one, only their line."""
        if self._shown_step is None:
            self._change_view(SINGLE)
        else:
            self.post_message(OpenStep(self._shown_step.end_ns))

    def action_zoom(self, by: int) -> None:
        self.query_one(SingleSteps).zoom(by)

    def action_view(self, by: int) -> None:
        self._change_view((self._in_view + by) % len(self._views))

    @property
    def _views(self) -> range:
        """The views; efficiency and stalls need tokens and members."""
        return range(EFFICIENCY if self.has_class("-published") else len(VIEWS))

    def _change_view(self, view: int) -> None:
        self._in_view = view
        self.set_class(view == SINGLE, "-single")
        self.set_class(view == EFFICIENCY, "-efficiency")
        self.refresh_bindings()
        self.post_message(LookAgain())

    def action_choose(self, by: int) -> None:
        """Select another request of the step, or another stall."""
        if self._in_view == SINGLE:
            self.query_one(SingleSteps).choose(by)
        else:
            self.query_one(StallList).choose(by)

    @on(StepPanel.MemberOpened)
    def action_open(self) -> None:
        """Open the selected request, or go to the selected stall."""
        if self._in_view == EFFICIENCY:
            self.query_one(StallList).open()
            return
        member = self.query_one(SingleSteps).chosen
        if member is None:
            return
        if member.row is None:
            message_text = "of this request nothing is known any more but its number"
            self.notify(message_text, severity="warning", timeout=4)
            return
        self.post_message(OpenRequest(member.row.key))
