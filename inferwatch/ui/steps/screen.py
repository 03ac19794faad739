"""What does the scheduler do?"""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widget import Widget

from collectors.contract.clock import NS_PER_S
from collectors.contract.readings import Step
from inferwatch.formatting import counted
from inferwatch.metrics.snapshot import Snapshot
from inferwatch.ui.frame.watch_screen import KNOB_BINDINGS, WatchScreen
from inferwatch.ui.messages import LookAgain, OpenRequest
from inferwatch.ui.steps.curve import CurvePanel
from inferwatch.ui.steps.facts import step_facts, total_facts, traffic_facts
from inferwatch.ui.steps.heat_strip import HeatStrip
from inferwatch.ui.steps.members import StepPanel
from inferwatch.ui.steps.singly import SingleSteps
from inferwatch.ui.steps.stall_list import StallList
from inferwatch.ui.widgets import charts
from inferwatch.ui.widgets.chart_stack import CHART_BINDINGS, CHART_KEYS, ChartStack
from inferwatch.ui.widgets.counted import step_facts as counted_facts
from inferwatch.ui.widgets.drawers import COST_KEYS, catalog_keys
from inferwatch.ui.widgets.hardware_charts import HARDWARE_CHARTS, HARDWARE_KEYS
from inferwatch.ui.widgets.totals import ROOMY, TotalsPanel

VIEWS = ("over time", "single steps", "efficiency")
OVER_TIME, SINGLE, EFFICIENCY = range(len(VIEWS))
PLAIN_ROWS = 3
"""Of the totals, where no engine tells of CUDA graphs."""


class StepsScreen(WatchScreen):
    """Three views: charts over time, single steps, what batches cost and stalls."""

    NAME = "steps"
    KEY = "3"
    LABEL = "Steps"
    QUESTION = "What does the scheduler do?"
    EXPLAINS = (
        *catalog_keys(
            "steps",
            "count batch_mean batch_max duration_s share_by_bound output_tokens "
            "prefill_tokens recomputed_tokens gap_share share_by_graph padded_share",
        ),
        *catalog_keys("timeline", "batch_decode batch_prefill step_mean_s step_max_s"),
        *catalog_keys(
            "timeline",
            "bound_kv bound_seqs bound_tokens bound_deferred bound_other slowest_step "
            "step_heat",
        ),
        *catalog_keys("batch_curve", "points now_batch prefill_steps"),
        *catalog_keys("stall", "kind"),
        *HARDWARE_KEYS,
        *COST_KEYS,
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
            "left_square_bracket",
            "pick(-1)",
            "step",
            key_display="[ ]",
            tooltip="Look at the step before, or the next one; esc lets go",
        ),
        Binding("left_square_bracket", "skip(-1)", "second back", show=False),
        Binding("right_square_bracket", "pick(1)", "next step", show=False),
        Binding("right_square_bracket", "skip(1)", "second forward", show=False),
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
        *KNOB_BINDINGS,
    ]
    DEFAULT_CSS = """
    StepsScreen {
        #totals { height: 4; margin-top: 1; }
        &.-launched #totals { height: 5; }
        #slowest { height: 4; }
        &.-traffic #slowest { height: 5; }
        &.-short #totals { margin: 0; }
        &.-untouched #slowest, &.-counted #slowest { display: none; }
        &.-counted #totals { height: 3; }
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
    """The view, by its place."""

    def compose_panels(self) -> Iterable[Widget]:
        """Totals, and the panels of all views."""
        yield TotalsPanel(id="totals")
        yield ChartStack(
            (
                charts.BATCH,
                charts.STEP_TIME,
                charts.BOUND_BY,
                charts.TOKENS,
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
        """Each view has keys of its own; servers without steps have one view."""
        tells = not self.has_class("-counted")
        singly = tells and self._in_view == SINGLE
        can = {
            "zoom": singly,
            "pick": singly,
            "skip": False if singly else None,
            "choose": tells and self._in_view != OVER_TIME,
            "open": tells and self._in_view != OVER_TIME,
            "chart": self._in_view == OVER_TIME or not tells,
            "view": tells,
            "singly": tells and not singly,
        }.get(action)
        return super().check_action(action, parameters) if can is None else can

    def show_panels(self, shown: Snapshot) -> None:
        """Totals of the window, and what the view is about."""
        window = f"steps of {shown.window.span}"
        if shown.without_steps != self.has_class("-counted"):
            self.set_class(shown.without_steps, "-counted")
            self._change_view(OVER_TIME if shown.without_steps else self._in_view)
        totals = self.query_one("#totals", TotalsPanel)
        if shown.without_steps:
            told = "counted by the server, none told singly"
            totals.show(window, told, counted_facts(shown))
            return
        facts = total_facts(shown.steps)
        if len(facts) > PLAIN_ROWS:  # once it was told, its row stays
            self.add_class("-launched")
        totals.show(window, self._others(len(shown.stalls)), facts)
        if self._in_view == OVER_TIME:
            self._show_one_step(shown)
        elif self._in_view == SINGLE:
            self.query_one(SingleSteps).show(shown)
        else:
            self._show_efficiency(shown)

    def _others(self, stalls: int) -> str:
        """Which view this is of those there are; that there were stalls is news."""
        names = [f"[{n}]" if i == self._in_view else n for i, n in enumerate(VIEWS)]
        news = f", {counted(stalls, 'stall').strip()}" if stalls else ""
        roomy = self.size.width >= ROOMY
        return "v  " + " · ".join(names) + (news if roomy else "")

    # Charts, and one step.

    def _show_one_step(self, shown: Snapshot) -> None:
        title, step = self._one_step(shown)
        traffic = traffic_facts(shown, self.view.bin_of(shown))
        if traffic:  # once it was there, its row stays
            self.add_class("-traffic")
        self.query_one("#slowest", TotalsPanel).show(
            title, self._ended(step), [*step_facts(step), *([traffic] * bool(traffic))]
        )

    def _ended(self, step: Step | None) -> str:
        return (
            "" if step is None else f"ended {self.feed.wall_text(step.end_ns, ms=True)}"
        )

    def _one_step(self, shown: Snapshot) -> tuple[str, Step | None]:
        """The one a held view stands at; while time goes on the slowest of late."""
        if self.view.cursor_ns is None and self.is_held:
            return "the step here", shown.latest_step
        index, line = self.view.bin_of(shown), shown.timeline
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

    # Batches, spread, stalls.

    def _show_efficiency(self, shown: Snapshot) -> None:
        span = shown.window.span
        self.query_one(CurvePanel).show(shown.batch_curve, span)
        self.query_one(HeatStrip).show(shown, self.view.cursor_ns, self._here(shown))
        self.query_one(StallList).show(shown.stalls, span, self.feed.wall_text)

    @on(StallList.Chosen)
    def _stall_chosen(self, message: StallList.Chosen) -> None:
        """Look at the steps of that time; they end when it was over."""
        self.query_one(SingleSteps).let_go()
        self.view.cursor_ns = max(message.stall.end_ns, 0)
        self._change_view(SINGLE)

    # Views and lists.

    def action_pick(self, by: int) -> None:
        """Another step."""
        self.query_one(SingleSteps).pick(by)

    def action_singly(self) -> None:
        """The view of single steps."""
        self._change_view(SINGLE)

    def action_zoom(self, by: int) -> None:
        """More steps a column, or fewer."""
        self.query_one(SingleSteps).zoom(by)

    def action_view(self, by: int) -> None:
        """The next view."""
        self._change_view((self._in_view + by) % len(VIEWS))

    def _change_view(self, view: int) -> None:
        self._in_view = view
        self.set_class(view == SINGLE, "-single")
        self.set_class(view == EFFICIENCY, "-efficiency")
        self.refresh_bindings()
        self.post_message(LookAgain())

    def action_choose(self, by: int) -> None:
        """Another request of the step, or another stall."""
        if self._in_view == SINGLE:
            self.query_one(SingleSteps).choose(by)
        else:
            self.query_one(StallList).choose(by)

    @on(StepPanel.Opened)
    def action_open(self) -> None:
        """The request on a screen of its own, or the moment of the stall."""
        if self._in_view == EFFICIENCY:
            self.query_one(StallList).open()
            return
        member = self.query_one(SingleSteps).chosen
        if member is None:
            return
        if member.row is None:
            told = "of this request nothing is known any more but its number"
            self.notify(told, severity="warning", timeout=4)
            return
        self.post_message(OpenRequest(member.row.key))
